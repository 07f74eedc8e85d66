#include "minka/planner/intra_op/reshard_costs.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>

namespace minka {
namespace {

bool IsAllowed(const Sharding& from, const Sharding& to) {
  const AxisSet added = to.partial.Minus(from.partial);
  return added.Minus(from.split_axes()) == added;
}

}  // namespace

ReshardRules ReshardCosts::RulesFor(TensorClass tensor, bool is_combined) const {
  const bool is_activation = tensor != TensorClass::kState;
  ReshardRules rules{.no_all_gather = limits_.no_all_gather,
                     .no_all_to_all = limits_.no_all_to_all,
                     .fixed_axes = is_activation ? limits_.batch_axes : AxisSet(),
                     .discourages_gathers = is_activation
                                                ? limits_.discourages_gathers_of_activations
                                                : limits_.discourages_gathers_of_state,
                     .prefers_scattering =
                         limits_.prefers_scattered_gradients && tensor == TensorClass::kGradient};
  if (is_combined) {
    rules.combining = CombiningRules{.saves_memory = limits_.saves_memory,
                                     .num_combinable = limits_.num_combinable};
  }
  return rules;
}

ReshardPrice ReshardCosts::SearchPrice(const Shape& shape, TensorClass tensor,
                                       bool is_combined) const {
  return PriceUnder(RulesFor(tensor, is_combined), cost_, mesh_, shape.type);
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

ReshardCosts::Choice ReshardCosts::CheapestPath(const Shape& shape, const Sharding& from,
                                                const Sharding& to, ReshardUse use) const {
  Choice best = {CheapestReshard(shape, from, to, mesh_,
                                 SearchPrice(shape, use.tensor, /*is_combined=*/false))};
  if (!MayCombine(use)) return best;
  ReshardPath one =
      CheapestReshard(shape, from, to, mesh_, SearchPrice(shape, use.tensor, /*is_combined=*/true));
  const std::optional<double> price = PriceOfCombined(one.cost);
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
    cost += in_group ? SharedPrice(work, limits_.num_combinable, cost_, mesh_, shape.type)
                     : cost_.Collective(work, shape.type);
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
  const auto distances = [&](bool is_combined) -> ReshardCostTables::Table* {
    return searches_every_axis_ ? &tables_->Of(shape, RulesFor(use.tensor, is_combined)) : nullptr;
  };
  source.reset(new Source(*this, shape, from, use, distances(/*is_combined=*/false),
                          MayCombine(use) ? distances(/*is_combined=*/true) : nullptr));
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
      cheapest = std::min(cheapest,
                          PriceOfCombined(combined_->Between(source, target)).value_or(kInfinite));
    }
    cost += cheapest;
  }
  return cost < kForbiddenReshard ? cost : kInfinite;
}

}  // namespace minka
