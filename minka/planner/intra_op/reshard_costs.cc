#include "minka/planner/intra_op/reshard_costs.h"

#include <limits>

namespace minka {
namespace {

constexpr double kDiscouraged = 1000;
// Beyond every price: a path that costs as much uses what the limits forbid.
constexpr double kForbiddenStep = 1e30;

bool IsAllowed(const Sharding& from, const Sharding& to) {
  const AxisSet added = to.partial.Minus(from.partial);
  return added.Minus(from.split_axes()) == added;
}

}  // namespace

ReshardPrice ReshardCosts::SearchPrice(const Shape& shape, TensorClass tensor) const {
  const bool is_activation = tensor == TensorClass::kActivation;
  const bool discouraged = is_activation ? limits_.discourages_gathers_of_activations
                                         : limits_.discourages_gathers_of_state;
  const AxisSet fixed_axes = is_activation ? limits_.batch_axes : AxisSet();
  return [this, discouraged, fixed_axes, type = shape.type](ReshardKind kind, int64_t local_bytes,
                                                            AxisSet axes) {
    const bool gathers = kind == ReshardKind::kAllGather;
    const bool moves = kind == ReshardKind::kAllToAll;
    const bool along_batch = axes.Minus(fixed_axes) != axes;
    if ((gathers && limits_.no_all_gather) || (moves && limits_.no_all_to_all) ||
        ((gathers || moves) && along_batch)) {
      return kForbiddenStep;
    }
    const double cost = cost_.Collective(kind, local_bytes, axes, type);
    return discouraged && (gathers || moves) ? kDiscouraged * cost : cost;
  };
}

ReshardPath ReshardCosts::CheapestPath(const Shape& shape, const Sharding& from, const Sharding& to,
                                       TensorClass tensor) const {
  return CheapestReshard(shape, from, to, mesh_, SearchPrice(shape, tensor));
}

ReshardPath ReshardCosts::Path(const Shape& shape, const Sharding& from, const Sharding& to,
                               TensorClass tensor) const {
  ReshardPath path = CheapestPath(shape, from, to, tensor);
  path.cost = 0;
  const Sharding* before = &from;
  for (const ReshardStep& step : path.steps) {
    path.cost += cost_.Collective(step.kind, StepBytes(shape, *before, step, mesh_),
                                  step.axes.axes(), shape.type);
    before = &step.result;
  }
  return path;
}

double ReshardCosts::Cost(const Shape& shape, ShardingId from, ShardingId to, TensorClass tensor) {
  if (from == to) return 0;
  const uint64_t shape_id =
      shape_ids_.try_emplace({shape.type, shape.dims}, shape_ids_.size()).first->second;
  const uint64_t key = shape_id << 41 |
                       static_cast<uint64_t>(tensor == TensorClass::kActivation) << 40 |
                       static_cast<uint64_t>(from) << 20 | static_cast<uint64_t>(to);
  const auto [found, added] = costs_.try_emplace(key, 0);
  if (!added) return found->second;
  double cost = std::numeric_limits<double>::infinity();
  if (!IsAllowed(shardings_[from], shardings_[to])) {
    found->second = cost;
    return cost;
  }
  if (!searches_every_axis_) {
    cost = CheapestPath(shape, shardings_[from], shardings_[to], tensor).cost;
  } else {
    const uint64_t source = key >> 20;
    auto known = distances_.find(source);
    if (known == distances_.end()) {
      known = distances_
                  .emplace(source, ReshardDistances(shape, shardings_[from], mesh_,
                                                    SearchPrice(shape, tensor)))
                  .first;
    }
    cost = known->second.To(shardings_[to]);
  }
  found->second = cost < kForbiddenStep ? cost : std::numeric_limits<double>::infinity();
  return found->second;
}

}  // namespace minka
