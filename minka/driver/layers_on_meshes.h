// What the layers of a step take by themselves on the meshes that stages may have, and what that
// says of their pipelines before any is planned.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/driver/pipeline_planner.h"
#include "minka/planner/inter_op/micro_batch_search.h"
#include "minka/planner/inter_op/stage_search.h"

namespace minka {

// What fits and is slower than the fastest without a limit by no more than this will do.
inline constexpr double kNearFastest = 1.02;
// Where what needs least is estimated to need so many times the limit, and its plan needs so many
// times the limit, that is far too large: what would do is said by that plan, nothing else is
// looked for.
inline constexpr double kFarTooLarge = 2, kFarTooLargeAsPlanned = 1.5;

// What one schedule makes of the layers.
struct ScheduleOfLayers {
  std::string name;
  StageSearchInput input;
  // The fastest, whatever memory it needs; nullopt: none is known.
  std::optional<FoundPipeline> free;
};

// What layers by themselves say, before any pipeline is planned.
struct LayersOnMeshes {
  std::vector<MeshOfKind> meshes;  // that stages may have
  LayerWays ways;                  // see SearchedLayers
  std::string schedule;            // that is searched by first, as `input` has it
  StageSearchInput input;
  // Those that can have the stages of the fastest pipeline, as of the fewest stages.
  std::vector<ScheduleOfLayers> other_schedules;
  std::vector<FoundPipeline> free;  // fastest first, whatever memory they need
};

// Which meshes are searched; empty: all.
using IsTried = std::function<bool(const MeshOfKind& mesh)>;

// On whatever submeshes stages may have, of those that are tried. num_stages 0 or less: of every
// number, two at least. InvalidArgument: layers or devices do not give so many.
absl::StatusOr<LayersOnMeshes> FindLayersOnSubmeshes(PipelinePlanner& planner,
                                                     const PlanRequest& request, int num_stages,
                                                     const IsTried& is_tried = nullptr);
// Where the shapes of each mesh are given, as if every stage could have any of them; finds nothing
// of stages that share one.
absl::StatusOr<LayersOnMeshes> FindLayersOn(const StageMeshes& given, PipelinePlanner& planner,
                                            const PlanRequest& request, int num_stages);

// The same of one stage on one mesh; NotFound where layers have no plans there.
absl::StatusOr<LayersOnMeshes> FindLayersOnMesh(std::vector<Mesh> shapes, PipelinePlanner& planner,
                                                const PlanRequest& request);

// Meshes of `ways` where ways that save memory are worth looking for, too: of each number of
// devices of each kind the shapes on which all layers together are fastest, of more axes only where
// that makes them faster: their searches take longer. `input`: with the limits.
std::vector<MeshOfKind> FastestMeshes(const LayerWays& ways, const StageSearchInput& input);
// Of these the fastest of each number of devices of each kind.
std::vector<MeshOfKind> FastestMeshOfEach(const LayerWays& ways, const StageSearchInput& input);

// By the schedule under the limits of `search`, fastest first. Where gradients of weights are put
// off, how much is held grows with the number of stages: what is found as of the fewest says which
// numbers are worth a search of their own, and how fast these are at best.
std::vector<FoundPipeline> FindUnderLimits(const std::vector<StageWay>& ways,
                                           const std::string& schedule, StageSearchInput search,
                                           PipelinePlanner& planner);

// Under the memory limits of the request, or so much of them.
StageSearchInput WithLimits(StageSearchInput input, const PlanRequest& request, double part = 1);

// What the layers of the step are estimated to take longer than, by the best schedule, is not
// wanted (PlanRequest::faster_than_us).
double MostEstimatedUs(const PlanRequest& request, const Step& simplified);
// Aborted: a step is estimated to take so long, which is longer than is wanted.
absl::Status EstimatedToTake(double us);

CountEstimate EstimateOf(const LayersOnMeshes& layers, const PlanRequest& request);
// Of the fastest pipeline that fits into the memory limits.
struct FittingEstimate {
  std::optional<double> step_time_us;  // nullopt: none does
  double least_part = 0;               // then: of the limits, what any needs at least
};

FittingEstimate EstimateFitting(const LayersOnMeshes& layers, PipelinePlanner& planner,
                                const PlanRequest& request);

}  // namespace minka
