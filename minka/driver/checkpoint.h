// A step's state to and from checkpoints: tensors by the names of the step's parameters, in the
// tiles that devices hold, each written once by who holds it, so that no array passes this process
// unless it lies here. Another mesh, method or number of devices takes them up: who holds an array
// then reads what of the tiles it needs.
#pragma once

#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "minka/ir/step.h"
#include "minka/runtime/mesh/step_runner.h"
#include "minka/tensors/checkpoint.h"

namespace minka {

struct NamedArray {
  std::string name;
  const DistributedArray* array = nullptr;
};

struct SaveOptions {
  std::string folder;
  int keep = 3;  // checkpoints of the run, see CheckpointWriter::Commit
  std::stop_token stop;
};

// Writes the arrays below the folder and returns the checkpoint's. `about` gives all of the
// manifest but files and tensors. Cancelled soon after it is asked to stop, or an error: there is
// no new checkpoint then.
absl::StatusOr<std::string> SaveArrays(const SaveOptions& options, CheckpointManifest about,
                                       StepExecutor& executor, std::span<const NamedArray> arrays);
// The same for all state and constants; step and seed are the state's.
absl::StatusOr<std::string> SaveCheckpoint(const SaveOptions& options, CheckpointManifest about,
                                           StepRunner& runner, const State& state);

// Is it a checkpoint of this step? InvalidArgument names the first parameter that is missing, left
// over or of another shape.
absl::Status CheckFits(const CheckpointReader& checkpoint, const Step& step);

// Arrays of parameters, each from the checkpoint's tensor of its name; see StepExecutor::Restore.
// Cancelled soon after it is asked to stop.
absl::StatusOr<std::vector<DistributedArray>> RestoreArrays(
    CheckpointReader& checkpoint, StepExecutor& executor,
    std::span<const TensorOfParameter> tensors, const std::stop_token& stop = {});
// The state, on the devices. Precondition: CheckFits.
absl::StatusOr<State> RestoreCheckpoint(CheckpointReader& checkpoint, StepRunner& runner);

}  // namespace minka
