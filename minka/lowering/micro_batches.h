// Micro-batches: a sequential mesh axis over which the batch is split, and what it does to a step.
//
// The rules of sharding say what every operation does along it: operations on the batch work on one
// slice at a time (split), gradients come out as parts of a sum (partial). The rewritten step
// computes one micro-batch; sums and stacks (ir/micro_loop.h) complete over all of them what the
// rest of the step reads. So it computes exactly what the full batch does: constants such as 1 /
// batch stay as they are, positions and random bits count over the whole batch.
#pragma once

#include <compare>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/ir/step.h"

namespace minka {

struct MicroBatchOptions {
  int64_t num_micro_batches = 1;
  // Where an operation on slices needs a sum over the whole batch (batch normalisation), m times
  // the sum of its own micro-batch takes its place. Changes what the step computes.
  bool per_micro_batch = false;
  // Sums over micro-batches are of the type that their parts are computed in, be it bf16 or f16,
  // and converted behind the loop where the parts were; else of f32 at least. Takes less memory,
  // and rounds once more for every micro-batch.
  bool narrow_sums = false;
  auto operator<=>(const MicroBatchOptions&) const = default;
};

// What a value of a step has become in the step of one micro-batch.
struct MicroBatchedValue {
  Value value;   // instruction -1: nothing
  int dim = -1;  // inside the loop a slice along it, -1: the same for all micro-batches
};

struct MicroBatchedStep {
  Step step;
  // By instruction of the step before and result. A value that exists both inside the loop and
  // complete is given as it is inside, one whose parts are summed as the sum.
  std::vector<std::vector<MicroBatchedValue>> became;
};

// Batch inputs of shape [.., B, ..] become [.., m, B / m, ..]: the same bytes. A sum over the batch
// that operations on slices need is computed in front of the loop if it depends on inputs only (the
// count of a mask); InvalidArgument names the operation otherwise. Precondition: prepared, with its
// structure (analysis/structure.h).
absl::StatusOr<MicroBatchedStep> MakeMicroBatches(const Step& step,
                                                  const MicroBatchOptions& options);

}  // namespace minka
