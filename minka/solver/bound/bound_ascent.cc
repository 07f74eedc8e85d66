#include "minka/solver/bound/bound_ascent.h"

#include <algorithm>
#include <cmath>
#include <functional>

namespace minka {
namespace {

constexpr int kSweepsWithoutPrices = 10;  // without prices, to learn the scale of costs
constexpr int kSweepsPerDecoding = 4;
constexpr int kSweepsPerTemperature = 10;
constexpr double kCooling = 0.8;
constexpr double kColdest = 1e-5;  // of the first temperature
constexpr double kReheated = 3e-2;
constexpr double kStepGrowth = 1.08;
constexpr double kCollapse = 0.01;  // of the best bound: a fall by more returns to the best prices
constexpr int kMaxCollapsed = 3;    // sweeps in a row that may stay that low
constexpr double kStepShrink = 0.5;
constexpr double kSmallExcess = 0.01;   // of the limit: below this, steps shrink in proportion
constexpr double kAddedExcess = 0.002;  // of the limit: above this, a time may join the working set
constexpr int32_t kApart = 50;  // times closer than this to a member need a larger excess to join
constexpr size_t kUsualTimes = 32;      // in the working set; beyond, it grows by several at once
constexpr double kClearlyLarger = 0.7;  // the member's part of it

// Mean over nodes of the largest spread of one usage, in bytes.
double MeanUsageSpread(const Core& core) {
  double sum = 0;
  int count = 0;
  for (int32_t node = 0; node < core.num_nodes(); ++node) {
    for (const CoreUsage& usage : core.usages[node]) {
      sum += static_cast<double>(*std::ranges::max_element(core.algebra.row(usage.row)));
      ++count;
    }
  }
  return count == 0 ? 1 : std::max(1.0, sum / count);
}

// Mean over nodes of how much the choices' costs differ, extremes left out.
double MeanCostSpread(const MessagePassing& messages) {
  std::vector<double> spreads;
  for (int32_t node = 0; node < messages.graph().num_nodes(); ++node) {
    std::vector<double> costs;
    for (const double cost : messages.MinMarginals(node))
      if (cost < kHugeCost / 2) costs.push_back(cost);
    if (costs.empty()) continue;
    std::ranges::sort(costs);
    spreads.push_back(costs[costs.size() / 2] - costs[0]);
  }
  std::ranges::sort(spreads);
  double sum = 0;
  const size_t used = spreads.size() - spreads.size() / 10;
  for (size_t i = 0; i < used; ++i) sum += spreads[i];
  return used == 0 ? 1 : std::max(1.0, sum / static_cast<double>(used));
}

}  // namespace

BoundAscent::BoundAscent(const CoreGraph& graph) : messages_(graph) {
  const Core& core = graph.core();
  prices_.assign(core.limit_bytes.size(), 0);
  best_prices_ = prices_;
  step_ = prices_;
  direction_ = prices_;
  for (const int64_t bytes : core.limit_bytes)
    limit_ = std::max(limit_, static_cast<double>(bytes));
}

void BoundAscent::StartFrom(std::span<const double> prices) {
  prices_.assign(prices.begin(), prices.end());
  for (size_t t = 0; t < prices_.size(); ++t)
    if (prices_[t] > 0) working_set_.push_back(static_cast<int32_t>(t));
  messages_.SetPrices(prices_);
}

void BoundAscent::StartFromMessages(std::vector<double> messages) {
  messages_.SetMessages(std::move(messages));
  certified_ = messages_.Certify();
  best_ = static_cast<double>(certified_);
  best_prices_.assign(messages_.prices().begin(), messages_.prices().end());
  work_ += messages_.sweep_work() / 2;
}

void BoundAscent::BeginAnnealing(double temperature) {
  temperature_ = temperature;
  iterations_here_ = 0;
  for (const int32_t t : working_set_) {
    step_[t] = std::max(first_step_, 0.02 * prices_[t]);
    direction_[t] = 0;
  }
}

void BoundAscent::Run(int64_t work, const std::function<bool()>& stop) {
  const int64_t end = work_ + work;
  while (work_ < end) {
    if (iteration_ == kSweepsWithoutPrices) {
      first_temperature_ = MeanCostSpread(messages_);
      first_step_ = 0.1 * first_temperature_ / MeanUsageSpread(messages_.graph().core());
      BeginAnnealing(working_set_.empty() ? first_temperature_ : kReheated * first_temperature_);
    }
    if (iteration_ >= kSweepsWithoutPrices) StepPrices();
    const double bound = messages_.Sweep();
    last_ = bound;
    work_ += messages_.sweep_work();
    ++iteration_;
    CertifyIfBetter(bound);
    if (iteration_ % kSweepsPerDecoding == 0) DecodeGreedily();
    if (stop()) return;
  }
}

void BoundAscent::CertifyIfBetter(double bound) {
  const bool first = certified_ == INT64_MIN;
  if (!first && bound <= best_ + 1e-7 * std::abs(best_)) return;
  if (!first && bound <= best_ + 3e-4 * std::abs(best_) && iteration_ % 10 != 0) return;
  const int64_t certified = messages_.Certify();
  work_ += messages_.sweep_work() / 2;
  best_ = bound;
  if (first || certified > certified_) {
    certified_ = certified;
    best_prices_.assign(messages_.prices().begin(), messages_.prices().end());
  }
}

// Node by node, each given those before it and the messages from those behind it (Kolmogorov 2006).
void BoundAscent::DecodeGreedily() {
  const CoreGraph& graph = messages_.graph();
  std::vector<int32_t> choice(graph.num_nodes());
  std::vector<double> scores;
  for (const int32_t node : graph.order()) {
    const std::span<const double> priced = messages_.PricedCosts(node);
    scores.assign(priced.begin(), priced.end());
    for (const CoreGraph::Arc& arc : graph.arcs(node)) {
      const double* const add =
          graph.rank(arc.other) < graph.rank(node)
              ? arc.to_here + static_cast<size_t>(choice[arc.other]) * scores.size()
              : messages_.Incoming(arc);
      for (size_t k = 0; k < scores.size(); ++k) scores[k] += add[k];
    }
    choice[node] = static_cast<int32_t>(std::ranges::min_element(scores) - scores.begin());
  }
  work_ += graph.num_message_entries() + static_cast<int64_t>(graph.core().edges.size());
  const std::optional<int64_t> cost = CoreCost(graph.core(), choice);
  if (!cost || (decoded_ && decoded_->cost <= *cost)) return;
  if (!FitsLimit(graph.core(), choice)) return;
  decoded_ = {std::move(choice), *cost};
}

void BoundAscent::GrowWorkingSet(std::span<const double> excess) {
  const auto num_times = static_cast<int32_t>(excess.size());
  // At each time the excess that would have to be exceeded to join: that of members nearby.
  std::vector<double> needed(excess.size(), kAddedExcess * limit_);
  const auto block = [&](int32_t member) {
    const int32_t end = std::min(num_times, member + kApart);
    for (int32_t t = std::max(0, member - kApart + 1); t < end; ++t)
      needed[t] = std::max(needed[t], excess[member] / kClearlyLarger);
    needed[member] = HUGE_VAL;
  };
  for (const int32_t member : working_set_) block(member);
  std::vector<int32_t> candidates;
  for (int32_t t = 0; t < num_times; ++t)
    if (excess[t] > needed[t]) candidates.push_back(t);
  std::ranges::stable_sort(candidates, std::greater<>(), [&](int32_t t) { return excess[t]; });
  const size_t size = working_set_.size();
  const size_t most = size + 1 + (size > kUsualTimes ? (size - kUsualTimes) / 4 : 0);
  double dearest = 0;
  for (const int32_t t : working_set_) dearest = std::max(dearest, prices_[t]);
  for (const int32_t t : candidates) {
    if (working_set_.size() == most) return;
    if (excess[t] <= needed[t]) continue;
    working_set_.push_back(t);
    step_[t] = std::max(first_step_, 0.05 * dearest);
    direction_[t] = 0;
    block(t);
  }
}

// Steps that were too long for the present temperature are undone and shortened.
bool BoundAscent::ReturnFromCollapse() {
  constexpr double kShortened = 0.3;
  num_collapsed_ = last_ < best_ - kCollapse * std::abs(best_) ? num_collapsed_ + 1 : 0;
  if (num_collapsed_ < kMaxCollapsed) return false;
  num_collapsed_ = 0;
  prices_ = best_prices_;
  messages_.SetPrices(prices_);
  for (const int32_t t : working_set_) {
    step_[t] *= kShortened;
    direction_[t] = 0;
  }
  return true;
}

void BoundAscent::StepPrices() {
  if (prices_.empty()) return;
  if (ReturnFromCollapse()) return;
  const std::vector<double> excess = messages_.ExpectedExcess(temperature_);
  work_ += 4 * messages_.graph().total_choices() + static_cast<int64_t>(excess.size());
  if (iteration_ % 5 == 0) GrowWorkingSet(excess);
  for (const int32_t t : working_set_) {
    const double direction = excess[t];
    if (direction * direction_[t] > 0) step_[t] *= kStepGrowth;
    if (direction * direction_[t] < 0) step_[t] *= kStepShrink;
    direction_[t] = direction;
    const double size = std::min(1.0, std::abs(direction) / (kSmallExcess * limit_));
    prices_[t] = std::max(0.0, prices_[t] + std::copysign(step_[t] * size, direction));
  }
  messages_.SetPrices(prices_);
  if (++iterations_here_ % kSweepsPerTemperature != 0) return;
  temperature_ *= kCooling;
  for (const int32_t t : working_set_) step_[t] *= kCooling;
  if (temperature_ > kColdest * first_temperature_) return;
  stalled_ = static_cast<double>(certified_) < static_cast<double>(certified_before_annealing_) +
                                                   1e-5 * std::abs(static_cast<double>(certified_));
  certified_before_annealing_ = certified_;
  prices_ = best_prices_;
  messages_.SetPrices(prices_);
  BeginAnnealing(kReheated * first_temperature_);
}

}  // namespace minka
