#include "minka/planner/intra_op/reshard_costs.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>

namespace minka {
namespace {

constexpr double kDiscouraged = 1000;
// Beyond every price: a path that costs as much uses what the limits forbid.
constexpr double kForbiddenStep = 1e30;
// On top of the price of every collective where paths with one are looked for: an hour is beyond
// every price, but below what is forbidden, and small enough to be subtracted again.
constexpr double kOneCollective = 4294967296;
// So much of a price may be lost beside it, in a sum of eight steps: below a unit of the search.
constexpr double kLostBesideIt = 8 * kOneCollective * std::numeric_limits<double>::epsilon();

bool IsAllowed(const Sharding& from, const Sharding& to) {
  const AxisSet added = to.partial.Minus(from.partial);
  return added.Minus(from.split_axes()) == added;
}

}  // namespace

ReshardPrice ReshardCosts::SearchPrice(const Shape& shape, TensorClass tensor) const {
  const bool is_activation = tensor != TensorClass::kState;
  const bool discouraged = is_activation ? limits_.discourages_gathers_of_activations
                                         : limits_.discourages_gathers_of_state;
  const AxisSet fixed_axes = is_activation ? limits_.batch_axes : AxisSet();
  const bool scatters = limits_.prefers_scattered_gradients && tensor == TensorClass::kGradient;
  return [this, discouraged, fixed_axes, scatters, type = shape.type](const StepWork& work) {
    const bool gathers = work.kind == ReshardKind::kAllGather;
    const bool moves = work.kind == ReshardKind::kAllToAll;
    const bool along_batch = work.axes.Minus(fixed_axes) != work.axes;
    if ((gathers && limits_.no_all_gather) || (moves && limits_.no_all_to_all) ||
        ((gathers || moves) && along_batch)) {
      return kForbiddenStep;
    }
    double cost = cost_.Collective(work, type);
    if (gathers && scatters) cost += 2 * cost_.Latency(ReshardKind::kReduceScatter, work.axes);
    return discouraged && (gathers || moves) ? kDiscouraged * cost : cost;
  };
}

double ReshardCosts::SharedPrice(const StepWork& work, ElementType type) const {
  return PriceInGroup(cost_, work, mesh_.size(work.axes), type) +
         GroupLatency(cost_, work.kind, work.axes) / limits_.num_combinable;
}

ReshardPrice ReshardCosts::CombinedPrice(const Shape& shape, TensorClass tensor) const {
  return [this, alone = SearchPrice(shape, tensor), type = shape.type](const StepWork& work) {
    const double price = alone(work);
    if (!IsCollective(work.kind) || price >= kForbiddenStep) return price;
    const bool may_share =
        work.kind != ReshardKind::kAllToAll &&
        (work.kind == ReshardKind::kAllReduce || !limits_.combines_only_all_reduces);
    if (!may_share) return kForbiddenStep;
    const double real = cost_.Collective(work, type);
    return kOneCollective + SharedPrice(work, type) + (price - real);
  };
}

double ReshardCosts::PriceOfWholeSum(const Sharding& from, const Sharding& to,
                                     TensorClass tensor) const {
  if (!limits_.prefers_scattered_gradients || tensor == TensorClass::kActivation) return 0;
  if (to.dims.empty()) return 0;
  double price = 0;
  const AxisSet whole = from.partial.Minus(to.used_axes());
  for (int axis = 0; axis < mesh_.num_axes(); ++axis) {
    if (!whole.contains(axis)) continue;
    price += 2 * cost_.Latency(ReshardKind::kReduceScatter, AxisSet::Of(axis));
  }
  return price;
}

namespace {

// The price of one combined collective, from a path's under CombinedPrice, rounded down so that the
// search charges no more than SearchCost; nullopt: it has none or several, or uses what the limits
// forbid.
std::optional<double> PriceOfOne(double price) {
  if (price < kOneCollective || price >= 2 * kOneCollective) return std::nullopt;
  return std::max(0.0, price - kOneCollective - kLostBesideIt);
}

}  // namespace

ReshardCosts::Choice ReshardCosts::CheapestPath(const Shape& shape, const Sharding& from,
                                                const Sharding& to, ReshardUse use) const {
  Choice best = {CheapestReshard(shape, from, to, mesh_, SearchPrice(shape, use.tensor))};
  if (!MayCombine(use)) return best;
  ReshardPath one = CheapestReshard(shape, from, to, mesh_, CombinedPrice(shape, use.tensor));
  const std::optional<double> price = PriceOfOne(one.cost);
  if (!price || *price > best.path.cost) return best;
  one.cost = *price;
  return {std::move(one), /*is_combined=*/true};
}

ReshardPath ReshardCosts::Path(const Shape& shape, const Sharding& from, const Sharding& to,
                               ReshardUse use) const {
  ReshardPath path = CheapestPath(shape, from, to, use).path;
  path.cost = 0;
  const Sharding* before = &from;
  for (const ReshardStep& step : path.steps) {
    path.cost += cost_.Collective(WorkOfStep(shape, *before, step, mesh_), shape.type);
    before = &step.result;
  }
  return path;
}

double ReshardCosts::SearchCost(const Shape& shape, const Sharding& from, const Sharding& to,
                                ReshardUse use) const {
  const Choice chosen = CheapestPath(shape, from, to, use);
  double cost = 0;
  const Sharding* before = &from;
  for (const ReshardStep& step : chosen.path.steps) {
    const StepWork work = WorkOfStep(shape, *before, step, mesh_);
    const bool in_group = chosen.is_combined && IsCollective(step.kind);
    cost += in_group ? SharedPrice(work, shape.type) : cost_.Collective(work, shape.type);
    before = &step.result;
  }
  return cost;
}

ReshardCosts::Source& ReshardCosts::From(const Shape& shape, ShardingId from, ReshardUse use) {
  const uint64_t shape_id =
      shape_ids_.try_emplace({shape.type, shape.dims}, shape_ids_.size()).first->second;
  const uint64_t use_id = shape_id << 3 | static_cast<uint64_t>(MayCombine(use)) << 2 |
                          static_cast<uint64_t>(use.tensor);
  std::unique_ptr<Source>& source = sources_[use_id << 20 | static_cast<uint64_t>(from)];
  if (source != nullptr) return *source;
  const auto distances = [&](bool combined) -> ReshardDistances* {
    if (!searches_every_axis_) return nullptr;
    std::unique_ptr<ReshardDistances>& found =
        distances_[(shape_id << 2 | static_cast<uint64_t>(use.tensor)) << 1 |
                   static_cast<uint64_t>(combined)];
    if (found == nullptr) {
      found = std::make_unique<ReshardDistances>(
          shape, mesh_,
          combined ? CombinedPrice(shape, use.tensor) : SearchPrice(shape, use.tensor));
    }
    return found.get();
  };
  source.reset(new Source(*this, shape, from, use, distances(/*combined=*/false),
                          MayCombine(use) ? distances(/*combined=*/true) : nullptr));
  return *source;
}

double ReshardCosts::Source::To(ShardingId to) {
  if (to == from_) return 0;
  const auto [found, added] = known_.try_emplace(to, 0);
  if (added) found->second = Search(to);
  return found->second;
}

double ReshardCosts::Source::Search(ShardingId to) {
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  const Sharding& source = costs_.shardings_[from_];
  const Sharding& target = costs_.shardings_[to];
  if (!IsAllowed(source, target)) return kInfinite;
  double cost = costs_.PriceOfWholeSum(source, target, use_.tensor);
  if (distances_ == nullptr) {
    cost += costs_.CheapestPath(shape_, source, target, use_).path.cost;
  } else {
    double cheapest = distances_->Between(source, target);
    if (combined_ != nullptr) {
      cheapest =
          std::min(cheapest, PriceOfOne(combined_->Between(source, target)).value_or(kInfinite));
    }
    cost += cheapest;
  }
  return cost < kForbiddenStep ? cost : kInfinite;
}

}  // namespace minka
