#include "minka/solver/prove/branching.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace minka {
namespace {

// Among whose choices most cost the relaxation nothing: there it cannot tell what is best. nullopt:
// no node has two choices.
std::optional<int32_t> NodeToDivideBy(const std::vector<std::vector<int64_t>>& choices,
                                      const ChoiceExcess& excess) {
  std::optional<int32_t> best;
  int64_t most = -1;
  for (int32_t node = 0; node < static_cast<int32_t>(choices.size()); ++node) {
    if (choices[node].size() < 2) continue;
    const int64_t num_free = std::ranges::count_if(
        choices[node], [&](int64_t choice) { return excess.Of(node, choice) == 0; });
    if (num_free <= most) continue;
    most = num_free;
    best = node;
  }
  return best;
}

}  // namespace

Branching::Branching(const Core& core, std::vector<std::vector<int64_t>> choices,
                     const ChoiceExcess& excess, int64_t case_work, uint64_t seed)
    : core_(core), choices_(std::move(choices)), case_work_(case_work), seed_(seed) {
  const int32_t node = NodeToDivideBy(choices_, excess).value_or(0);
  cases_.insert({INT64_MIN, {.node = node, .choices = choices_[node]}});
}

void Branching::Run(const CoreAnswer& best, int64_t goal, const MakePartSearch& make_search,
                    int64_t work, const std::function<bool()>& stop) {
  if (!found_ || best.cost < found_->cost) found_ = best;
  const int64_t end = work_ + work;
  while (work_ < end && bound_ < std::min(goal, found_->cost) && !stop()) {
    auto least = cases_.extract(cases_.begin());
    work_ += 1;
    if (least.mapped().choices.empty()) {
      const int64_t bound = Bound(least.mapped(), goal, make_search, stop);
      least.key() = std::max(least.key(), bound);
      cases_.insert(std::move(least));
    } else {
      Divide(least.mapped(), least.key());
    }
    // What the choices left out cost is more than the answer that they were left out for.
    bound_ = std::min(found_->cost, cases_.begin()->first);
  }
}

void Branching::Divide(const Case& divided, int64_t bound) {
  for (const int64_t choice : divided.choices) {
    Case part = {.fixed = divided.fixed};
    part.fixed.push_back({divided.node, choice});
    cases_.insert({bound, std::move(part)});
  }
}

// At least; INT64_MAX: nothing better than what has been found is left.
int64_t Branching::Bound(Case& searched, int64_t goal, const MakePartSearch& make_search,
                         const std::function<bool()>& stop) {
  std::vector<std::vector<int64_t>> choices = choices_;
  for (const Fixed& fixed : searched.fixed) choices[fixed.node] = {fixed.choice};
  const Reduction reduction = ReduceFurther(core_, choices);
  work_ += reduction.core.algebra.work();
  if (reduction.core.infeasible || reduction.core.limit_is_below_least_usage()) return INT64_MAX;
  const std::unique_ptr<PartSearch> search = make_search(reduction, ++seed_, *found_);
  search->RaiseBound(case_work_, [&] { return search->bound() >= goal || stop(); });
  work_ += search->work();
  if (search->best()) Take(reduction, search->best()->choice);
  if (search->bound() >= goal) return search->bound();

  const ChoiceExcess excess(search->messages());
  work_ += search->messages().graph().num_cells();
  const std::vector<std::vector<int64_t>> left = excess.Within(found_->cost);
  if (const std::optional<int32_t> node = NodeToDivideBy(left, excess)) {
    searched.node = reduction.nodes[*node];
    const std::span<const int64_t> of_core = reduction.core.algebra.row(reduction.choices[*node]);
    for (const int64_t choice : left[*node]) searched.choices.push_back(of_core[choice]);
    return search->bound();
  }
  // One answer at most may be better.
  std::vector<int32_t> only;
  for (const std::vector<int64_t>& of_node : left) {
    if (of_node.empty()) return INT64_MAX;
    only.push_back(static_cast<int32_t>(of_node[0]));
  }
  if (FitsLimit(reduction.core, only)) Take(reduction, only);
  return INT64_MAX;
}

// A choice that is forbidden is none.
void Branching::Take(const Reduction& reduction, std::span<const int32_t> choice) {
  if (CoreCost(reduction.core, choice)) TakeCheaper(ExpandAnswer(core_, reduction, choice), found_);
}

}  // namespace minka
