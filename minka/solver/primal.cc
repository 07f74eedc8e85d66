#include "minka/solver/primal.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace minka {
namespace {

constexpr int64_t kSweepsPerPerturbation = 100;
constexpr int64_t kLeastSweeps = 5;  // at a time; the work is saved up for them
constexpr int kMostInVain = 8;       // perturbations; after them, one round in so many tries more

}  // namespace

PrimalSearch::PrimalSearch(const CoreGraph& graph, uint64_t seed)
    : graph_(graph),
      random_(seed),
      seed_(seed),
      search_(graph, seed + 1),
      neighbourhoods_(graph),
      hard_first_(graph.num_nodes()) {
  std::iota(hard_first_.begin(), hard_first_.end(), 0);
}

void PrimalSearch::StartFrom(std::span<const int32_t> choice) { search_.Start(choice); }

void PrimalSearch::Run(const PrimalInput& input, int64_t work, const std::function<bool()>& stop) {
  if (graph_.num_nodes() == 0) {
    search_.Start({});
    return;
  }
  const int64_t end = this->work() + work;
  TryExactly(input, work / 8, stop);
  if (!complete_) ConstructPerturbed(input, work / 4);
  while (this->work() < end && !complete_ && (round_ == 0 || !stop())) {
    const int64_t left = end - this->work();
    if (!best() || round_ % 3 == 0)
      Construct(input, left / 2);
    else
      search_.Start(best()->choice);
    // Where prices do not lead to a choice within the limit, memory alone may.
    if (!best() && !tried_for_memory_) ConstructForMemory(left / 2);
    ++round_;
    if (best()) {
      const std::optional<CoreAnswer> better =
          neighbourhoods_.Improve(input.messages, *best(), (end - this->work()) / 2, random_, stop);
      if (better) search_.Offer(*better);
    }
    if (search_.feasible()) Anneal(input, std::max<int64_t>(100'000, end - this->work()), stop);
  }
}

void PrimalSearch::TryExactly(const PrimalInput& input, int64_t work,
                              const std::function<bool()>& stop) {
  const std::optional<int64_t> cost = best() ? std::optional(best()->cost) : std::nullopt;
  const ExactOutcome outcome = SearchExactly(input.messages, cost, work, stop);
  other_work_ += outcome.work;
  if (outcome.answer) search_.Offer(*outcome.answer);
  complete_ = outcome.complete;
}

// A decoded choice, repaired if it has to be.
void PrimalSearch::Construct(const PrimalInput& input, int64_t work) {
  DecodeOptions options = {.order = hard_first_, .noise = round_ < 2 ? 0 : 0.01};
  const Decoded decoded = Decode(input.messages, options, random_);
  other_work_ += decoded.work;
  if (!decoded.failed.empty()) {
    std::vector<char> hard(graph_.num_nodes(), 0);
    for (const int32_t node : decoded.failed) hard[node] = 1;
    std::ranges::stable_partition(hard_first_, [&](int32_t node) { return hard[node] != 0; });
  }
  search_.Start(decoded.choice);
  search_.SetPrices(input.prices);
  if (!search_.feasible()) search_.Repair(work);
  constructed_ = search_.choice();
}

void PrimalSearch::ConstructPerturbed(const PrimalInput& input, int64_t work) {
  if (perturbed_in_vain_ >= kMostInVain && round_ % kMostInVain != 0) return;
  perturbed_credit_ += work;
  const int64_t sweeps = perturbed_credit_ / input.messages.sweep_work();
  if (sweeps < kLeastSweeps) return;
  perturbed_credit_ = 0;
  if (!perturbed_) {
    const auto cost = static_cast<double>(input.lower_bound - graph_.core().base_cost);
    const double scale = std::pow(10.0, -0.5 - 2 * random_.Unit());
    perturbed_.emplace(input.messages);
    perturbed_->Perturb(scale * std::max(1.0, cost) / graph_.num_nodes(), random_);
    perturbed_sweeps_ = 0;
  }
  for (int64_t i = 0; i < sweeps; ++i) perturbed_->Sweep();
  other_work_ += sweeps * perturbed_->sweep_work();
  perturbed_sweeps_ += sweeps;
  const int64_t before = best() ? best()->cost : INT64_MAX;
  const Decoded decoded = Decode(*perturbed_, {}, random_);
  other_work_ += decoded.work;
  search_.Start(decoded.choice);
  search_.SetPrices(input.prices);
  if (!search_.feasible()) search_.Repair(work);
  constructed_ = search_.choice();
  if (perturbed_sweeps_ < kSweepsPerPerturbation) return;
  perturbed_.reset();
  const bool gained = best() && best()->cost < before;
  perturbed_in_vain_ = gained ? 0 : perturbed_in_vain_ + 1;
}

void PrimalSearch::ConstructForMemory(int64_t work) {
  tried_for_memory_ = true;
  const std::optional<std::vector<int32_t>> choice = SmallestExcess(graph_, seed_, work);
  other_work_ += work;
  if (choice) search_.Start(*choice);
}

void PrimalSearch::Anneal(const PrimalInput& input, int64_t work,
                          const std::function<bool()>& stop) {
  search_.SetPrices(input.prices);
  const int64_t quarter = work / 4;
  search_.Improve({.price_weight = 1, .work = quarter});
  if (stop()) return;
  search_.Improve({.price_weight = 0, .work = quarter});
  if (stop()) return;
  const double gap = static_cast<double>(best()->cost - input.lower_bound);
  // The mean gap per node is the scale of what is still to gain; hotter and colder walks find
  // different things.
  const double temperature =
      std::pow(10.0, -2.5 * random_.Unit()) * std::max(0.0, gap) / graph_.num_nodes();
  search_.Improve({.price_weight = 1, .temperature = temperature, .work = quarter});
  if (stop()) return;
  search_.Improve({.price_weight = 1, .work = quarter / 2});
  search_.Improve({.price_weight = 0, .work = quarter / 2});
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
