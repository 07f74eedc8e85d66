// Finds the stages of a pipeline and their meshes where none are named: by what each layer takes on
// each mesh (planner/inter_op/stage_search.h), then by plans of the pipelines found.
#pragma once

#include "absl/status/statusor.h"
#include "minka/driver/pipeline_planner.h"

namespace minka {

// The fastest found that fits into the memory limit, or one hardly slower than what is found
// without a limit, with what was tried beside it. num_stages 0 or less: of every number, two at
// least. InvalidArgument: layers or devices do not give so many.
absl::StatusOr<PlannedPipeline> SearchSubmeshes(PipelinePlanner& planner,
                                                const PlanRequest& request, int num_stages);

}  // namespace minka
