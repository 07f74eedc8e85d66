// Writes reshard steps as HLO: collectives with replica groups, and what is local.
#pragma once

#include <span>
#include <vector>

#include "minka/lowering/device_position.h"
#include "minka/sharding/reshard.h"

namespace minka {

// The step's result from what a device holds before it.
Value EmitStep(DevicePosition& position, Value x, const ReshardStep& step);

// Several values through one collective; their steps have equal kind (all-reduce, reduce-scatter
// or all-gather), axes and element type. reduce-scatter and all-gather run on one matrix of blocks:
// its row i is what member i of a group receives or gives.
std::vector<Value> EmitCombinedStep(DevicePosition& position, std::span<const Value> values,
                                    std::span<const ReshardStep> steps);

}  // namespace minka
