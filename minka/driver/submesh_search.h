// Finds the stages of a pipeline and their meshes where none are named: by what each layer takes on
// each mesh (layers_on_meshes.h, planner/inter_op/stage_search.h), then by plans of the pipelines
// found.
#pragma once

#include "absl/status/statusor.h"
#include "minka/driver/layers_on_meshes.h"
#include "minka/driver/pipeline_planner.h"

namespace minka {

// The fastest found that fits into the memory limit, or one hardly slower than what is found
// without a limit, with what was tried beside it.
absl::StatusOr<FittedPipeline> SearchSubmeshes(PipelinePlanner& planner, const PlanRequest& request,
                                               LayersOnMeshes layers);

}  // namespace minka
