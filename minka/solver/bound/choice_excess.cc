#include "minka/solver/bound/choice_excess.h"

#include <algorithm>

#include "minka/solver/reduce/vectorized.h"

namespace minka {
namespace {

constexpr int64_t kNever = int64_t{1} << 60;

// What an edge adds to the bound at least, for every choice of its ends.
struct EdgeMinima {
  std::vector<int64_t> of_a;
  std::vector<int64_t> of_b;
};

MINKA_VECTORIZED
int64_t RowMinimum(const int64_t* __restrict cells, const int64_t* __restrict to_b, int32_t count,
                   int64_t constant, int shift, int64_t* __restrict of_b) {
  int64_t least = kNever;
  for (int32_t j = 0; j < count; ++j) {
    const bool forbidden = cells[j] == kForbidden;
    const int64_t scaled = forbidden ? 0 : cells[j] << shift;
    const int64_t term = forbidden ? kNever : scaled - to_b[j] - constant;
    of_b[j] = term < of_b[j] ? term : of_b[j];
    least = term < least ? term : least;
  }
  return least;
}

EdgeMinima MinimaOf(const CoreGraph& graph, const IntegerTerms& terms, int32_t edge) {
  const CostTable t = graph.core().algebra.table(graph.core().edges[edge].table);
  const EdgeMessages at = graph.edge_messages(edge);
  EdgeMinima minima = {.of_a = std::vector<int64_t>(t.num_rows, kNever),
                       .of_b = std::vector<int64_t>(t.num_columns, kNever)};
  for (int32_t i = 0; i < t.num_rows; ++i)
    minima.of_a[i] = RowMinimum(t.cells.data() + static_cast<size_t>(i) * t.num_columns,
                                terms.messages.data() + at.to_b, t.num_columns,
                                terms.messages[at.to_a + i] + terms.edge_minimum[edge], terms.shift,
                                minima.of_b.data());
  return minima;
}

}  // namespace

int64_t CountChoices(std::span<const std::vector<int64_t>> choices) {
  int64_t count = 0;
  for (const std::vector<int64_t>& of_node : choices) count += static_cast<int64_t>(of_node.size());
  return count;
}

ChoiceExcess::ChoiceExcess(const MessagePassing& messages) : graph_(messages.graph()) {
  IntegerTerms terms = messages.Terms();
  shift_ = terms.shift;
  bound_ = terms.bound;
  excess_ = std::move(terms.node_costs);
  const auto add = [&](int32_t node, const std::vector<int64_t>& minima) {
    int64_t* const entries = excess_.data() + graph_.first_choice(node);
    for (size_t k = 0; k < minima.size(); ++k)
      entries[k] = std::min(kNever, entries[k] + minima[k]);
  };
  const std::vector<CoreEdge>& edges = graph_.core().edges;
  std::vector<EdgeMinima> minima(edges.size());  // of the first of equal edges
  for (int32_t e = 0; e < static_cast<int32_t>(minima.size()); ++e) {
    const int32_t first = terms.first_equal[e];
    if (first == e) minima[e] = MinimaOf(graph_, terms, e);
    add(edges[e].a, minima[first].of_a);
    add(edges[e].b, minima[first].of_b);
  }
}

std::vector<std::vector<int64_t>> ChoiceExcess::Within(int64_t cost) const {
  const __int128 allowed =
      (static_cast<__int128>(cost - graph_.core().base_cost) << shift_) - bound_;
  return UpTo(excess_, static_cast<int64_t>(std::min<__int128>(allowed, kNever - 1)), {});
}

std::vector<std::vector<int64_t>> ChoiceExcess::Likely(int64_t count,
                                                       std::span<const int32_t> answer,
                                                       std::span<const double> factors) const {
  std::vector<int64_t> excess = excess_;
  for (int32_t n = 0; n < (factors.empty() ? 0 : graph_.num_nodes()); ++n) {
    for (int32_t i = graph_.first_choice(n); i < graph_.first_choice(n + 1); ++i) {
      const double scaled = factors[n] * static_cast<double>(excess[i]);
      if (excess[i] < kNever)
        excess[i] = static_cast<int64_t>(std::min(scaled, static_cast<double>(kNever - 1)));
    }
  }
  std::vector<int64_t> sorted = excess;
  const auto last = std::min(count, static_cast<int64_t>(sorted.size())) - 1;
  std::ranges::nth_element(sorted, sorted.begin() + last);
  return UpTo(excess, std::min(sorted[last], kNever - 1), answer);
}

std::vector<std::vector<int64_t>> ChoiceExcess::UpTo(std::span<const int64_t> excess, int64_t most,
                                                     std::span<const int32_t> answer) const {
  std::vector<std::vector<int64_t>> kept(graph_.num_nodes());
  for (int32_t n = 0; n < graph_.num_nodes(); ++n)
    for (int32_t k = 0; k < graph_.num_choices(n); ++k)
      if (excess[graph_.first_choice(n) + k] <= most || (!answer.empty() && answer[n] == k))
        kept[n].push_back(k);
  return kept;
}

}  // namespace minka
