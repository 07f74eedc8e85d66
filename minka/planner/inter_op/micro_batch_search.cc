#include "minka/planner/inter_op/micro_batch_search.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "minka/base/status.h"

namespace minka {
namespace {

// What is faster by no more than this part is not looked for.
constexpr double kNearlyEqual = 0.01;

class CountSearcher {
 public:
  explicit CountSearcher(const CountSearch& search) : search_(search) {
    for (const int64_t count : search.counts) tried_.push_back({.num_micro_batches = count});
  }

  std::vector<TriedCount> Run() && {
    while (!search_.is_over()) {
      TriedCount* const best = BestEstimated();
      const double to_beat =
          (1 - kNearlyEqual) * (best ? std::min(best->at_least_us, best_us_) : best_us_);
      if (TriedCount* const next = UnknownBelow(to_beat)) {
        Estimate(*next);
      } else if (best && best->at_least_us < (1 - kNearlyEqual) * best_us_) {
        best->state == CountState::kEstimated ? EstimateFitting(*best) : Plan(*best);
      } else if (TriedCount* const largest = LargestTooLarge(); largest && std::isinf(best_us_)) {
        Plan(*largest);
      } else {
        break;
      }
    }
    return std::move(tried_);
  }

 private:
  TriedCount* BestEstimated() {
    TriedCount* best = nullptr;
    for (TriedCount& tried : tried_) {
      const bool is_open =
          tried.state == CountState::kEstimated || tried.state == CountState::kEstimatedToFit;
      if (is_open && (!best || tried.at_least_us < best->at_least_us)) best = &tried;
    }
    return best;
  }

  // The smallest number first, since it divides all others, then the middle of those that may do.
  TriedCount* UnknownBelow(double us) {
    std::vector<TriedCount*> below;
    for (TriedCount& tried : tried_) {
      if (tried.state == CountState::kUnknown && tried.at_least_us < us) below.push_back(&tried);
    }
    if (below.empty()) return nullptr;
    return below.size() == tried_.size() ? below.front() : below[below.size() / 2];
  }

  TriedCount* LargestTooLarge() {
    TriedCount* largest = nullptr;
    for (TriedCount& tried : tried_) {
      if (tried.state == CountState::kTooLarge) largest = &tried;
    }
    return largest;
  }

  void Estimate(TriedCount& tried) {
    const absl::StatusOr<CountEstimate> estimate = search_.estimate(tried.num_micro_batches);
    if (!estimate.ok()) return Fail(tried, estimate.status());
    tried.state = CountState::kEstimated;
    tried.at_least_us = estimate->step_time_us;
    for (TriedCount& other : tried_) {
      if (other.state != CountState::kUnknown ||
          other.num_micro_batches % tried.num_micro_batches != 0)
        continue;
      // Each of its micro-batches has this part of the work at least.
      const double part = static_cast<double>(tried.num_micro_batches) /
                          static_cast<double>(other.num_micro_batches);
      other.at_least_us =
          std::max(other.at_least_us, estimate->work_us + part * estimate->waits_us);
    }
  }

  void EstimateFitting(TriedCount& tried) {
    const auto estimate = search_.estimate_fitting(tried.num_micro_batches);
    if (!estimate.ok()) return Fail(tried, estimate.status());
    if (!*estimate) return RefuseDivisorsOf(tried.num_micro_batches);
    tried.state = CountState::kEstimatedToFit;
    tried.at_least_us = std::max(tried.at_least_us, **estimate);
  }

  // Larger micro-batches need as much memory.
  void RefuseDivisorsOf(int64_t count) {
    for (TriedCount& tried : tried_) {
      if (tried.state == CountState::kPlanned || tried.state == CountState::kFailed) continue;
      if (count % tried.num_micro_batches == 0) tried.state = CountState::kTooLarge;
    }
  }

  void Plan(TriedCount& tried) {
    const absl::StatusOr<CountPlan> plan = search_.plan(tried.num_micro_batches);
    if (!plan.ok()) return Fail(tried, plan.status());
    tried.state = CountState::kPlanned;
    tried.plan = *plan;
    if (plan->fits) {
      best_us_ = std::min(best_us_, plan->step_time_us);
      return;
    }
    for (TriedCount& other : tried_) {
      if (other.state == CountState::kPlanned || tried.num_micro_batches % other.num_micro_batches)
        continue;
      Fail(other, ResourceExhausted("not planned: {} micro-batches need too much memory already",
                                    tried.num_micro_batches));
    }
  }

  static void Fail(TriedCount& tried, absl::Status failure) {
    tried.state = CountState::kFailed;
    tried.failure = std::move(failure);
  }

  const CountSearch& search_;
  std::vector<TriedCount> tried_;
  double best_us_ = std::numeric_limits<double>::infinity();  // of plans that fit
};

}  // namespace

std::vector<TriedCount> SearchCounts(const CountSearch& search) {
  return CountSearcher(search).Run();
}

}  // namespace minka
