#include "minka/planner/intra_op/reshard_prices.h"

#include <algorithm>
#include <limits>

namespace minka {
namespace {

constexpr double kDiscouraged = 1000;
// On top of the price of every collective where paths with one are looked for: an hour is beyond
// every price, but below what is forbidden, and small enough to be subtracted again.
constexpr double kOneCollective = 4294967296;
// So much of a price may be lost beside it, in a sum of eight steps: below a unit of the search.
constexpr double kLostBesideIt = 8 * kOneCollective * std::numeric_limits<double>::epsilon();

double PriceAlone(const ReshardRules& rules, const StepWork& work, const CostModel& cost,
                  ElementType type) {
  const bool gathers = work.kind == ReshardKind::kAllGather;
  const bool moves = work.kind == ReshardKind::kAllToAll;
  const bool along_fixed = work.axes.Minus(rules.fixed_axes) != work.axes;
  if ((gathers && rules.no_all_gather) || (moves && rules.no_all_to_all) ||
      ((gathers || moves) && along_fixed)) {
    return kForbiddenReshard;
  }
  double price = cost.Collective(work, type);
  if (gathers && rules.prefers_scattering)
    price += 2 * cost.Latency(ReshardKind::kReduceScatter, work.axes);
  return rules.discourages_gathers && (gathers || moves) ? kDiscouraged * price : price;
}

// Does a collective on its way to the apply phase run in one instruction with others?
bool MayBeCombined(const StepWork& work, bool saves_memory) {
  if (!IsCollective(work.kind) || work.kind == ReshardKind::kAllToAll) return false;
  if (work.kind == ReshardKind::kAllReduce || !saves_memory) return true;
  return work.kind == ReshardKind::kReduceScatter && work.local_bytes <= kMostPackedSavingMemory;
}

}  // namespace

double SharedPrice(const StepWork& work, int num_combinable, const CostModel& cost,
                   const Mesh& mesh, ElementType type) {
  return PriceInGroup(cost, work, mesh.size(work.axes), type) +
         GroupLatency(cost, work.kind, work.axes) / num_combinable;
}

ReshardPrice PriceUnder(const ReshardRules& rules, const CostModel& cost, const Mesh& mesh,
                        ElementType type) {
  return [rules, &cost, &mesh, type](const StepWork& work) {
    const double price = PriceAlone(rules, work, cost, type);
    if (!rules.combining || !IsCollective(work.kind) || price >= kForbiddenReshard) return price;
    const bool may_share =
        MayBeCombined(work, rules.combining->saves_memory) && SharesLatency(cost, work);
    if (!may_share) return kForbiddenReshard;
    const double real = cost.Collective(work, type);
    return kOneCollective + SharedPrice(work, rules.combining->num_combinable, cost, mesh, type) +
           (price - real);
  };
}

std::optional<double> PriceOfCombined(double price) {
  if (price < kOneCollective || price >= 2 * kOneCollective) return std::nullopt;
  return std::max(0.0, price - kOneCollective - kLostBesideIt);
}

ReshardCostTables::Table& ReshardCostTables::Of(const Shape& shape, const ReshardRules& rules) {
  const std::lock_guard lock(mutex_);
  std::unique_ptr<Table>& table = tables_[{shape.type, shape.dims, rules}];
  if (table == nullptr)
    table.reset(new Table(shape, mesh_, PriceUnder(rules, cost_, mesh_, shape.type)));
  return *table;
}

}  // namespace minka
