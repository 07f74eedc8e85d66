#include "minka/solver/improve/decoding.h"

#include <algorithm>
#include <numeric>

namespace minka {
namespace {

constexpr int kRunsWithoutNoise = 2;
constexpr double kNoise = 0.01;

}  // namespace

Decoding::Decoding(const CoreGraph& graph, uint64_t seed)
    : graph_(graph), random_(seed), search_(graph, seed), order_(graph.num_nodes()) {
  std::iota(order_.begin(), order_.end(), 0);
}

void Decoding::Run(const Known& known, int64_t work, const std::function<bool()>&) {
  const DecodeOptions options = {.order = order_,
                                 .noise = num_runs_ < kRunsWithoutNoise ? 0 : kNoise};
  ++num_runs_;
  const Decoded decoded = Decode(known.messages, options, random_);
  if (!decoded.failed.empty()) {
    std::vector<char> is_hard(graph_.num_nodes(), 0);
    for (const int32_t node : decoded.failed) is_hard[node] = 1;
    std::ranges::stable_partition(order_, [&](int32_t node) { return is_hard[node] != 0; });
  }
  const int64_t before = search_.work();
  search_.Start(decoded.choice);
  search_.SetPrices(known.prices);
  if (!search_.feasible()) search_.Repair(work);
  decoded_ = search_.choice();
  if (search_.best()) Take(*search_.best());
  work_ += decoded.work + search_.work() - before;
}

void LeastMemory::Run(const Known&, int64_t work, const std::function<bool()>&) {
  has_run_ = true;
  work_ += work;
  const std::optional<std::vector<int32_t>> choice = SmallestExcess(graph_, seed_, work);
  if (!choice || !FitsLimit(graph_.core(), *choice)) return;
  if (const std::optional<int64_t> cost = CoreCost(graph_.core(), *choice)) Take({*choice, *cost});
}

std::optional<std::vector<int32_t>> SmallestExcess(const CoreGraph& graph, uint64_t seed,
                                                   int64_t work) {
  MessagePassing messages(graph);
  // So dear that memory alone decides.
  const std::vector<double> prices(graph.core().limit_bytes.size(), graph.largest_sum());
  messages.SetPrices(prices);
  constexpr int kSweeps = 20;
  for (int i = 0; i < kSweeps; ++i) messages.Sweep();
  Random random(seed);
  LocalSearch search(graph, seed);
  search.Start(Decode(messages, {.within_limit = false}, random).choice);
  search.SetPrices(prices);
  search.Repair(work);
  return search.least_excess();
}

}  // namespace minka
