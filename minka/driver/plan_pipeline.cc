// PlanPipeline: which layers are a stage, and how each runs on its mesh.
#include <algorithm>
#include <chrono>
#include <utility>
#include <variant>
#include <vector>

#include "minka/base/status.h"
#include "minka/driver/mesh_shapes.h"
#include "minka/driver/pipeline.h"
#include "minka/driver/pipeline_planner.h"
#include "minka/driver/plan_stage.h"
#include "minka/driver/prepare.h"
#include "minka/driver/submesh_search.h"

namespace minka {
namespace {

// By mesh, the shapes it may have.
absl::StatusOr<std::vector<std::vector<Mesh>>> ShapesOf(const Cluster& cluster,
                                                        const std::vector<int>& submeshes) {
  std::vector<std::vector<Mesh>> shapes;
  for (const int size : submeshes) {
    ASSIGN_OR_RETURN(shapes.emplace_back(), SubmeshShapes(cluster, size));
  }
  return shapes;
}

int NumDevices(const std::vector<std::vector<Mesh>>& shapes) {
  int64_t num_devices = 0;
  for (const std::vector<Mesh>& of_mesh : shapes) num_devices += of_mesh.front().num_devices();
  return static_cast<int>(num_devices);
}

// What the options say of the meshes; empty: nothing.
absl::StatusOr<std::vector<std::vector<Mesh>>> GivenShapes(const PlanRequest& request) {
  const PipelineOptions& options = *request.pipeline;
  std::vector<std::vector<Mesh>> shapes;
  for (const Mesh& mesh : options.meshes) shapes.push_back({mesh});
  if (shapes.empty()) {
    ASSIGN_OR_RETURN(shapes, ShapesOf(request.cluster, options.submeshes));
  }
  if (NumDevices(shapes) <= request.cluster.num_devices()) return shapes;
  return InvalidArgument("the stages' meshes have {} devices, cluster {} has {}",
                         NumDevices(shapes), request.cluster.name, request.cluster.num_devices());
}

absl::StatusOr<PlannedPipeline> SearchPipeline(PipelinePlanner& planner,
                                               const PlanRequest& request) {
  const PipelineOptions& options = *request.pipeline;
  int num_stages = options.num_stages;
  if (!options.stage_of_layer.empty()) num_stages = options.stage_of_layer.back() + 1;
  ASSIGN_OR_RETURN(std::vector<std::vector<Mesh>> shapes, GivenShapes(request));
  if (shapes.empty()) return SearchSubmeshes(planner, request, num_stages);
  if (num_stages <= 0) num_stages = static_cast<int>(shapes.size());
  RETURN_IF_ERROR(planner.CheckStages(num_stages));
  ASSIGN_OR_RETURN(const Assignment assignment,
                   planner.Assign(options.stage_of_layer, num_stages, std::move(shapes)));
  ASSIGN_OR_RETURN(FittedPipeline fitted,
                   planner.PlanWithin(assignment, planner.FirstDemands(), Reshaping::kEverything));
  return std::move(fitted.pipeline);
}

// How many there shall be where the step has no boundaries; 0: nothing says how many stages.
int LayersFor(const PipelineOptions& options) {
  if (!options.stage_of_layer.empty()) return static_cast<int>(options.stage_of_layer.size());
  const size_t num_meshes = std::max(options.meshes.size(), options.submeshes.size());
  return kLayersPerStage *
         (options.num_stages > 0 ? options.num_stages : static_cast<int>(num_meshes));
}

struct StepInLayers {
  Step step;  // simplified
  LayerChoice layers;
};

absl::StatusOr<StepInLayers> FindLayersOf(const Step& step, const PipelineOptions& options) {
  StepInLayers found{.layers = options.layers};
  ASSIGN_OR_RETURN(found.step, Simplify(step, found.layers, /*unrolls_loops=*/true));
  const bool is_marked = std::holds_alternative<MarkedLayers>(found.layers);
  if (is_marked && found.step.num_layers == 0 && LayersFor(options) > 0) {
    ASSIGN_OR_RETURN(found.step,
                     Simplify(step, AutoLayers{LayersFor(options)}, /*unrolls_loops=*/true));
    if (*found.step.num_layers > 0) found.layers = AutoLayers{*found.step.num_layers};
  }
  RETURN_IF_ERROR(CheckLayers(found.step, found.layers));
  return found;
}

}  // namespace

absl::StatusOr<PlannedPipeline> PlanPipeline(const Step& step, const PlanRequest& request) {
  StagePlanner stages(request);
  return PlanPipeline(step, request, stages);
}

absl::StatusOr<PlannedPipeline> PlanPipeline(const Step& step, const PlanRequest& request,
                                             StagePlanner& stages) {
  const auto start = std::chrono::steady_clock::now();
  ASSIGN_OR_RETURN(StepInLayers in_layers, FindLayersOf(step, *request.pipeline));
  PipelinePlanner planner(request, std::move(in_layers.step), std::move(in_layers.layers), stages);
  ASSIGN_OR_RETURN(PlannedPipeline planned, SearchPipeline(planner, request));
  planned.plan.search_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  RETURN_IF_ERROR(CheckMemory(planned.plan, request.search.memory_limit_bytes));
  return planned;
}

}  // namespace minka
