#include "minka/planner/inter_op/micro_batch_search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <ranges>
#include <utility>

#include "minka/base/status.h"

namespace minka {
namespace {

// Of what a chord says, see RaiseToChord, a step takes so much at least: in all of a thousand
// random workloads, while 0.92 is too much for three.
constexpr double kOfChord = 0.9;
// Of what RaiseByWorkOfMore says, that much is counted: too much for two of a thousand random
// workloads, while 0.5 is for sixteen.
constexpr double kOfWorkOfMore = 0.25;
// See RaiseBeyondSlower. So much leaves out the fastest of six of a thousand random workloads, 1.03
// of two, but with that three of four Wide ResNets ask for a third more estimates.
constexpr double kSlower = 1.01;
// What needs more of its limits is likely not to fit, whatever is recomputed: of layers of models
// of text and pictures that leaves a third to an eleventh.
constexpr double kLikelyTooLarge = 4;
// Where all needs so many times the limits, estimates may be too high by the rest.
constexpr double kOfLeastPart = 0.9;
// So many are estimated side by side, though not all may turn out to be asked for: for each a step
// is prepared and cut on one thread.
constexpr size_t kAtOnce = 2;

class CountSearcher {
 public:
  explicit CountSearcher(const CountSearch& search)
      : search_(search), best_us_(search.faster_than_us) {
    for (const int64_t count : search.counts) tried_.push_back({.num_micro_batches = count});
    known_.resize(tried_.size());
  }

  std::vector<TriedCount> Run() && {
    while (!search_.is_over()) {
      TriedCount* const best = BestEstimated();
      const double to_beat =
          (1 - kNearlyEqual) * (best ? std::min(best->at_least_us, best_us_) : best_us_);
      RaiseToChord();
      RaiseBeyondSlower();
      RaiseByWorkOfMore();
      if (const std::vector<TriedCount*> next = UnknownBelow(to_beat); !next.empty()) {
        Estimate(next);
      } else if (best) {
        best->state == CountState::kEstimated ? FindFitting(*best) : Plan(*best);
      } else if (TriedCount* const largest = LargestTooLarge(); largest && std::isinf(best_us_)) {
        Plan(*largest);
      } else {
        break;
      }
    }
    return std::move(tried_);
  }

 private:
  // Of a number without a plan.
  struct Known {
    double free_us = 0;  // a step at least, whatever memory it needs
    // What fitting into memory adds to that at least: so much, or such a part of it where that is
    // less.
    double saving_us = 0, saving_part = 0;
    std::optional<double> work_us;  // as estimated
    double part_of_limits = 0;      // as estimated
  };

  Known& KnownOf(const TriedCount& tried) { return known_[&tried - tried_.data()]; }
  void Raise(TriedCount& tried) {
    const Known& known = KnownOf(tried);
    const double saving_us = std::min(known.saving_us, known.saving_part * known.free_us);
    tried.at_least_us = std::max(tried.at_least_us, known.free_us + saving_us);
  }

  // In how many parts the number's micro-batches split evenly, at most.
  int64_t NumParts(const TriedCount& tried) const {
    return std::gcd(search_.counts.back() / tried.num_micro_batches,
                    static_cast<int64_t>(search_.num_devices));
  }
  // On any part of the devices.
  bool SplitsNoBetter(const TriedCount& one, const TriedCount& other) const {
    return NumParts(other) % NumParts(one) == 0;
  }
  // Does a step in micro-batches of the first number need no less memory, whatever is saved?
  bool NeedsNoLess(const TriedCount& fewer, const TriedCount& more) const {
    return more.num_micro_batches % fewer.num_micro_batches == 0 ||
           (fewer.num_micro_batches < more.num_micro_batches && SplitsNoBetter(fewer, more));
  }

  // By one pipeline a step takes its work, and for one micro-batch its meshes wait: over 1 / number
  // of micro-batches a straight line. The fastest of all pipelines is concave there, so that
  // between two numbers it lies above their chord, nearly, but for the work that larger
  // micro-batches save. The two: the fewest, and those estimated to be the fastest.
  void RaiseToChord() {
    size_t fastest = 0;
    for (size_t i = 0; i < known_.size(); ++i) {
      if (known_[i].work_us && known_[i].free_us < known_[fastest].free_us) fastest = i;
    }
    const Known &few = known_.front(), &most = known_[fastest];
    if (!few.work_us || !most.work_us) return;
    const auto part = [&](size_t i) {
      return 1 / static_cast<double>(tried_[i].num_micro_batches);
    };
    const double saved_us = std::max(0.0, *most.work_us - *few.work_us);
    for (size_t i = 1; i < fastest; ++i) {
      if (tried_[i].state != CountState::kUnknown) continue;
      const double along = (part(i) - part(fastest)) / (part(0) - part(fastest));
      const double chord_us = most.free_us + along * (few.free_us - most.free_us);
      known_[i].free_us = std::max(known_[i].free_us, kOfChord * (chord_us - saved_us));
      Raise(tried_[i]);
    }
  }

  // Fewer micro-batches than the best number wait longer the fewer they are, more of them take more
  // work the more they are: beyond one that takes kSlower of what a nearer one takes, steps hardly
  // take less.
  void RaiseBeyondSlower() {
    for (size_t near = 0; near < tried_.size(); ++near) {
      if (!known_[near].work_us) continue;
      for (size_t far = 0; far < tried_.size(); ++far) {
        if (!known_[far].work_us || known_[far].free_us < kSlower * known_[near].free_us) continue;
        const size_t begin = far < near ? 0 : far + 1, end = far < near ? far : tried_.size();
        for (size_t i = begin; i < end; ++i) {
          if (tried_[i].state != CountState::kUnknown || !SplitsNoBetter(tried_[i], tried_[far]))
            continue;
          known_[i].free_us = std::max(known_[i].free_us, known_[far].free_us);
          Raise(tried_[i]);
        }
      }
    }
  }

  // Each micro-batch more takes some work of its own, about as much as between two smaller numbers
  // that split as well.
  void RaiseByWorkOfMore() {
    for (TriedCount& tried : tried_) {
      if (tried.state != CountState::kUnknown) continue;
      const TriedCount *before = nullptr, *last = nullptr;
      for (const TriedCount* smaller = tried_.data(); smaller != &tried; ++smaller) {
        if (KnownOf(*smaller).work_us && SplitsNoBetter(tried, *smaller))
          before = std::exchange(last, smaller);
      }
      if (before == nullptr) continue;
      const double work_us = *KnownOf(*last).work_us;
      const auto num_micro_batches = [](const TriedCount& of) {
        return static_cast<double>(of.num_micro_batches);
      };
      const double us_of_each = (work_us - *KnownOf(*before).work_us) /
                                (num_micro_batches(*last) - num_micro_batches(*before));
      const double num_more = num_micro_batches(tried) - num_micro_batches(*last);
      Known& known = KnownOf(tried);
      known.free_us = std::max(known.free_us, work_us + kOfWorkOfMore * num_more * us_of_each);
      Raise(tried);
    }
  }

  // By estimates, of which plans take about the same part; of more than the estimate only where it
  // takes time to find how memory is saved, since the next one may miss by less.
  bool MayBeFaster(const TriedCount& tried) {
    const bool is_at_hand =
        tried.state == CountState::kEstimatedToFit || KnownOf(tried).part_of_limits <= 1;
    const double part = part_taken_.value_or(1);
    return (is_at_hand ? std::min(1.0, part) : part) * tried.at_least_us <
           (1 - kNearlyEqual) * best_us_;
  }

  // Of those without a plan that may be faster. How memory is saved takes time to find, so that of
  // those that are nearly as fast the one that has to save least comes first.
  TriedCount* BestEstimated() {
    std::vector<TriedCount*> open;
    for (TriedCount& tried : tried_) {
      const bool is_estimated =
          tried.state == CountState::kEstimated || tried.state == CountState::kEstimatedToFit;
      if (is_estimated && MayBeFaster(tried)) open.push_back(&tried);
    }
    if (open.empty()) return nullptr;
    const auto at_least_us = [](const TriedCount* tried) { return tried->at_least_us; };
    const double near_us =
        std::ranges::min(open | std::views::transform(at_least_us)) / (1 - kNearlyEqual);
    std::erase_if(open, [&](const TriedCount* tried) { return tried->at_least_us > near_us; });
    return *std::ranges::min_element(open, {}, [&](const TriedCount* tried) {
      const bool fits = tried->state == CountState::kEstimatedToFit;
      return std::pair(fits ? 1 : std::max(1.0, KnownOf(*tried).part_of_limits),
                       tried->at_least_us);
    });
  }

  // Of those that may do one in the middle, or the smallest, then what is nearest to the best.
  // Where the fewest of those known are the best, the smallest number, too, which says something of
  // all in between.
  std::vector<TriedCount*> UnknownBelow(double us) {
    std::vector<TriedCount*> below;
    const TriedCount *best = nullptr, *fewest = nullptr;
    int num_known = 0;
    for (TriedCount& tried : tried_) {
      if (tried.state == CountState::kUnknown && tried.at_least_us < us && !WaitsForMemory(tried))
        below.push_back(&tried);
      if (!KnownOf(tried).work_us) continue;
      ++num_known;
      if (fewest == nullptr) fewest = &tried;
      if (best == nullptr || KnownOf(tried).free_us < KnownOf(*best).free_us) best = &tried;
    }
    if (best == nullptr && search_.smallest_first && !below.empty()) return {below.front()};
    if (below.size() <= kAtOnce) return below;
    if (best == nullptr) return {below[(below.size() + 1) / 2]};
    TriedCount* const smallest = below.front();
    const bool is_far = best - smallest > static_cast<ptrdiff_t>(kAtOnce);
    std::ranges::stable_sort(below, {},
                             [&](const TriedCount* tried) { return std::abs(tried - best); });
    below.resize(kAtOnce);
    if (num_known > 1 && best == fewest && is_far) below.back() = smallest;
    return below;
  }

  // Is it likely to be too large, as a larger number is that may turn out to fit?
  bool WaitsForMemory(const TriedCount& tried) {
    return std::ranges::any_of(tried_, [&](TriedCount& other) {
      return other.state == CountState::kEstimated && MayBeFaster(other) &&
             KnownOf(other).part_of_limits > kLikelyTooLarge &&
             other.num_micro_batches % tried.num_micro_batches == 0;
    });
  }

  TriedCount* LargestTooLarge() {
    TriedCount* largest = nullptr;
    for (TriedCount& tried : tried_) {
      if (tried.state == CountState::kTooLarge && KnownOf(tried).work_us) largest = &tried;
    }
    return largest;
  }

  void Estimate(const std::vector<TriedCount*>& tried) {
    std::vector<int64_t> counts;
    for (const TriedCount* of : tried) counts.push_back(of->num_micro_batches);
    const std::vector<absl::StatusOr<CountEstimate>> estimates = search_.estimate(counts);
    for (size_t i = 0; i < tried.size(); ++i) Learn(*tried[i], estimates[i]);
  }

  void Learn(TriedCount& tried, const absl::StatusOr<CountEstimate>& estimate) {
    if (!estimate.ok()) return Fail(tried, estimate.status());
    tried.state = CountState::kEstimated;
    KnownOf(tried) = {.free_us = estimate->step_time_us,
                      .saving_us = KnownOf(tried).saving_us,
                      .saving_part = KnownOf(tried).saving_part,
                      .work_us = estimate->work_us,
                      .part_of_limits = estimate->part_of_limits};
    tried.at_least_us = 0;
    Raise(tried);
    for (TriedCount& other : tried_) {
      if (other.state != CountState::kUnknown ||
          other.num_micro_batches % tried.num_micro_batches != 0)
        continue;
      // Each of its micro-batches has this part of the work at least.
      const double part = static_cast<double>(tried.num_micro_batches) /
                          static_cast<double>(other.num_micro_batches);
      Known& known = KnownOf(other);
      known.free_us = std::max(known.free_us, estimate->work_us + part * estimate->waits_us);
      Raise(other);
    }
  }

  // Unless little has to be saved and what that takes at least is known, of the largest multiple
  // first that has to save memory, too: if that does not fit, neither does this one; if it does,
  // saving takes this one as long at least.
  void FindFitting(TriedCount& tried) {
    const Known& known = KnownOf(tried);
    if (known.saving_us > 0 && known.part_of_limits <= kLikelyTooLarge)
      return EstimateFitting(tried);
    TriedCount* first = &tried;
    for (TriedCount& other : tried_) {
      const bool is_open =
          other.state == CountState::kUnknown || other.state == CountState::kEstimated;
      if (!is_open || other.num_micro_batches % tried.num_micro_batches != 0) continue;
      const double part = known.part_of_limits * static_cast<double>(tried.num_micro_batches) /
                          static_cast<double>(other.num_micro_batches);
      if (part > 1) first = &other;
    }
    first->state == CountState::kUnknown ? Estimate({first}) : EstimateFitting(*first);
  }

  void EstimateFitting(TriedCount& tried) {
    const auto estimate = search_.estimate_fitting(tried.num_micro_batches);
    if (!estimate.ok()) return Fail(tried, estimate.status());
    if (!*estimate) return RefuseTooLarge(tried);
    tried.state = CountState::kEstimatedToFit;
    tried.at_least_us = std::max(tried.at_least_us, **estimate);
    // As much is recomputed for what needs as much.
    const double saving_us = **estimate - KnownOf(tried).free_us;
    const double saving_part = saving_us / KnownOf(tried).free_us;
    for (TriedCount& other : tried_) {
      if (!NeedsNoLess(other, tried)) continue;
      if (other.state != CountState::kUnknown && other.state != CountState::kEstimated) continue;
      Known& known = KnownOf(other);
      known.saving_us = std::max(known.saving_us, saving_us);
      known.saving_part = std::max(known.saving_part, saving_part);
      Raise(other);
    }
  }

  // Smaller micro-batches need this part of it at least, unless they split more evenly.
  void RefuseTooLarge(const TriedCount& refused) {
    const double too_few = kOfLeastPart * static_cast<double>(refused.num_micro_batches) *
                           search_.least_part(refused.num_micro_batches);
    for (TriedCount& tried : tried_) {
      if (tried.state != CountState::kUnknown && tried.state != CountState::kEstimated) continue;
      const bool is_too_few =
          static_cast<double>(tried.num_micro_batches) < too_few && SplitsNoBetter(tried, refused);
      if (is_too_few || NeedsNoLess(tried, refused)) tried.state = CountState::kTooLarge;
    }
  }

  void Plan(TriedCount& tried) {
    const absl::StatusOr<CountPlan> plan = search_.plan(tried.num_micro_batches);
    // It was to beat a plan.
    if (absl::IsAborted(plan.status()) && std::isfinite(best_us_))
      best_us_ = std::min(best_us_, tried.at_least_us);
    if (!plan.ok()) return Fail(tried, plan.status());
    tried.state = CountState::kPlanned;
    tried.plan = *plan;
    if (plan->fits) {
      best_us_ = std::min(best_us_, plan->step_time_us);
      const double part = plan->step_time_us / tried.at_least_us;
      part_taken_ = std::min(part_taken_.value_or(part), part);
      return;
    }
    for (TriedCount& other : tried_) {
      if (other.state == CountState::kPlanned || !NeedsNoLess(other, tried)) continue;
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
  std::vector<Known> known_;  // parallel to tried_
  double best_us_;  // of plans that fit, or to be beaten, or estimated of what is too slow
  std::optional<double> part_taken_;  // the least that a plan took of what was estimated
};

}  // namespace

std::vector<TriedCount> SearchCounts(const CountSearch& search) {
  return CountSearcher(search).Run();
}

}  // namespace minka
