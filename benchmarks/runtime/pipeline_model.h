// A training step as a pipeline on meshes of one device each, with values to run it on.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "minka/cost/calibration.h"
#include "minka/driver/pipeline.h"
#include "minka/frontend/trace.h"
#include "minka/runtime/mesh/step_runner.h"

namespace minka {

struct PipelineModelOptions {
  int num_meshes = 1;
  int num_micro_batches = 1;
  std::string schedule = "1f1b";
  std::optional<Calibration> calibration;  // for the predicted times
};

struct PipelineModel {
  TracedStep traced;
  PlannedPipeline planned;

  // Of all parameters, for the first step.
  absl::StatusOr<ParameterValues> Values() const;
};

absl::StatusOr<PipelineModel> PlanPipelineModel(const Model& model,
                                                const PipelineModelOptions& options);

}  // namespace minka
