// Plans a step on one mesh under a memory limit as a pipeline of one stage is planned: what its
// layers take by themselves says on which mesh it is fastest, what is computed again there and what
// its search is to take for holding memory. So a few searches without a limit do for many under
// one, and what layers take at least bounds every mesh and choice of what to compute again. Where
// layers differ, plans between two prices of memory follow. Where the plan is far from that, some
// short searches under the limit follow. A large step that fits anyway is planned so, too, on the
// mesh that is fastest, instead of whole on every mesh.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/driver/plan_stage.h"
#include "minka/driver/plan_step.h"
#include "minka/driver/prepared_steps.h"
#include "minka/planner/intra_op/search_result.h"

namespace minka {

// How to plan a mesh.
struct WayToFit {
  Mesh mesh;
  RematChoice remat;
  MemoryPrice memory_price;
  std::optional<int64_t> limit_bytes;  // for a search of little work; nullopt: whatever it needs
};

// What the lower bound of FittedMeshes leaves out, a note of plans.
inline constexpr std::string_view kLeftOutByLayers =
    "lower bound and gap are of what layers take by themselves on the meshes searched, less what "
    "they count more than plans of the whole step: choices that were not tried, and computing "
    "again where nothing asks for it, are left out";

// What layers by themselves say of a mesh.
struct MeshEstimate {
  Mesh mesh;
  double step_time_us = 0;  // of a plan there
  double least_us = 0;      // as FittedMeshes::lower_bound, of this mesh
};

struct FittedMeshes {
  // By mesh, by method shard. One fits at least, unless nothing does by far, or the request asks
  // for what is faster than a plan at hand: then all may say why none was searched for.
  std::vector<PlanCandidate> candidates;
  // The objective of no plan on these meshes, but for unlikely ones (unlikely_meshes.h), that fits
  // is less, as far as layers by themselves say (stage_bound.h), less what they are seen to count
  // more than the plans; nullopt: unknown. At most that of the best candidate.
  std::optional<double> lower_bound;
  // Where all that was planned fits, nothing computed again: of the meshes on which layers were
  // searched, fastest first; of each of them lower_bound is the least. Else empty.
  std::vector<MeshEstimate> estimates;
};

// What a search of layers on one mesh is asked for.
PlanRequest OfOneStage(PlanRequest request, const RematChoice& remat);

struct FitByLayersOptions {
  std::vector<Mesh> meshes;  // of equal numbers of devices
  RematChoice remat;         // that is asked for; where the request leaves it open, that may be
  std::function<SearchResult<Plan>(const WayToFit& way)> plan;
  // Asked before plans beyond those that layers ask for.
  std::function<bool()> is_over = [] { return false; };
};

// nullopt: layers cannot be planned by themselves on these meshes (layer_costs.h), the step fits
// anyway and is small or has one mesh, or nothing that was found fits, if not by far; searches of
// the meshes have to say. Cancelled where the request is.
//
// Precondition: MayFitByLayers (plan_step.h). `stages`: of OfOneStage, for any number of
// micro-batches.
absl::StatusOr<std::optional<FittedMeshes>> FitByLayers(const PlanRequest& request,
                                                        PreparedSteps& steps, StagePlanner& stages,
                                                        const FitByLayersOptions& options);

}  // namespace minka
