// A step's state to and from checkpoints: tensors by the names of the step's parameters, whole, so
// that another mesh or method takes them up.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "minka/ir/step.h"
#include "minka/runtime/mesh/step_runner.h"
#include "minka/tensors/checkpoint.h"

namespace minka {

// Writes all state below `folder`, one parameter after the other, and returns the checkpoint's
// folder. `about` gives the manifest's run, model, options and data; step and seed are the state's.
// Of the run's checkpoints the newest `keep` stay.
absl::StatusOr<std::string> SaveCheckpoint(const std::string& folder, int keep,
                                           CheckpointManifest about, const StepRunner& runner,
                                           const State& state);

// Is it a checkpoint of this step? InvalidArgument names the first parameter that is missing, left
// over or of another shape.
absl::Status CheckFits(const CheckpointReader& checkpoint, const Step& step);

// The state, on the devices; one file at a time is in memory. Precondition: CheckFits.
absl::StatusOr<State> RestoreCheckpoint(const CheckpointReader& checkpoint, StepRunner& runner);

}  // namespace minka
