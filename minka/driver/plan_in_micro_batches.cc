#include "minka/driver/plan_in_micro_batches.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <utility>

#include "fmt/format.h"
#include "minka/base/status.h"
#include "minka/driver/fit_by_layers.h"
#include "minka/driver/layers_of_counts.h"
#include "minka/lowering/rematerialize.h"
#include "minka/planner/inter_op/micro_batch_search.h"

namespace minka {
namespace {

PlanRequest InMicroBatches(PlanRequest request, int64_t count) {
  request.micro_batches.num_micro_batches = count;
  return request;
}

absl::StatusOr<LayersOnMeshes> FindLayers(const std::vector<Mesh>& meshes, PipelinePlanner& planner,
                                          const PlanRequest& request, const IsTried& is_tried) {
  std::vector<Mesh> tried = meshes;
  if (is_tried) std::erase_if(tried, [&](const Mesh& mesh) { return !is_tried({0, mesh}); });
  ASSIGN_OR_RETURN(LayersOnMeshes found,
                   FindLayersOn({.shapes = {std::move(tried)}, .kinds = {0}}, planner, request,
                                /*num_stages=*/1));
  if (found.free.empty() || found.ways.meshes.empty())
    return absl::NotFoundError("layers have no plans");
  return found;
}

// Across hosts there are many shapes, and one number of micro-batches is as good on each: that is
// found on the likeliest (MeshShapes), and planned on all as any other.
std::vector<MeshOfKind> FirstMeshes(const PlanRequest& request) {
  if (request.cluster.num_hosts == 1) return {};
  return {{0, MeshesOf(request).front()}};
}

class CountsOnMesh {
 public:
  // `remat`: that is asked for, by layer.
  CountsOnMesh(const PlanRequest& request, const RematChoice& remat, PreparedSteps& steps,
               StagePlanner& stages)
      : request_(request),
        steps_(steps),
        stages_(stages),
        layers_(
            {.request = OfOneStage(request, remat),
             .steps = &steps,
             .stages = &stages,
             .programs = StagePrograms::kOne,
             .find =
                 [meshes = MeshesOf(request)](PipelinePlanner& planner, const PlanRequest& of_count,
                                              const IsTried& is_tried) {
                   return FindLayers(meshes, planner, of_count, is_tried);
                 },
             .first_meshes = FirstMeshes(request)}) {}

  SearchResult<PlanResult> Run() && {
    const double at_most_us = MostEstimatedUs(request_, steps_.simplified());
    const std::vector<TriedCount> tried = SearchCounts(
        {.counts = MicroBatchCounts(steps_.simplified()),
         .estimate = [&](std::span<const int64_t> counts) { return layers_.Estimate(counts); },
         .estimate_fitting = [&](int64_t count) { return layers_.Of(count).EstimateFitting(); },
         .plan = [&](int64_t count) { return Plan(count); },
         .is_over = [&] { return !CheckNotCancelled(request_).ok(); },
         .smallest_first = true,
         .faster_than_us = at_most_us});
    RETURN_IF_ERROR(CheckNotCancelled(request_));
    if (best_) {
      best_->tried_micro_batches = DescribeCounts(tried, figures_, best_->plan().num_micro_batches);
      return *std::move(best_);
    }
    if (request_.faster_than_us) {
      if (const absl::Status why = WhyNoneIsWanted(tried, at_most_us); !why.ok())
        return MakeError(absl::StatusCode::kAborted, Message(why));
    }
    return PlanStep(InMicroBatches(request_, most_planned_), steps_, stages_);
  }

 private:
  absl::StatusOr<CountPlan> Plan(int64_t count) {
    PlanRequest request = InMicroBatches(request_, count);
    request.names_culprits = false;
    if (best_) request.faster_than_us = best_->plan().stage.step_time_us;
    most_planned_ = std::max(most_planned_, count);
    ASSIGN_OR_RETURN(PlanResult planned, PlanOnLikelyMeshes(std::move(request)));
    layers_.Forget(count);
    const minka::Plan& plan = planned.plan();
    figures_[count] = {.num_layers = {*steps_.simplified().num_layers},
                       .meshes = {plan.stage.mesh},
                       .step_time_us = plan.stage.step_time_us,
                       .peak_memory_bytes = plan.stage.peak_memory_bytes};
    const CountPlan out{.step_time_us = plan.stage.step_time_us};
    if (!best_ || out.step_time_us < best_->plan().stage.step_time_us) best_ = std::move(planned);
    return out;
  }

  // Where none of these gives a plan, on all.
  absl::StatusOr<PlanResult> PlanOnLikelyMeshes(PlanRequest request) {
    const std::vector<Mesh> all = std::exchange(request.meshes, {});
    const int64_t count = request.micro_batches.num_micro_batches;
    const bool tries_all = count == 1 && !FirstMeshes(request_).empty();
    for (const MeshOfKind& on : layers_.Of(count).LikelyMeshes()) request.meshes.push_back(on.mesh);
    if (!tries_all && !request.meshes.empty()) {
      SearchResult<PlanResult> planned = PlanStep(request, steps_, stages_);
      RETURN_IF_ERROR(CheckNotCancelled(request_));
      if (planned.ok()) {
        planned->candidates[planned->best].plan.notes.push_back(
            fmt::format("searched on the meshes on which layers by themselves are fastest in {} "
                        "micro-batches, which is what bound and gap are of: {}",
                        count, MeshesText(request.meshes)));
        return *std::move(planned);
      }
      if (absl::IsAborted(planned.status().why)) return planned.status().why;
    }
    request.meshes = all;
    SearchResult<PlanResult> planned = PlanStep(request, steps_, stages_);
    if (!planned.ok()) return planned.status().why;
    return *std::move(planned);
  }

  const PlanRequest& request_;
  PreparedSteps& steps_;
  StagePlanner& stages_;
  LayersOfCounts layers_;
  std::map<int64_t, PipelineFigures> figures_;  // of those planned
  std::optional<PlanResult> best_;
  int64_t most_planned_ = 1;  // numbers
};

}  // namespace

SearchResult<PlanResult> PlanInMicroBatches(const PlanRequest& request, PreparedSteps& steps,
                                            StagePlanner& stages) {
  const bool is_known = MayFitByLayers(steps.simplified(), MeshesOf(request), request);
  if (!is_known) return PlanStep(InMicroBatches(request, 1), steps, stages);
  RematChoice remat;
  if (request.remat) {
    ASSIGN_OR_RETURN(remat, EffectiveRemat(steps.simplified(), *request.remat));
  }
  return CountsOnMesh(request, remat, steps, stages).Run();
}

}  // namespace minka
