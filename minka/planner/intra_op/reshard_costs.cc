#include "minka/planner/intra_op/reshard_costs.h"

#include <limits>
#include <memory>

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
  const bool is_activation = tensor != TensorClass::kState;
  const bool discouraged = is_activation ? limits_.discourages_gathers_of_activations
                                         : limits_.discourages_gathers_of_state;
  const AxisSet fixed_axes = is_activation ? limits_.batch_axes : AxisSet();
  const bool scatters = limits_.prefers_scattered_gradients && tensor == TensorClass::kGradient;
  return [this, discouraged, fixed_axes, scatters, type = shape.type](
             ReshardKind kind, int64_t local_bytes, AxisSet axes) {
    const bool gathers = kind == ReshardKind::kAllGather;
    const bool moves = kind == ReshardKind::kAllToAll;
    const bool along_batch = axes.Minus(fixed_axes) != axes;
    if ((gathers && limits_.no_all_gather) || (moves && limits_.no_all_to_all) ||
        ((gathers || moves) && along_batch)) {
      return kForbiddenStep;
    }
    double cost = cost_.Collective(kind, local_bytes, axes, type);
    if (gathers && scatters) cost += 2 * cost_.Latency(ReshardKind::kReduceScatter, axes);
    return discouraged && (gathers || moves) ? kDiscouraged * cost : cost;
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

ReshardCosts::Source& ReshardCosts::From(const Shape& shape, ShardingId from, TensorClass tensor) {
  const uint64_t shape_id =
      shape_ids_.try_emplace({shape.type, shape.dims}, shape_ids_.size()).first->second;
  const uint64_t tensor_id = shape_id << 2 | static_cast<uint64_t>(tensor);
  std::unique_ptr<Source>& source = sources_[tensor_id << 20 | static_cast<uint64_t>(from)];
  if (source != nullptr) return *source;
  std::unique_ptr<ReshardDistances>& distances = distances_[tensor_id];
  if (distances == nullptr && searches_every_axis_)
    distances = std::make_unique<ReshardDistances>(shape, mesh_, SearchPrice(shape, tensor));
  source.reset(new Source(*this, shape, from, tensor, distances.get()));
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
  double cost = costs_.PriceOfWholeSum(source, target, tensor_);
  cost += distances_ == nullptr ? costs_.CheapestPath(shape_, source, target, tensor_).cost
                                : distances_->Between(source, target);
  return cost < kForbiddenStep ? cost : kInfinite;
}

}  // namespace minka
