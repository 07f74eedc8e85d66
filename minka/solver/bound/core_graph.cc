#include "minka/solver/bound/core_graph.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "minka/base/check.h"
#include "minka/solver/reduce/transpose.h"
#include "minka/solver/reduce/vectorized.h"

namespace minka {
namespace {

double ToDouble(int64_t cost) {
  return cost == kForbidden ? std::numeric_limits<double>::infinity() : static_cast<double>(cost);
}

double LargestAllowed(std::span<const int64_t> costs) {
  double largest = 0;
  for (const int64_t cost : costs)
    if (cost != kForbidden) largest = std::max(largest, std::abs(static_cast<double>(cost)));
  return largest;
}

}  // namespace

CoreGraph::CoreGraph(const Core& core) : core_(core) {
  LayOutNodes();
  LayOutTables();
  LayOutArcs();
  OrderNodes();
}

void CoreGraph::LayOutNodes() {
  first_choice_.push_back(0);
  for (int32_t node = 0; node < core_.num_nodes(); ++node) {
    for (const int64_t cost : core_.costs(node)) costs_.push_back(ToDouble(cost));
    largest_sum_ += LargestAllowed(core_.costs(node));
    first_choice_.push_back(static_cast<int32_t>(costs_.size()));
    constexpr int64_t kWorkPerRange = 40;
    move_work_.push_back(0);
    for (const CoreUsage& usage : core_.usages[node])
      move_work_[node] += kWorkPerRange * static_cast<int64_t>(usage.ranges.size());
  }
}

void CoreGraph::LayOutTables() {
  const TableAlgebra& algebra = core_.algebra;
  first_cell_.assign(algebra.num_tables(), -1);
  first_transposed_cell_.assign(algebra.num_tables(), -1);
  first_exact_transposed_.assign(algebra.num_tables(), -1);
  int64_t total = 0;
  std::vector<double> largest(algebra.num_tables());
  for (const CoreEdge& edge : core_.edges) {
    const std::span<const int64_t> cells = algebra.table(edge.table).cells;
    const auto size = static_cast<int64_t>(cells.size());
    num_cells_ += size;
    const bool known = first_cell_[edge.table] >= 0;
    if (!known) largest[edge.table] = LargestAllowed(cells);
    largest_sum_ += largest[edge.table];
    if (known) continue;
    first_cell_[edge.table] = total;
    first_transposed_cell_[edge.table] = total + size;
    first_exact_transposed_[edge.table] = total / 2;
    total += 2 * size;
  }
  cells_.resize(total);
  exact_transposed_.resize(total / 2);
  for (TableId id = 0; id < algebra.num_tables(); ++id) {
    if (first_cell_[id] < 0) continue;
    const CostTable t = algebra.table(id);
    double* const cells = cells_.data() + first_cell_[id];
    std::ranges::transform(t.cells, cells, ToDouble);
    Transpose(cells, t.num_rows, t.num_columns, cells_.data() + first_transposed_cell_[id]);
    Transpose(t.cells.data(), t.num_rows, t.num_columns,
              exact_transposed_.data() + first_exact_transposed_[id]);
  }
}

void CoreGraph::LayOutArcs() {
  std::vector<std::vector<Arc>> arcs(num_nodes());
  for (int32_t e = 0; e < static_cast<int32_t>(core_.edges.size()); ++e) {
    const CoreEdge& edge = core_.edges[e];
    MINKA_CHECK(edge.a < edge.b, "core edge {} - {} is not ordered", edge.a, edge.b);
    const int64_t to_a = num_message_entries_;
    const int64_t to_b = to_a + num_choices(edge.a);
    num_message_entries_ = to_b + num_choices(edge.b);
    const double* const cells = cells_.data() + first_cell_[edge.table];
    const double* const transposed = cells_.data() + first_transposed_cell_[edge.table];
    edge_messages_.push_back({to_a, to_b});
    const int64_t* const exact = core_.algebra.table(edge.table).cells.data();
    const int64_t* const exact_transposed =
        exact_transposed_.data() + first_exact_transposed_[edge.table];
    arcs[edge.a].push_back({edge.b, e, cells, transposed, exact, exact_transposed, to_a, to_b});
    arcs[edge.b].push_back({edge.a, e, transposed, cells, exact_transposed, exact, to_b, to_a});
  }
  first_arc_.push_back(0);
  for (const std::vector<Arc>& of_node : arcs) {
    arcs_.insert(arcs_.end(), of_node.begin(), of_node.end());
    first_arc_.push_back(static_cast<int32_t>(arcs_.size()));
  }
}

void CoreGraph::OrderNodes() {
  rank_.resize(num_nodes());
  num_backward_.resize(num_nodes());
  if (num_nodes() == 0) return;
  order_ = BreadthFirst(*this, BreadthFirst(*this, 0).back());
  for (int32_t i = 0; i < num_nodes(); ++i) rank_[order_[i]] = i;
  for (int32_t node = 0; node < num_nodes(); ++node) {
    const auto first = arcs_.begin() + first_arc_[node];
    const auto end = arcs_.begin() + first_arc_[node + 1];
    const auto is_backward = [&](const Arc& arc) { return rank_[arc.other] < rank_[node]; };
    num_backward_[node] =
        static_cast<int32_t>(std::stable_partition(first, end, is_backward) - first);
  }
}

std::vector<int32_t> BreadthFirst(const CoreGraph& graph, int32_t first) {
  std::vector<int32_t> order;
  std::vector<char> is_reached(graph.num_nodes(), 0);
  const auto reach = [&](int32_t node) {
    if (std::exchange(is_reached[node], 1) == 0) order.push_back(node);
  };
  size_t next = 0;
  const auto reach_from = [&](int32_t start) {
    reach(start);
    for (; next < order.size(); ++next)
      for (const CoreGraph::Arc& arc : graph.arcs(order[next])) reach(arc.other);
  };
  reach_from(first);
  for (int32_t node = 0; node < graph.num_nodes(); ++node) reach_from(node);
  return order;
}

MINKA_VECTORIZED
void MinPlus(const double* __restrict in, const double* __restrict cells, int32_t rows,
             int32_t columns, double* __restrict out) {
  for (int32_t j = 0; j < columns; ++j) out[j] = kHugeCost;
  for (int32_t i = 0; i < rows; ++i) {
    const double base = in[i];
    const double* const row = cells + static_cast<size_t>(i) * columns;
    for (int32_t j = 0; j < columns; ++j) {
      const double sum = base + row[j];
      out[j] = sum < out[j] ? sum : out[j];
    }
  }
}

std::vector<double> PriceSums(std::span<const double> prices) {
  std::vector<double> sums(prices.size() + 1, 0);
  for (size_t t = 0; t < prices.size(); ++t) sums[t + 1] = sums[t] + prices[t];
  return sums;
}

void AddMemoryPrice(const Core& core, int32_t node, std::span<const double> price_sums,
                    std::span<double> costs) {
  for (const CoreUsage& usage : core.usages[node]) {
    double price = 0;
    for (const TimeRange& range : usage.ranges)
      price += price_sums[range.end] - price_sums[range.begin];
    if (price == 0) continue;
    const std::span<const int64_t> bytes = core.algebra.row(usage.row);
    for (size_t k = 0; k < bytes.size(); ++k) costs[k] += price * static_cast<double>(bytes[k]);
  }
}

}  // namespace minka
