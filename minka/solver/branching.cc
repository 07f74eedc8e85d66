#include "minka/solver/branching.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "minka/solver/core_search.h"

namespace minka {
namespace {

constexpr int64_t kLargerNextCase = 4;  // a case below the goal is searched for longer
constexpr int64_t kMostWorkPerCase = int64_t{1} << 40;
constexpr int kRoundsPerCase = 4;

}  // namespace

int32_t NodeToBranchOn(const std::vector<std::vector<int64_t>>& choices) {
  return static_cast<int32_t>(
      std::ranges::max_element(choices, {}, [](const auto& of_node) { return of_node.size(); }) -
      choices.begin());
}

Branching::Branching(const Core& core, std::vector<std::vector<int64_t>> choices, int32_t node,
                     int64_t case_work, uint64_t seed)
    : core_(core), choices_(std::move(choices)), node_(node), case_work_(case_work), seed_(seed) {
  for (const int64_t choice : choices_[node]) cases_.push_back({.choice = choice});
}

void Branching::Run(const CoreAnswer& best, int64_t goal, const Probing::MakeSearch& make_search,
                    int64_t work, const std::function<bool()>& stop) {
  if (!found_ || best.cost < found_->cost) found_ = best;
  const int64_t end = work_ + work;
  while (work_ < end && bound_ < goal && !stop()) {
    if (next_ == cases_.size()) {
      next_ = 0;
      case_work_ = std::min(kMostWorkPerCase, case_work_ * kLargerNextCase);
    }
    Case& searched = cases_[next_++];
    work_ += 1;
    if (searched.bound >= goal) continue;
    Search(searched, goal, make_search, stop);
    // What the choices left out cost is more than the answer that they were left out for.
    bound_ = found_->cost;
    for (const Case& other : cases_) bound_ = std::min(bound_, other.bound);
  }
}

void Branching::Search(Case& searched, int64_t goal, const Probing::MakeSearch& make_search,
                       const std::function<bool()>& stop) {
  std::vector<int64_t> all = std::exchange(choices_[node_], {searched.choice});
  const Reduction reduction = ReduceFurther(core_, choices_);
  choices_[node_] = std::move(all);
  work_ += reduction.core.algebra.work();
  if (reduction.core.infeasible || reduction.core.limit_is_below_least_usage()) {
    searched.bound = INT64_MAX;
    return;
  }
  const std::unique_ptr<CoreSearch> search = make_search(reduction, ++seed_);
  search->FirstBound(case_work_ / kRoundsPerCase, stop);
  while (search->bound() < goal && !search->complete() && search->work() < case_work_ && !stop())
    search->Round({.work = case_work_ / kRoundsPerCase, .probe = false}, stop);
  work_ += search->work();
  const bool is_empty = search->complete() && !search->best();
  searched.bound = std::max(searched.bound, is_empty ? INT64_MAX : search->bound());
  if (!search->best() || search->best()->cost >= found_->cost) return;
  CoreAnswer answer = {Expand(reduction, search->best()->choice), 0};
  answer.cost = *CoreCost(core_, answer.choice);
  found_ = std::move(answer);
}

}  // namespace minka
