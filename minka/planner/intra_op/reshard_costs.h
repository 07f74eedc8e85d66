// Reshard prices and paths under a cost model, remembered by shape, source and target: the same few
// pairs come up for every layer.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "minka/cost/cost_model.h"
#include "minka/planner/intra_op/choices.h"
#include "minka/planner/intra_op/reshard_prices.h"
#include "minka/sharding/reshard.h"

namespace minka {

// Whose reshards: values that depend on the batch and come before the apply phase; those of them
// that only the apply phase reads; all others (state, what is made of it, gradients on their way
// to new state).
enum class TensorClass : uint8_t { kActivation, kGradient, kState };

// What the search may not use, and what it should rather not: that has a thousandfold price in the
// search, never in what the plan reports.
struct ReshardLimits {
  bool no_all_gather = false, no_all_to_all = false;
  AxisSet batch_axes;  // activations are neither gathered nor moved along them
  bool discourages_gathers_of_activations = false;  // so they stay split as the batch came in
  bool discourages_gathers_of_state = false;
  // Sums on their way to new state become whole for two latencies more per axis: enough for a
  // reduce-scatter and a gather of the new state to win over an all-reduce, not for more bytes.
  bool prefers_scattered_gradients = false;
  bool saves_memory = false;  // see kMostPackedSavingMemory
  // How many values one combined collective may serve: each pays so small a part of its latency.
  int num_combinable = 1;

  // Does any of them make a reshard dearer in the search than it is?
  bool put_penalties() const {
    return discourages_gathers_of_activations || discourages_gathers_of_state ||
           prefers_scattered_gradients;
  }
};

// Whose reshards, and whether they run in one instruction with others of their kind, axes and type.
struct ReshardUse {
  TensorClass tensor = TensorClass::kState;
  // Nothing before the apply phase reads what they make. Such reshards of one collective each pay
  // in the search for their bytes and for their part of one latency, as if all ran in one
  // instruction, where they share it (SharesLatency); what further instructions cost by themselves
  // is added once the plan is known.
  bool is_late = false;
  auto operator<=>(const ReshardUse&) const = default;
};

// Not thread-safe: prices are computed when first asked for.
class ReshardCosts {
 public:
  // `shared`: of the same mesh and cost model; null: none are known.
  ReshardCosts(const Mesh& mesh, const CostModel& cost, const ShardingTable& shardings,
               const ReshardLimits& limits = {}, ReshardCostTables* shared = nullptr)
      : mesh_(mesh),
        cost_(cost),
        shardings_(shardings),
        limits_(limits),
        own_tables_(mesh, cost),
        tables_(shared != nullptr ? shared : &own_tables_),
        searches_every_axis_(SearchesEveryAxis(mesh)) {}

  // Reshards of one tensor from one sharding.
  class Source {
   public:
    // For the search. Infinite where the reshard may not be chosen: by the limits, and because a
    // dimension split over an axis never becomes partial over it.
    double To(ShardingId to);

   private:
    friend class ReshardCosts;
    // Distances: of the shape, by every path and by one combined collective; null where too many
    // axes take part.
    Source(const ReshardCosts& costs, const Shape& shape, ShardingId from, ReshardUse use,
           ReshardCostTables::Table* distances, ReshardCostTables::Table* combined)
        : costs_(costs),
          shape_(shape),
          from_(from),
          use_(use),
          distances_(distances),
          combined_(combined) {}
    double Search(ShardingId to);

    const ReshardCosts& costs_;
    const Shape shape_;
    const ShardingId from_;
    const ReshardUse use_;
    ReshardCostTables::Table *const distances_, *const combined_;
    absl::flat_hash_map<ShardingId, double> known_;
  };
  // Valid as long as this.
  Source& From(const Shape& shape, ShardingId from, ReshardUse use);
  double Cost(const Shape& shape, ShardingId from, ShardingId to, ReshardUse use) {
    return From(shape, from, use).To(to);
  }
  // The path chosen, at what it costs if nothing is combined.
  ReshardPath Path(const Shape& shape, const Sharding& from, const Sharding& to,
                   ReshardUse use) const;
  // What the search charges for that path without penalties: less where it can be combined.
  double SearchCost(const Shape& shape, const Sharding& from, const Sharding& to,
                    ReshardUse use) const;
  const ReshardLimits& limits() const { return limits_; }

 private:
  ReshardRules RulesFor(TensorClass tensor, bool is_combined) const;
  // Combined: every collective at its shared price.
  ReshardPrice SearchPrice(const Shape& shape, TensorClass tensor, bool is_combined) const;
  double PriceOfWholeSum(const Sharding& from, const Sharding& to, TensorClass tensor) const;
  bool MayCombine(ReshardUse use) const { return use.is_late && cost_.shares_latency(); }
  struct Choice {
    ReshardPath path;  // at its price in the search
    bool is_combined = false;
  };
  Choice CheapestPath(const Shape& shape, const Sharding& from, const Sharding& to,
                      ReshardUse use) const;

  const Mesh& mesh_;
  const CostModel& cost_;
  const ShardingTable& shardings_;
  const ReshardLimits limits_;
  std::map<std::pair<ElementType, std::vector<int64_t>>, uint64_t> shape_ids_;
  absl::flat_hash_map<uint64_t, std::unique_ptr<Source>> sources_;
  ReshardCostTables own_tables_;
  ReshardCostTables* const tables_;
  const bool searches_every_axis_;
};

}  // namespace minka
