#include "minka/planner/inter_op/remat_search.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "fmt/format.h"

namespace minka {
namespace {

class Search {
 public:
  Search(const PlanWithRemat& plan, const RematSearchOptions& options)
      : plan_(plan), options_(options) {
    for (size_t layer = 0; layer < options.candidates.size(); ++layer) {
      if (options.candidates[layer] != RematPolicy::kNone) layers_.push_back(layer);
    }
  }

  SearchResult<Plan> Run() && {
    if (Presses() && !layers_.empty()) {
      const int num_layers = static_cast<int>(layers_.size());
      SearchRow(2 * num_layers, [&](int n) { return DotsThenAll(n); });
      SearchRow(num_layers, [&](int n) { return FirstAll(n); });
    }
    return std::move(*this).Best();
  }

 private:
  enum class Limit { kNone, kAsked };
  struct Trial {
    RematChoice choice;
    Limit limit = Limit::kNone;
    auto operator<=>(const Trial&) const = default;
  };

  RematChoice FirstAll(int num_layers) const {
    RematChoice choice(options_.candidates.size(), RematPolicy::kNone);
    for (int i = 0; i < num_layers; ++i) choice[layers_[i]] = RematPolicy::kAll;
    return choice;
  }
  RematChoice DotsThenAll(int n) const {
    RematChoice choice(options_.candidates.size(), RematPolicy::kNone);
    RecomputeFirst(layers_, n, choice);
    return choice;
  }

  bool Fits(const SearchResult<Plan>& plan) const {
    return plan.ok() && (!options_.memory_limit_bytes ||
                         plan->peak_memory_bytes <= *options_.memory_limit_bytes);
  }

  const SearchResult<Plan>& Try(const RematChoice& choice, Limit limit) {
    const Trial trial{choice, limit};
    const auto found = tried_.find(trial);
    if (found != tried_.end()) return found->second;
    order_.push_back(trial);
    const std::optional<int64_t> bytes =
        limit == Limit::kAsked ? options_.memory_limit_bytes : std::nullopt;
    return tried_.emplace(trial, plan_(choice, bytes)).first->second;
  }

  // Does nothing fit without rematerialisation, or only at a cost in time? Errors that no memory
  // mends are left to the caller.
  bool Presses() {
    const SearchResult<Plan>& plan = Try({}, Limit::kAsked);
    if (!plan.ok()) return plan.status().smallest_limit_bytes.has_value();
    if (!Fits(plan)) return true;
    if (plan->memory_price <= 0) return false;
    const SearchResult<Plan>& unlimited = Try({}, Limit::kNone);
    return unlimited.ok() && unlimited->objective < plan->objective * (1 - options_.gap);
  }

  // `row` from 1 to `last`, by growing recomputation.
  template <typename Row>
  void SearchRow(int last, Row row) {
    const auto fits = [&](int n, Limit limit) { return Fits(Try(row(n), limit)); };
    if (options_.is_over()) return;
    if (fits(last, Limit::kNone)) {
      const auto excess = [&](int n) { return Excess(Try(row(n), Limit::kNone)); };
      TryLess(LeastThatFits(last, excess), row);
    } else if (!options_.is_over() && fits(last, Limit::kAsked)) {
      Bisect(last, [&](int n) { return fits(n, Limit::kAsked); });
    }
  }

  // The least that is enough, as far as it may be searched; `last` is.
  template <typename IsEnough>
  int Bisect(int last, IsEnough is_enough) {
    int too_little = 0, enough = last;
    while (enough - too_little > 1 && !options_.is_over()) {
      const int middle = (too_little + enough) / 2;
      (is_enough(middle) ? enough : too_little) = middle;
    }
    return enough;
  }

  // Bytes above the limit; nullopt where there is no plan.
  std::optional<double> Excess(const SearchResult<Plan>& plan) const {
    if (!plan.ok()) return std::nullopt;
    return static_cast<double>(plan->peak_memory_bytes) -
           static_cast<double>(options_.memory_limit_bytes.value_or(INT64_MAX));
  }

  // Of nothing recomputed, at least.
  std::optional<double> ExcessOfNone() {
    const SearchResult<Plan>& plan = Try({}, Limit::kAsked);
    if (plan.ok()) return std::max(0.0, *Excess(plan));
    const std::optional<int64_t>& least = plan.status().smallest_limit_bytes;
    if (!least || !options_.memory_limit_bytes) return std::nullopt;
    return std::max(0.0, static_cast<double>(*least - *options_.memory_limit_bytes));
  }

  // The same; each layer saves about as much, so that what is tried next is where a line through
  // both ends says, unless the last try left nearly all that was left. At first, where one end is
  // hardly known, a little behind the middle: few may be tried, and what fits is an answer.
  template <typename ExcessOf>
  int LeastThatFits(int last, ExcessOf excess_of) {
    int too_little = 0, enough = last;
    std::optional<double> excess = ExcessOfNone();
    double room = -*excess_of(last);
    bool narrows = false;
    while (enough - too_little > 1 && !options_.is_over()) {
      const int left = enough - too_little;
      int next = too_little + left / 2 + left / 16;
      if (excess && narrows) {
        const double share = *excess / std::max(1.0, *excess + room);
        next = std::clamp(too_little + static_cast<int>(std::ceil(share * left)), too_little + 1,
                          enough - 1);
      }
      const std::optional<double> of_next = excess_of(next);
      if (of_next && *of_next <= 0) {
        enough = next;
        room = -*of_next;
      } else {
        too_little = next;
        excess = of_next;
      }
      narrows = 4 * (enough - too_little) <= 3 * left + 1;
    }
    return enough;
  }

  // Less recomputation under the limit, in growing steps.
  template <typename Row>
  void TryLess(int least, Row row) {
    double best = Try(row(least), Limit::kNone)->objective;
    for (int step = 1; least - step > 0 && !options_.is_over(); step *= 2) {
      const SearchResult<Plan>& plan = Try(row(least - step), Limit::kAsked);
      if (!Fits(plan) || plan->objective >= best) return;
      best = plan->objective;
    }
  }

  SearchResult<Plan> Best() && {
    const SearchResult<Plan>* best = &tried_.at(order_.front());
    double seconds = 0;
    std::set<RematChoice> choices;
    for (const Trial& trial : order_) {
      const SearchResult<Plan>& plan = tried_.at(trial);
      if (plan.ok()) seconds += plan->search_seconds;
      const bool is_candidate = trial.limit == Limit::kAsked || Fits(plan);
      if (is_candidate && IsBetter(plan, *best)) best = &plan;
      choices.insert(trial.choice);
    }
    if (!best->ok()) return best->status();
    Plan plan = **best;
    plan.search_seconds = seconds;
    if (choices.size() > 1) {
      plan.gap.reset();
      plan.notes.push_back(fmt::format("{} choices of what to recompute were planned; {}",
                                       choices.size(), kBoundOfOneChoice));
    }
    return plan;
  }

  bool IsBetter(const SearchResult<Plan>& plan, const SearchResult<Plan>& other) const {
    if (!plan.ok() || !other.ok()) {
      return plan.ok() || (!other.ok() && Needs(plan.status()) < Needs(other.status()));
    }
    if (Fits(plan) != Fits(other)) return Fits(plan);
    if (!Fits(plan)) return plan->peak_memory_bytes < other->peak_memory_bytes;
    return plan->objective < other->objective;
  }

  static int64_t Needs(const Refusal& refusal) {
    return refusal.smallest_limit_bytes.value_or(INT64_MAX);
  }

  const PlanWithRemat& plan_;
  const RematSearchOptions& options_;
  std::vector<size_t> layers_;  // that may be rematerialised
  std::map<Trial, SearchResult<Plan>> tried_;
  std::vector<Trial> order_;
};

}  // namespace

SearchResult<Plan> SearchRemat(const PlanWithRemat& plan, const RematSearchOptions& options) {
  return Search(plan, options).Run();
}

void RecomputeFirst(std::span<const size_t> layers, int n, RematChoice& choice) {
  const int num_layers = static_cast<int>(layers.size());
  for (int i = 0; i < std::min(n, num_layers); ++i) choice[layers[i]] = RematPolicy::kDots;
  for (int i = 0; i < n - num_layers; ++i) choice[layers[i]] = RematPolicy::kAll;
}

}  // namespace minka
