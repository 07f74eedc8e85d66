// One device's results of a step in which each micro-batch stands for the whole batch
// (MicroBatchOptions::per_micro_batch), without the rewriting into micro-batches, whose faults they
// would share.
//
// On a batch that is one slice over and over, statistics are those of the slice, and the gradients
// those of its examples alone. So, with two slices a and b:
//
//   the backward pass on [a, a], and on [b, b]  ->  the mean of both gradients  ->  the update
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "minka/oracle/oracle.h"
#include "minka/runtime/pjrt/client.h"

namespace minka {

// Do random bits differ along the batch? Then a repeated slice is not what its micro-batch is.
bool IsRandom(const Step& step);

// `step` is simplified, with its structure (analysis/structure.h), and not random. Known are
// losses, and what depends on the batch by way of gradients alone; other results (running
// statistics) have no bytes.
absl::StatusOr<OneDeviceResults> RunSlices(const Step& step, int64_t num_slices,
                                           const pjrt::Client& client, const StepInputs& inputs,
                                           int num_steps);

}  // namespace minka
