// One device's results of a step in which each micro-batch stands for the whole batch
// (MicroBatchOptions::per_micro_batch), without the rewriting into micro-batches, whose faults they
// would share.
//
// On a batch that is one slice over and over, statistics are those of the slice, and the gradients
// those of its examples alone. So, with two slices a and b:
//
//   the backward pass on [a, a], and on [b, b]  ->  the mean of both gradients  ->  the update
//
// Steps are simplified here, with their structure (analysis/structure.h).
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "minka/lowering/micro_batches.h"
#include "minka/oracle/oracle.h"
#include "minka/runtime/pjrt/client.h"

namespace minka {

// Is a slice of the batch all that tells one micro-batch from another? Not so where random bits are
// drawn for each example, or where what the step knows by itself lies along the batch: then a
// repeated slice is not what its micro-batch is. Numbers of examples as indices (a gather of each
// example's label) do not count.
absl::StatusOr<bool> SlicesDifferByBatchAlone(const Step& step,
                                              const MicroBatchOptions& micro_batches);

// Known are losses, and what depends on the batch by way of gradients alone; other results (running
// statistics) have no bytes. Precondition: slices differ by the batch alone.
absl::StatusOr<OneDeviceResults> RunSlices(const Step& step, int64_t num_slices,
                                           const pjrt::Client& client, const StepInputs& inputs,
                                           int num_steps);

}  // namespace minka
