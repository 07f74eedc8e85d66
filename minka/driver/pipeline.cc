#include "minka/driver/pipeline.h"

#include <memory>
#include <utility>

#include "minka/base/status.h"
#include "minka/driver/prepare.h"
#include "minka/lowering/emit.h"
#include "minka/lowering/task_programs.h"
#include "minka/schedule/generate.h"

namespace minka {
namespace {

absl::StatusOr<Schedule> ScheduleFor(const PipelineRequest& request) {
  const int num_meshes = static_cast<int>(request.meshes.size());
  const int num_stages = request.stage_of_layer.empty() ? 0 : request.stage_of_layer.back() + 1;
  if (num_meshes == 0 || num_stages == 0 || num_stages % num_meshes != 0) {
    return InvalidArgument("{} stages do not go evenly on {} meshes", num_stages, num_meshes);
  }
  return MakeSchedule(
      request.schedule,
      {.num_meshes = num_meshes,
       .num_micro_batches = static_cast<int>(request.planning.micro_batches.num_micro_batches),
       .stages_per_mesh = num_stages / num_meshes});
}

}  // namespace

absl::StatusOr<PlannedPipeline> PlanPipeline(const Step& step, const PipelineRequest& request) {
  PlannedPipeline out;
  ASSIGN_OR_RETURN(out.schedule, ScheduleFor(request));
  const PlanRequest& planning = request.planning;
  ASSIGN_OR_RETURN(out.prepared, Prepare(step, {.micro_batches = planning.micro_batches,
                                                .remat = planning.remat.value_or(RematChoice())}));
  ASSIGN_OR_RETURN(out.staged,
                   CutIntoStages(out.prepared, {.stage_of_layer = request.stage_of_layer,
                                                .splits_backward = out.schedule.splits_backward}));
  for (int stage = 0; stage < out.schedule.num_stages(); ++stage) {
    const Mesh& mesh = request.meshes[out.schedule.MeshOf(stage)];
    ASSIGN_OR_RETURN(const std::unique_ptr<CostModel> cost,
                     MakeCostModel(planning.cost_model, planning.cluster, mesh));
    WorkBudget budget(planning.search.work_limit / out.schedule.num_stages());
    absl::StatusOr<IntraOpResult> planned =
        PlanMesh(out.staged.stages[stage].step, mesh, *cost,
                 {.method = planning.methods.front(), .search = planning.search, .budget = &budget});
    if (!planned.ok()) return WithContext(planned.status(), fmt::format("stage {}", stage));
    for (size_t layer = 0; layer < request.stage_of_layer.size(); ++layer) {
      if (request.stage_of_layer[layer] != stage) continue;
      planned->stage.layers.push_back(static_cast<int>(layer));
    }
    out.stages.push_back(std::move(planned->stage));
  }
  return out;
}

absl::StatusOr<PipelineProgram> LowerPipeline(const PlannedPipeline& planned) {
  std::vector<std::vector<TaskProgram>> programs;
  for (size_t stage = 0; stage < planned.stages.size(); ++stage) {
    absl::StatusOr<std::vector<TaskProgram>> lowered =
        LowerTasks(planned.staged.stages[stage], planned.stages[stage]);
    if (!lowered.ok()) return WithContext(lowered.status(), fmt::format("stage {}", stage));
    programs.push_back(*std::move(lowered));
  }
  return Emit(planned.schedule, planned.staged, planned.stages, programs);
}

}  // namespace minka
