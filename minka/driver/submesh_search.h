// Finds the stages of a pipeline and their meshes where none are named: by what each layer takes on
// each mesh (planner/inter_op/stage_search.h), then by plans of the pipelines found.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/driver/pipeline_planner.h"
#include "minka/planner/inter_op/micro_batch_search.h"
#include "minka/planner/inter_op/stage_search.h"

namespace minka {

// What layers by themselves say, before any pipeline is planned.
struct LayersOnMeshes {
  std::vector<Mesh> meshes;  // that stages may have
  LayerWays ways;            // see SearchedLayers
  std::string schedule;      // that is searched by first, as `input` has it
  StageSearchInput input;
  std::vector<FoundPipeline> free;  // fastest first, whatever memory they need
};

// On whatever submeshes stages may have. num_stages 0 or less: of every number, two at least.
// InvalidArgument: layers or devices do not give so many.
absl::StatusOr<LayersOnMeshes> FindLayersOnSubmeshes(PipelinePlanner& planner,
                                                     const PlanRequest& request, int num_stages);
// Where the shapes of each mesh are given, as if every stage could have any of them; finds nothing
// of stages that share one.
absl::StatusOr<LayersOnMeshes> FindLayersOn(const std::vector<std::vector<Mesh>>& shapes,
                                            PipelinePlanner& planner, const PlanRequest& request,
                                            int num_stages);

CountEstimate EstimateOf(const LayersOnMeshes& layers);
// The step time of the fastest pipeline that fits into the memory limit; nullopt: none does.
std::optional<double> EstimateFitting(const LayersOnMeshes& layers, PipelinePlanner& planner,
                                      const PlanRequest& request);

// The fastest found that fits into the memory limit, or one hardly slower than what is found
// without a limit, with what was tried beside it.
absl::StatusOr<FittedPipeline> SearchSubmeshes(PipelinePlanner& planner, const PlanRequest& request,
                                               LayersOnMeshes layers);

}  // namespace minka
