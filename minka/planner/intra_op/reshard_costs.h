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

  // Does any of them make a reshard dearer in the search than it is?
  bool put_penalties() const {
    return discourages_gathers_of_activations || discourages_gathers_of_state ||
           prefers_scattered_gradients;
  }
};

// Not thread-safe: prices are computed when first asked for.
class ReshardCosts {
 public:
  ReshardCosts(const Mesh& mesh, const CostModel& cost, const ShardingTable& shardings,
               const ReshardLimits& limits = {})
      : mesh_(mesh),
        cost_(cost),
        shardings_(shardings),
        limits_(limits),
        searches_every_axis_(SearchesEveryAxis(mesh)) {}

  // Reshards of one tensor from one sharding.
  class Source {
   public:
    // For the search. Infinite where the reshard may not be chosen: by the limits, and because a
    // dimension split over an axis never becomes partial over it.
    double To(ShardingId to);

   private:
    friend class ReshardCosts;
    Source(const ReshardCosts& costs, const Shape& shape, ShardingId from, TensorClass tensor,
           ReshardDistances* distances)
        : costs_(costs), shape_(shape), from_(from), tensor_(tensor), distances_(distances) {}
    double Search(ShardingId to);

    const ReshardCosts& costs_;
    const Shape shape_;
    const ShardingId from_;
    const TensorClass tensor_;
    ReshardDistances* const distances_;  // of the shape; null where too many axes take part
    absl::flat_hash_map<ShardingId, double> known_;
  };
  // Valid as long as this.
  Source& From(const Shape& shape, ShardingId from, TensorClass tensor);
  double Cost(const Shape& shape, ShardingId from, ShardingId to, TensorClass tensor) {
    return From(shape, from, tensor).To(to);
  }
  // The path chosen, at its undistorted cost.
  ReshardPath Path(const Shape& shape, const Sharding& from, const Sharding& to,
                   TensorClass tensor) const;
  const ReshardLimits& limits() const { return limits_; }

 private:
  ReshardPrice SearchPrice(const Shape& shape, TensorClass tensor) const;
  double PriceOfWholeSum(const Sharding& from, const Sharding& to, TensorClass tensor) const;
  ReshardPath CheapestPath(const Shape& shape, const Sharding& from, const Sharding& to,
                           TensorClass tensor) const;

  const Mesh& mesh_;
  const CostModel& cost_;
  const ShardingTable& shardings_;
  const ReshardLimits limits_;
  std::map<std::pair<ElementType, std::vector<int64_t>>, uint64_t> shape_ids_;
  absl::flat_hash_map<uint64_t, std::unique_ptr<ReshardDistances>> distances_;  // by shape, class
  absl::flat_hash_map<uint64_t, std::unique_ptr<Source>> sources_;
  const bool searches_every_axis_;
};

}  // namespace minka
