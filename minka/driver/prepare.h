// Brings a step into the form that is planned: calls inlined, dead and repeated instructions gone,
// barriers one value each.
#pragma once

#include "absl/status/statusor.h"
#include "minka/ir/step.h"
#include "minka/lowering/micro_batches.h"

namespace minka {

// A function of the arguments alone, so that the same module always gets the same instruction ids
// and hash. Cheap values that depend on constants only (broadcasts, iotas and what few operations
// make of them) are cloned per user: each copy takes its user's sharding at no cost.
//
// With micro-batches the step computes one of them, see lowering/micro_batches.h.
absl::StatusOr<Step> Prepare(const Step& step, const MicroBatchOptions& micro_batches = {});

}  // namespace minka
