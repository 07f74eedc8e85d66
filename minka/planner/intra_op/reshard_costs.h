// Reshard prices and paths under a cost model, remembered by (shape, from, to): the same few pairs
// come up for every layer.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "minka/cost/cost_model.h"
#include "minka/planner/intra_op/choices.h"
#include "minka/sharding/reshard.h"

namespace minka {

class ReshardCosts {
 public:
  // With `complete_only` all-gather and all-to-all are discouraged: a thousandfold price for the
  // search, never for what the plan reports. So activations stay split as the batch came in.
  ReshardCosts(const Mesh& mesh, const CostModel& cost, const ShardingTable& shardings,
               bool complete_only)
      : mesh_(mesh),
        cost_(cost),
        shardings_(shardings),
        complete_only_(complete_only),
        searches_every_axis_(SearchesEveryAxis(mesh)) {}

  // For the search. Infinite where the reshard may not be chosen: a dimension split over an axis
  // never becomes partial over it.
  double Cost(const Shape& shape, ShardingId from, ShardingId to);
  // The path chosen, at its undistorted cost.
  ReshardPath Path(const Shape& shape, const Sharding& from, const Sharding& to) const;

 private:
  ReshardPrice SearchPrice(const Shape& shape) const;
  ReshardPath CheapestPath(const Shape& shape, const Sharding& from, const Sharding& to) const;

  const Mesh& mesh_;
  const CostModel& cost_;
  const ShardingTable& shardings_;
  const bool complete_only_;
  std::map<std::pair<ElementType, std::vector<int64_t>>, uint64_t> shape_ids_;
  absl::flat_hash_map<uint64_t, double> costs_;
  // One search prices the reshards from a sharding to all others, where it may search all axes.
  const bool searches_every_axis_;
  absl::flat_hash_map<uint64_t, ReshardDistances> distances_;  // by shape and source
};

}  // namespace minka
