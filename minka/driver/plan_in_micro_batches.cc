#include "minka/driver/plan_in_micro_batches.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "minka/base/status.h"
#include "minka/driver/fit_by_layers.h"
#include "minka/driver/layers_by_count.h"
#include "minka/lowering/rematerialize.h"
#include "minka/planner/inter_op/micro_batch_search.h"
#include "minka/report/format.h"

namespace minka {
namespace {

PlanRequest InMicroBatches(PlanRequest request, int64_t count) {
  request.micro_batches.num_micro_batches = count;
  return request;
}

// Across hosts there are many shapes, and the number that is best on the likeliest (MeshShapes) is
// likely to be so on others: they are looked at for one micro-batch alone.
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
        layers_({.request = OfOneStage(request, remat),
                 .steps = &steps,
                 .stages = &stages,
                 .programs = StagePrograms::kOne,
                 .find =
                     [](PipelinePlanner& planner, const PlanRequest& of_count,
                        const IsTried& is_tried) {
                       std::vector<Mesh> shapes = MeshesOf(of_count);
                       if (is_tried)
                         std::erase_if(shapes,
                                       [&](const Mesh& mesh) { return !is_tried({0, mesh}); });
                       return FindLayersOnMesh(std::move(shapes), planner, of_count);
                     },
                 .first_meshes = FirstMeshes(request)}) {}

  SearchResult<PlanResult> Run() && {
    const double at_most_us = MostEstimatedUs(request_, steps_.simplified());
    const std::vector<TriedCount> tried = SearchCounts(
        {.counts = MicroBatchCounts(steps_.simplified()),
         .num_devices = request_.num_devices(),
         .estimate = [&](std::span<const int64_t> counts) { return Estimate(counts); },
         .estimate_fitting = [&](int64_t count) { return layers_.Of(count).EstimateFitting(); },
         .least_part = [&](int64_t count) { return layers_.Of(count).least_part(); },
         .plan = [&](int64_t count) { return Plan(count); },
         .is_over = [&] { return IsOver(); },
         .smallest_first = true,
         .faster_than_us = at_most_us});
    RETURN_IF_ERROR(CheckNotCancelled(request_));
    if (best_) {
      best_->tried_micro_batches = DescribeCounts(tried, figures_, best_->plan().num_micro_batches);
      minka::Plan& plan = best_->candidates[best_->best].plan;
      plan.search_seconds = Seconds();
      if (auto note = NoteOnChosenCount(request_.micro_batches, plan.num_micro_batches,
                                        MicroBatchCounts(steps_.simplified()).back()))
        plan.notes.push_back(*std::move(note));
      return *std::move(best_);
    }
    if (!is_known_) return PlanCount(InMicroBatches(request_, 1));
    if (IsInvalid()) return *refusal_;
    if (request_.faster_than_us) {
      if (const absl::Status why = WhyNoneIsWanted(tried, at_most_us); !why.ok())
        return MakeError(absl::StatusCode::kAborted, Message(why));
    }
    // What needs least memory says what is to blame.
    if (refusal_ && (!request_.names_culprits || request_.faster_than_us)) return *refusal_;
    return PlanCount(InMicroBatches(request_, most_refused_));
  }

 private:
  std::vector<absl::StatusOr<CountEstimate>> Estimate(std::span<const int64_t> counts) {
    std::vector<absl::StatusOr<CountEstimate>> estimates = layers_.Estimate(counts);
    is_known_ = is_known_ && (counts.front() > 1 || estimates.front().ok());
    return estimates;
  }

  // Something is planned in any case.
  bool IsOver() const {
    const bool has_tried = best_ || refusal_;
    const bool is_spent = budget_.left() <= request_.search.work_limit / 32 ||
                          Seconds() >= request_.search.time_limit_seconds;
    return !is_known_ || IsInvalid() || (has_tried && is_spent) ||
           !CheckNotCancelled(request_).ok();
  }
  // Is something asked for that cannot be, in any number?
  bool IsInvalid() const { return refusal_ && absl::IsInvalidArgument(refusal_->why); }
  double Seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

  absl::StatusOr<CountPlan> Plan(int64_t count) {
    PlanRequest request = InMicroBatches(request_, count);
    request.names_culprits = false;
    request.on_progress = layers_.Of(count).request().on_progress;
    if (best_) request.faster_than_us = best_->plan().stage.step_time_us;
    SearchResult<PlanResult> planned = PlanOnLikelyMeshes(std::move(request));
    layers_.Forget(count);
    RETURN_IF_ERROR(CheckNotCancelled(request_));
    if (!planned.ok()) {
      absl::Status why = planned.status().why;
      if (!refusal_ || count > most_refused_ || absl::IsInvalidArgument(why)) {
        refusal_ = planned.status();
        most_refused_ = count;
      }
      if (absl::IsResourceExhausted(why)) return CountPlan{.fits = false};
      return why;
    }
    const minka::Plan& plan = planned->plan();
    figures_[count] = {.num_layers = {*steps_.simplified().num_layers},
                       .meshes = {plan.stage.mesh},
                       .step_time_us = plan.stage.step_time_us,
                       .peak_memory_bytes = plan.stage.peak_memory_bytes};
    const CountPlan out{.step_time_us = plan.stage.step_time_us};
    if (!best_ || out.step_time_us < best_->plan().stage.step_time_us) best_ = *std::move(planned);
    return out;
  }

  SearchResult<PlanResult> PlanCount(PlanRequest request) {
    double& seconds = request.search.time_limit_seconds;
    seconds = std::max(0.0, seconds - Seconds());
    return PlanInGivenMicroBatches(request, steps_, stages_, budget_);
  }

  // Where none of these gives a plan, on all.
  SearchResult<PlanResult> PlanOnLikelyMeshes(PlanRequest request) {
    const std::vector<Mesh> all = std::exchange(request.meshes, {});
    const int64_t count = request.micro_batches.num_micro_batches;
    const bool tries_all = count == 1 && !FirstMeshes(request_).empty();
    for (const MeshOfKind& on : layers_.Of(count).LikelyMeshes()) request.meshes.push_back(on.mesh);
    if (!tries_all && !request.meshes.empty()) {
      SearchResult<PlanResult> planned = PlanCount(request);
      if (planned.ok()) {
        planned->candidates[planned->best].plan.notes.push_back(fmt::format(
            "searched on the meshes on which layers by themselves are fastest in {}, "
            "which is what bound and gap are of: {}",
            FormatNumberOf(count, "micro-batch", "micro-batches"), MeshesText(request.meshes)));
        return planned;
      }
      const absl::Status& why = planned.status().why;
      if (absl::IsAborted(why) || absl::IsInvalidArgument(why)) return planned;
    }
    request.meshes = all;
    return PlanCount(std::move(request));
  }

  const PlanRequest& request_;
  PreparedSteps& steps_;
  StagePlanner& stages_;
  LayersByCount layers_;
  std::map<int64_t, PipelineFigures> figures_;  // of those planned
  std::optional<PlanResult> best_;
  std::optional<Refusal> refusal_;  // of the largest number that has no plan
  int64_t most_refused_ = 1;        // that number
  bool is_known_ = true;            // what layers take
  WorkBudget budget_{request_.search.work_limit};
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace

SearchResult<PlanResult> PlanInMicroBatches(const PlanRequest& request, PreparedSteps& steps,
                                            StagePlanner& stages) {
  const bool is_known = MayFitByLayers(steps.simplified(), MeshesOf(request), request);
  if (!is_known) {
    WorkBudget budget(request.search.work_limit);
    return PlanInGivenMicroBatches(InMicroBatches(request, 1), steps, stages, budget);
  }
  RematChoice remat;
  if (request.remat) {
    ASSIGN_OR_RETURN(remat, EffectiveRemat(steps.simplified(), *request.remat));
  }
  return CountsOnMesh(request, remat, steps, stages).Run();
}

}  // namespace minka
