// Reshard prices and paths under a cost model, remembered by (shape, from, to): the same few pairs
// come up for every layer.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

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
      : mesh_(mesh), cost_(cost), shardings_(shardings), complete_only_(complete_only) {}

  // For the search. Infinite where the reshard may not be chosen: a dimension split over an axis
  // never becomes partial over it.
  double Cost(const Shape& shape, ShardingId from, ShardingId to);
  // The path chosen, at its undistorted cost.
  ReshardPath Path(const Shape& shape, const Sharding& from, const Sharding& to) const;

 private:
  ReshardPath CheapestPath(const Shape& shape, const Sharding& from, const Sharding& to) const;

  const Mesh& mesh_;
  const CostModel& cost_;
  const ShardingTable& shardings_;
  const bool complete_only_;
  std::map<std::pair<ElementType, std::vector<int64_t>>, uint64_t> shape_ids_;
  std::unordered_map<uint64_t, double> costs_;
};

}  // namespace minka
