#include "minka/planner/intra_op/reshard_costs.h"

#include <limits>

namespace minka {
namespace {

constexpr double kDiscouraged = 1000;

bool IsAllowed(const Sharding& from, const Sharding& to) {
  const AxisSet added = to.partial.Minus(from.partial);
  return added.Minus(from.split_axes()) == added;
}

}  // namespace

ReshardPrice ReshardCosts::SearchPrice(const Shape& shape) const {
  return [this, type = shape.type](ReshardKind kind, int64_t local_bytes, AxisSet axes) {
    const bool gathers = kind == ReshardKind::kAllGather || kind == ReshardKind::kAllToAll;
    const double cost = cost_.Collective(kind, local_bytes, axes, type);
    return complete_only_ && gathers ? kDiscouraged * cost : cost;
  };
}

ReshardPath ReshardCosts::CheapestPath(const Shape& shape, const Sharding& from,
                                       const Sharding& to) const {
  return CheapestReshard(shape, from, to, mesh_, SearchPrice(shape));
}

ReshardPath ReshardCosts::Path(const Shape& shape, const Sharding& from, const Sharding& to) const {
  ReshardPath path = CheapestPath(shape, from, to);
  path.cost = 0;
  const Sharding* before = &from;
  for (const ReshardStep& step : path.steps) {
    path.cost += cost_.Collective(step.kind, StepBytes(shape, *before, step, mesh_),
                                  step.axes.axes(), shape.type);
    before = &step.result;
  }
  return path;
}

double ReshardCosts::Cost(const Shape& shape, ShardingId from, ShardingId to) {
  if (from == to) return 0;
  const uint64_t shape_id =
      shape_ids_.try_emplace({shape.type, shape.dims}, shape_ids_.size()).first->second;
  const uint64_t key =
      shape_id << 40 | static_cast<uint64_t>(from) << 20 | static_cast<uint64_t>(to);
  const auto [found, added] = costs_.try_emplace(key, 0);
  if (!added) return found->second;
  if (!IsAllowed(shardings_[from], shardings_[to])) {
    found->second = std::numeric_limits<double>::infinity();
  } else if (!searches_every_axis_) {
    found->second = CheapestPath(shape, shardings_[from], shardings_[to]).cost;
  } else {
    const uint64_t source = shape_id << 20 | static_cast<uint64_t>(from);
    auto known = distances_.find(source);
    if (known == distances_.end())
      known =
          distances_
              .emplace(source, ReshardDistances(shape, shardings_[from], mesh_, SearchPrice(shape)))
              .first;
    found->second = known->second.To(shardings_[to]);
  }
  return found->second;
}

}  // namespace minka
