#include "minka/solver/bound/message_passing.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <ranges>

#include "absl/container/flat_hash_map.h"
#include "minka/base/hash.h"
#include "minka/solver/reduce/vectorized.h"

namespace minka {
namespace {

constexpr int64_t kLargestQuantity = int64_t{1} << 59;
constexpr int kPriceBits = 24;
constexpr double kMomentumDelay = 3;

// `unit` is a power of two.
int64_t Quantize(double value, double unit) {
  const auto largest = static_cast<double>(kLargestQuantity);
  return static_cast<int64_t>(std::clamp(value * unit, -largest, largest));
}

// The least of cells << shift - to_a - to_b, over allowed cells.
MINKA_VECTORIZED
int64_t LeastOfRow(const int64_t* __restrict cells, const int64_t* __restrict to_b, int32_t count,
                   int64_t to_a, int shift) {
  int64_t least = INT64_MAX;
  for (int32_t j = 0; j < count; ++j) {
    const int64_t scaled = cells[j] == kForbidden ? 0 : cells[j] << shift;
    const int64_t rest = cells[j] == kForbidden ? INT64_MAX : scaled - to_a - to_b[j];
    least = rest < least ? rest : least;
  }
  return least;
}

}  // namespace

MessagePassing::MessagePassing(const CoreGraph& graph)
    : graph_(graph),
      priced_(graph.costs().begin(), graph.costs().end()),
      marginal_(priced_),
      messages_(graph.num_message_entries(), 0),
      prices_(graph.core().limit_bytes.size(), 0),
      shift_(std::clamp(59 - static_cast<int>(std::ceil(std::log2(graph.largest_sum()))), 0, 40)) {}

void MessagePassing::SetPrices(std::span<const double> prices) {
  const Core& core = graph_.core();
  prices_.assign(prices.begin(), prices.end());
  price_of_limit_ = 0;
  for (size_t t = 0; t < prices_.size(); ++t)
    price_of_limit_ += prices_[t] * static_cast<double>(core.limit_bytes[t]);
  const std::vector<double> sums = PriceSums(prices_);
  priced_.assign(graph_.costs().begin(), graph_.costs().end());
  for (int32_t node = 0; node < graph_.num_nodes(); ++node)
    AddMemoryPrice(core, node, sums,
                   {priced_.data() + graph_.first_choice(node),
                    static_cast<size_t>(graph_.num_choices(node))});
}

// Min-marginals of the node, then its messages to later (forward) or earlier nodes; returns what
// the sweep's bound gains.
double MessagePassing::Send(int32_t node, bool forward) {
  const int32_t count = graph_.num_choices(node);
  double* const marginal = marginal_.data() + graph_.first_choice(node);
  std::copy_n(priced_.data() + graph_.first_choice(node), count, marginal);
  const std::span<const CoreGraph::Arc> all = graph_.arcs(node);
  for (const CoreGraph::Arc& arc : all) {
    const double* const in = messages_.data() + arc.in;
    for (int32_t k = 0; k < count; ++k) marginal[k] += in[k];
  }
  const double least = *std::min_element(marginal, marginal + count);
  double gain = least;
  const int32_t num_backward = graph_.num_backward_arcs(node);
  const int32_t num_forward = static_cast<int32_t>(all.size()) - num_backward;
  const double share = 1.0 / std::max({1, num_backward, num_forward});
  base_.resize(count);
  for (const CoreGraph::Arc& arc : forward ? all.subspan(num_backward) : all.first(num_backward)) {
    const double* const in = messages_.data() + arc.in;
    for (int32_t k = 0; k < count; ++k) base_[k] = share * (marginal[k] - least) - in[k];
    const int32_t columns = graph_.num_choices(arc.other);
    double* const out = messages_.data() + arc.out;
    MinPlus(base_.data(), arc.from_here, count, columns, out);
    const double smallest = *std::min_element(out, out + columns);
    for (int32_t j = 0; j < columns; ++j) out[j] -= smallest;
    gain += smallest;
  }
  return gain;
}

void MessagePassing::AddMomentum() {
  const double momentum = num_swept_ / (num_swept_ + kMomentumDelay);
  swept_.resize(messages_.size());
  for (size_t i = 0; i < messages_.size(); ++i) {
    const double swept = messages_[i];
    if (num_swept_ > 0) messages_[i] += momentum * (swept - swept_[i]);
    swept_[i] = swept;
  }
}

double MessagePassing::Sweep() {
  AddMomentum();
  const std::span<const int32_t> order = graph_.order();
  for (const int32_t node : order) Send(node, /*forward=*/true);
  double bound = static_cast<double>(graph_.core().base_cost) - price_of_limit_;
  for (const int32_t node : std::views::reverse(order)) bound += Send(node, /*forward=*/false);
  num_swept_ = num_swept_ > 0 && bound < last_bound_ ? 0 : num_swept_ + 1;
  last_bound_ = bound;
  return bound;
}

std::vector<double> MessagePassing::ExpectedExcess(double temperature) const {
  const Core& core = graph_.core();
  std::vector<double> change(core.limit_bytes.size() + 1, 0);
  std::vector<double> weights;
  for (int32_t node = 0; node < graph_.num_nodes(); ++node) {
    if (core.usages[node].empty()) continue;
    const std::span<const double> marginal = MinMarginals(node);
    const double least = *std::ranges::min_element(marginal);
    weights.resize(marginal.size());
    double sum = 0;
    for (size_t k = 0; k < marginal.size(); ++k)
      sum += weights[k] = std::exp((least - marginal[k]) / temperature);
    for (const CoreUsage& usage : core.usages[node]) {
      const auto bytes = core.algebra.row(usage.row);
      double expected = 0;
      for (size_t k = 0; k < bytes.size(); ++k)
        expected += weights[k] * static_cast<double>(bytes[k]);
      expected /= sum;
      for (const TimeRange& range : usage.ranges) {
        change[range.begin] += expected;
        change[range.end] -= expected;
      }
    }
  }
  std::vector<double> excess(core.limit_bytes.size());
  double bytes = 0;
  for (size_t t = 0; t < excess.size(); ++t) {
    bytes += change[t];
    excess[t] = bytes - static_cast<double>(core.limit_bytes[t]);
  }
  return excess;
}

IntegerTerms MessagePassing::Terms() const {
  IntegerTerms terms = {.shift = shift_};
  const Core& core = graph_.core();
  std::vector<__int128> price_sums(prices_.size() + 1, 0);
  __int128 limit_price = 0;
  const double price_unit = std::ldexp(1, shift_ + kPriceBits);
  for (size_t t = 0; t < prices_.size(); ++t) {
    const int64_t price = std::max<int64_t>(0, Quantize(prices_[t], price_unit));
    price_sums[t + 1] = price_sums[t] + price;
    limit_price += static_cast<__int128>(price) * core.limit_bytes[t];
  }
  // An arithmetic shift rounds down; the limit's price is subtracted, so it is rounded up.
  constexpr __int128 kPriceUnit = static_cast<__int128>(1) << kPriceBits;
  terms.bound = -((limit_price + kPriceUnit - 1) >> kPriceBits);
  terms.messages.reserve(messages_.size());
  const double unit = std::ldexp(1, shift_);
  for (const double message : messages_) terms.messages.push_back(Quantize(message, unit));
  terms.node_costs.resize(graph_.total_choices());
  for (int32_t node = 0; node < graph_.num_nodes(); ++node) ReduceNode(node, price_sums, terms);
  absl::flat_hash_map<uint64_t, int32_t> edge_of_hash;
  edge_of_hash.reserve(core.edges.size());
  for (int32_t edge = 0; edge < static_cast<int32_t>(core.edges.size()); ++edge) {
    const auto [known, added] = edge_of_hash.try_emplace(HashOfEdge(terms, edge), edge);
    const bool repeated = !added && EdgesAreEqual(terms, edge, known->second);
    terms.first_equal.push_back(repeated ? known->second : edge);
    terms.edge_minimum.push_back(repeated ? terms.edge_minimum[known->second]
                                          : EdgeMinimum(terms, edge));
    terms.bound += terms.edge_minimum.back();
  }
  return terms;
}

uint64_t MessagePassing::HashOfEdge(const IntegerTerms& terms, int32_t edge) const {
  const CoreEdge& ends = graph_.core().edges[edge];
  const EdgeMessages at = graph_.edge_messages(edge);
  const auto hash = [&](int64_t begin, int32_t count) {
    return StableHash({reinterpret_cast<const char*>(terms.messages.data() + begin),
                       static_cast<size_t>(count) * sizeof(int64_t)});
  };
  return hash(at.to_a, graph_.num_choices(ends.a)) * 3 +
         hash(at.to_b, graph_.num_choices(ends.b)) * 5 + static_cast<uint64_t>(ends.table);
}

bool MessagePassing::EdgesAreEqual(const IntegerTerms& terms, int32_t edge, int32_t other) const {
  const CoreEdge& ends = graph_.core().edges[edge];
  const CoreEdge& others = graph_.core().edges[other];
  const EdgeMessages at = graph_.edge_messages(edge);
  const EdgeMessages there = graph_.edge_messages(other);
  const int64_t* const messages = terms.messages.data();
  return ends.table == others.table &&
         std::equal(messages + at.to_a, messages + at.to_a + graph_.num_choices(ends.a),
                    messages + there.to_a) &&
         std::equal(messages + at.to_b, messages + at.to_b + graph_.num_choices(ends.b),
                    messages + there.to_b);
}

// The node's exact min-marginals; what a backward sweep gave its edges to earlier nodes moves back
// into their messages.
void MessagePassing::ReduceNode(int32_t node, const std::vector<__int128>& price_sums,
                                IntegerTerms& terms) const {
  const Core& core = graph_.core();
  const std::span<const int64_t> costs = core.costs(node);
  const size_t count = costs.size();
  std::vector<__int128> marginal(count, 0);
  for (const CoreUsage& usage : core.usages[node]) {
    __int128 price = 0;
    for (const TimeRange& range : usage.ranges)
      price += price_sums[range.end] - price_sums[range.begin];
    const std::span<const int64_t> bytes = core.algebra.row(usage.row);
    for (size_t k = 0; k < count; ++k) marginal[k] += price * bytes[k];
  }
  constexpr __int128 kNever = static_cast<__int128>(1) << 100;
  for (size_t k = 0; k < count; ++k) {
    marginal[k] >>= kPriceBits;
    marginal[k] += costs[k] == kForbidden ? kNever : static_cast<__int128>(costs[k]) << shift_;
  }
  const std::span<const CoreGraph::Arc> arcs = graph_.arcs(node);
  for (const CoreGraph::Arc& arc : arcs)
    for (size_t k = 0; k < count; ++k) marginal[k] += terms.messages[arc.in + k];
  const __int128 least = *std::ranges::min_element(marginal);
  terms.bound += least;
  const int32_t num_backward = graph_.num_backward_arcs(node);
  const int32_t parts =
      std::max({1, num_backward, static_cast<int32_t>(arcs.size()) - num_backward});
  for (size_t k = 0; k < count; ++k) {
    const __int128 above = marginal[k] - least;
    const auto share = static_cast<int64_t>(std::min<__int128>(above / parts, kLargestQuantity));
    for (const CoreGraph::Arc& arc : arcs.first(num_backward)) terms.messages[arc.in + k] -= share;
    const __int128 rest = above - static_cast<__int128>(share) * num_backward;
    terms.node_costs[graph_.first_choice(node) + k] =
        static_cast<int64_t>(std::min<__int128>(rest, kLargestQuantity));
  }
}

int64_t MessagePassing::EdgeMinimum(const IntegerTerms& terms, int32_t edge) const {
  const CoreEdge& ends = graph_.core().edges[edge];
  const CostTable t = graph_.core().algebra.table(ends.table);
  const EdgeMessages at = graph_.edge_messages(edge);
  int64_t least = INT64_MAX;
  for (int32_t i = 0; i < t.num_rows; ++i)
    least = std::min(least, LeastOfRow(t.cells.data() + static_cast<size_t>(i) * t.num_columns,
                                       terms.messages.data() + at.to_b, t.num_columns,
                                       terms.messages[at.to_a + i], shift_));
  return least;
}

int64_t MessagePassing::Certify() const {
  const IntegerTerms terms = Terms();
  // Costs are integers, so the optimum is at least the bound rounded up.
  const __int128 unit = static_cast<__int128>(1) << shift_;
  const __int128 rounded = (terms.bound + unit - 1) >> shift_;
  constexpr __int128 kLeast = -(static_cast<__int128>(1) << 61);
  return graph_.core().base_cost + static_cast<int64_t>(std::max(rounded, kLeast));
}

}  // namespace minka
