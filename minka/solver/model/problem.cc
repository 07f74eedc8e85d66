#include "minka/solver/model/problem.h"

#include <algorithm>
#include <string_view>

#include "minka/base/hash.h"
#include "minka/base/status.h"

namespace minka {
namespace {

constexpr __int128 kLargestSum = static_cast<__int128>(1) << 58;

int64_t LargestAllowed(std::span<const int64_t> values) {
  int64_t largest = 0;
  for (const int64_t value : values)
    if (value != kForbidden) largest = std::max(largest, value);
  return largest;
}

bool HasNegative(std::span<const int64_t> values) {
  return std::any_of(values.begin(), values.end(), [](int64_t value) { return value < 0; });
}

}  // namespace

RowPool::RowPool(const RowPool& other)
    : rows_(other.rows_),
      blocks_(other.blocks_),
      first_of_hash_(other.first_of_hash_),
      next_of_hash_(other.next_of_hash_) {}

RowId RowPool::Intern(std::span<const int64_t> row) {
  const uint64_t hash = StableHash({reinterpret_cast<const char*>(row.data()), row.size_bytes()});
  const RowId id = size();
  const auto [first, added] = first_of_hash_.try_emplace(hash, id);
  RowId last = -1;
  for (RowId known = first->second; !added && known >= 0; known = next_of_hash_[known]) {
    const std::span<const int64_t> values = (*this)[known];
    if (values.size() == row.size() && std::equal(values.begin(), values.end(), row.begin()))
      return known;
    last = known;
  }
  if (last >= 0) next_of_hash_[last] = id;
  next_of_hash_.push_back(-1);
  if (free_.size() < row.size()) {
    constexpr size_t kBlock = 1 << 16;
    const size_t size = std::max(kBlock, row.size());
    blocks_.push_back(std::make_shared_for_overwrite<int64_t[]>(size));
    free_ = {blocks_.back().get(), size};
  }
  std::ranges::copy(row, free_.begin());
  rows_.push_back(free_.first(row.size()));
  free_ = free_.subspan(row.size());
  return id;
}

NodeId SolverProblem::AddNode(std::span<const int64_t> costs, const std::string& name) {
  const NodeId node = num_nodes();
  cost_row_.push_back(cost_rows_.Intern(costs));
  multiplicity_.push_back(1);
  if (!name.empty()) names_.emplace(node, name);
  return node;
}

void SolverProblem::AddCosts(NodeId node, std::span<const int64_t> more) {
  const std::span<const int64_t> before = costs(node);
  std::vector<int64_t> sums(before.begin(), before.end());
  for (size_t i = 0; i < sums.size(); ++i) {
    if (sums[i] != kForbidden) sums[i] = more[i] == kForbidden ? kForbidden : sums[i] + more[i];
  }
  cost_row_[node] = cost_rows_.Intern(sums);
}

TableId SolverProblem::AddTable(int32_t num_rows, int32_t num_columns, RowId cells) {
  const auto [first, last] = tables_by_cells_.equal_range(cells);
  for (auto it = first; it != last; ++it) {
    const TableShape& shape = table_shapes_[it->second];
    if (shape.num_rows == num_rows && shape.num_columns == num_columns) return it->second;
  }
  const TableId id = num_tables();
  table_shapes_.push_back({num_rows, num_columns, cells});
  tables_by_cells_.emplace(cells, id);
  return id;
}

void SolverProblem::AddUsage(NodeId node, TimeInterval interval, RowId row) {
  usages_.push_back({interval, row});
  usage_node_.push_back(node);
}

CostTable SolverProblem::table(TableId id) const {
  const TableShape& shape = table_shapes_[id];
  return {shape.num_rows, shape.num_columns, table_cells_[shape.cells]};
}

std::string SolverProblem::node_name(NodeId node) const {
  const auto it = names_.find(node);
  return it == names_.end() ? fmt::format("node {}", node) : it->second;
}

absl::Status SolverProblem::Check() const {
  __int128 largest_sum = 0;
  std::vector<int64_t> largest_of_row(cost_rows_.size(), -1);
  for (NodeId node = 0; node < num_nodes(); ++node) {
    const std::span<const int64_t> row = costs(node);
    int64_t& largest = largest_of_row[cost_row_[node]];
    if (largest < 0) {
      if (row.empty()) return InvalidArgument("{} has no choices", node_name(node));
      if (HasNegative(row)) return InvalidArgument("{} has a negative cost", node_name(node));
      largest = LargestAllowed(row);
    }
    if (multiplicity_[node] < 1)
      return InvalidArgument("{} has multiplicity {}; it must be at least 1", node_name(node),
                             multiplicity_[node]);
    largest_sum += static_cast<__int128>(largest) * multiplicity_[node];
  }
  std::vector<int64_t> largest_of_table(table_shapes_.size());
  for (TableId id = 0; id < num_tables(); ++id) {
    const CostTable t = table(id);
    if (static_cast<size_t>(t.num_rows) * t.num_columns != t.cells.size())
      return InvalidArgument("table {} has {} cells, not {} x {}", id, t.cells.size(), t.num_rows,
                             t.num_columns);
    if (HasNegative(t.cells)) return InvalidArgument("table {} has a negative cost", id);
    largest_of_table[id] = LargestAllowed(t.cells);
  }
  for (size_t e = 0; e < edges_.size(); ++e) {
    const ProblemEdge& edge = edges_[e];
    for (const NodeId node : {edge.a, edge.b})
      if (node < 0 || node >= num_nodes())
        return InvalidArgument("edge {} joins node {}, but there are {} nodes", e, node,
                               num_nodes());
    if (edge.a == edge.b)
      return InvalidArgument("edge {} joins {} to itself", e, node_name(edge.a));
    if (edge.table < 0 || edge.table >= num_tables())
      return InvalidArgument("edge {} names table {}, but there are {} tables", e, edge.table,
                             num_tables());
    const CostTable t = table(edge.table);
    const NodeId row_node = edge.transposed ? edge.b : edge.a;
    const NodeId column_node = edge.transposed ? edge.a : edge.b;
    if (t.num_rows != num_choices(row_node) || t.num_columns != num_choices(column_node))
      return InvalidArgument("edge {}'s table is {} x {}, but {} has {} choices and {} has {}", e,
                             t.num_rows, t.num_columns, node_name(row_node), num_choices(row_node),
                             node_name(column_node), num_choices(column_node));
    if (edge.multiplicity < 1)
      return InvalidArgument("edge {} has multiplicity {}; it must be at least 1", e,
                             edge.multiplicity);
    largest_sum += static_cast<__int128>(largest_of_table[edge.table]) * edge.multiplicity;
  }
  if (largest_sum >= kLargestSum)
    return InvalidArgument(
        "costs are too large: their largest sum does not fit 58 bits; use a coarser unit");
  for (RowId row = 0; row < usage_rows_.size(); ++row)
    if (HasNegative(usage_rows_[row]))
      return InvalidArgument("usage row {} has negative bytes", row);
  __int128 largest_usage = 0;
  for (size_t u = 0; u < usages_.size(); ++u) {
    const NodeId node = usage_node_[u];
    if (node < 0 || node >= num_nodes())
      return InvalidArgument("usage {} belongs to node {}, but there are {} nodes", u, node,
                             num_nodes());
    if (usages_[u].row < 0 || usages_[u].row >= usage_rows_.size())
      return InvalidArgument("a usage of {} names row {}, but there are {} rows", node_name(node),
                             usages_[u].row, usage_rows_.size());
    const std::span<const int64_t> row = usage_row(usages_[u].row);
    if (static_cast<int32_t>(row.size()) != num_choices(node))
      return InvalidArgument("a usage of {} has {} entries for {} choices", node_name(node),
                             row.size(), num_choices(node));
    largest_usage += LargestAllowed(row);
  }
  if (largest_usage >= kLargestSum)
    return InvalidArgument(
        "usages are too large: their largest sum does not fit 58 bits; use a coarser unit");
  if (usage_limit_ && *usage_limit_ < 0)
    return InvalidArgument("the usage limit is negative: {}", *usage_limit_);
  return absl::OkStatus();
}

}  // namespace minka
