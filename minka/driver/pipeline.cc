#include "minka/driver/pipeline.h"

#include <algorithm>
#include <map>
#include <utility>

#include "fmt/ranges.h"
#include "minka/base/parallel.h"
#include "minka/base/status.h"
#include "minka/driver/predict_pipeline.h"
#include "minka/driver/prepare.h"
#include "minka/ir/micro_loop.h"
#include "minka/lowering/emit.h"
#include "minka/lowering/task_programs.h"
#include "minka/report/format.h"
#include "minka/schedule/generate.h"

namespace minka {
namespace {

double PartOfLimit(const PipelineStagePlan& stage, const PlanRequest& request) {
  const std::optional<int64_t> limit_bytes = request.MemoryLimitOn(stage.kind);
  if (!limit_bytes) return 0;
  return static_cast<double>(stage.plan.peak_memory_bytes) / static_cast<double>(*limit_bytes);
}

}  // namespace

PipelineRow RowOf(const TriedSubmeshes& tried) {
  const std::vector<std::string>& devices = tried.devices;
  std::string meshes;
  for (size_t i = 0; i < tried.num_devices.size(); ++i) {
    const bool is_first = i == 0 || (!devices.empty() && devices[i] != devices[i - 1]);
    if (i > 0) meshes += is_first ? fmt::format(" {}, ", devices[i - 1]) : "+";
    meshes += fmt::to_string(tried.num_devices[i]);
  }
  meshes += " " + (devices.empty() ? "devices" : devices.back());
  return {.chosen = tried.chosen,
          .what = fmt::format(
              "{} on {}",
              FormatNumberOf(static_cast<int64_t>(tried.num_devices.size()), "stage", "stages"),
              meshes),
          .figures = tried.figures,
          .remark = tried.why_not};
}

PipelineRow RowOf(const TriedSchedule& tried) {
  return {.chosen = tried.chosen,
          .what = "schedule " + tried.name,
          .figures = tried.figures,
          .remark = tried.why_not};
}

std::vector<const Module*> PlannedPipeline::modules() const {
  std::vector<const Module*> modules;
  for (const StageStep& stage : staged.stages) modules.push_back(&stage.step.module);
  return modules;
}

std::vector<Mesh> PlannedPipeline::meshes() const {
  std::vector<Mesh> meshes(schedule.shape.num_meshes);
  for (const PipelineStagePlan& stage : plan.stages) {
    meshes[stage.mesh_number] = stage.plan.stage.mesh;
  }
  return meshes;
}

std::vector<int> PlannedPipeline::kinds() const {
  std::vector<int> kinds(schedule.shape.num_meshes);
  for (const PipelineStagePlan& stage : plan.stages) kinds[stage.mesh_number] = stage.kind;
  return kinds;
}

std::vector<std::string> PlannedPipeline::devices() const {
  std::vector<std::string> devices(schedule.shape.num_meshes);
  for (const PipelineStagePlan& stage : plan.stages) devices[stage.mesh_number] = stage.device;
  if (std::ranges::all_of(devices, &std::string::empty)) devices.clear();
  return devices;
}

std::vector<int> PlannedPipeline::num_devices() const {
  std::vector<int> num_devices;
  for (const Mesh& mesh : meshes()) num_devices.push_back(static_cast<int>(mesh.num_devices()));
  return num_devices;
}

bool HasBackwardPass(const Step& prepared) {
  return std::ranges::any_of(
      prepared.module.entry_computation().instructions,
      [](const Instruction& instruction) { return instruction.part.phase == Phase::kBackward; });
}

absl::StatusOr<Schedule> ScheduleFor(const Step& prepared, std::string_view name,
                                     const PipelineShape& shape) {
  ASSIGN_OR_RETURN(Schedule schedule, MakeSchedule(name, shape));
  if (shape.num_micro_batches > 1 && !FindMicroLoop(prepared.module).exists()) {
    return InvalidArgument(
        "{} micro-batches of what? No operation of {} works on slices of its batch inputs",
        shape.num_micro_batches, prepared.module.name);
  }
  if (schedule.trains || !HasBackwardPass(prepared)) return schedule;
  return InvalidArgument("schedule {} runs forward passes only, and {} has a backward pass",
                         schedule.name, prepared.module.name);
}

absl::StatusOr<PlannedPipeline> LoadPipeline(const Step& step, std::string_view plan_json) {
  ASSIGN_OR_RETURN(const PlannedPreparation how, PlannedPreparationOf(plan_json));
  if (how.stage_of_layer.empty()) return InvalidArgument("plan: it is not one of a pipeline");
  ASSIGN_OR_RETURN(const Preparation preparation, PreparationOfJson(plan_json));
  PlannedPipeline out;
  ASSIGN_OR_RETURN(out.split, SplitStacks(step));
  ASSIGN_OR_RETURN(out.prepared, Prepare(out.split.step, preparation));
  out.plan.stage_of_layer = how.stage_of_layer;
  ASSIGN_OR_RETURN(out.staged,
                   CutIntoStages(out.prepared, {.stage_of_layer = how.stage_of_layer,
                                                .splits_backward = SplitsBackward(how.schedule)}));
  const std::vector<const Module*> modules = out.modules();
  ASSIGN_OR_RETURN(out.plan, PipelinePlanFromJson(plan_json, out.prepared.module, modules));
  std::map<int, Mesh> meshes;
  std::map<int, int> kinds;  // by mesh number
  for (size_t i = 0; i < out.plan.stages.size(); ++i) {
    const PipelineStagePlan& stage = out.plan.stages[i];
    RETURN_IF_ERROR(WithContext(CheckPlan(stage.plan, *modules[i]), fmt::format("stage {}", i)));
    const auto [found, is_new] = meshes.try_emplace(stage.mesh_number, stage.plan.stage.mesh);
    if (found->second != stage.plan.stage.mesh) {
      return InvalidArgument("plan: stage {} has another mesh than an earlier stage of mesh {}", i,
                             stage.mesh_number);
    }
    if (kinds.try_emplace(stage.mesh_number, stage.kind).first->second != stage.kind) {
      return InvalidArgument(
          "plan: stage {} is on hosts of another kind than an earlier stage of "
          "mesh {}",
          i, stage.mesh_number);
    }
  }
  const auto num_meshes = static_cast<int>(meshes.size());
  const auto num_stages = static_cast<int>(out.plan.stages.size());
  ASSIGN_OR_RETURN(out.schedule, ScheduleFor(out.prepared, how.schedule,
                                             {.num_meshes = num_meshes,
                                              .num_micro_batches = out.plan.num_micro_batches,
                                              .stages_per_mesh = num_stages / num_meshes}));
  for (int stage = 0; stage < num_stages; ++stage) {
    if (num_stages % num_meshes == 0 &&
        out.plan.stages[stage].mesh_number == out.schedule.MeshOf(stage))
      continue;
    return InvalidArgument("plan: stage {} is on mesh {}; consecutive stages go round the meshes",
                           stage, out.plan.stages[stage].mesh_number);
  }
  return out;
}

MicroBatchOptions MicroBatchesOf(const PipelinePlan& plan) {
  return {.num_micro_batches = plan.num_micro_batches,
          .per_micro_batch = plan.per_micro_batch,
          .narrow_sums = plan.narrow_sums};
}

namespace {

absl::StatusOr<PipelineProgram> LowerAs(const Schedule& schedule, const PlannedPipeline& planned,
                                        Platform platform,
                                        const std::vector<std::vector<ValueVersion>>& kept) {
  const size_t num_stages = planned.plan.stages.size();
  std::vector<StagePlan> plans;
  for (const PipelineStagePlan& stage : planned.plan.stages) plans.push_back(stage.plan.stage);
  std::vector<absl::StatusOr<std::vector<TaskProgram>>> lowered(num_stages);
  ForEachInParallel(static_cast<int>(num_stages), NumHardwareThreads(), [&](int stage) {
    const bool keeps_values = stage < static_cast<int>(kept.size());
    lowered[stage] = LowerTasks(planned.staged.stages[stage], plans[stage], platform,
                                keeps_values ? kept[stage] : std::vector<ValueVersion>());
  });
  std::vector<std::vector<TaskProgram>> programs;
  for (size_t stage = 0; stage < num_stages; ++stage) {
    if (!lowered[stage].ok())
      return WithContext(lowered[stage].status(), fmt::format("stage {}", stage));
    programs.push_back(*std::move(lowered[stage]));
  }
  return Emit(schedule, planned.staged, plans, programs, kept);
}

}  // namespace

absl::StatusOr<PipelineProgram> LowerPipeline(const PlannedPipeline& planned, Platform platform,
                                              const std::vector<std::vector<ValueVersion>>& kept) {
  return LowerAs(planned.schedule, planned, platform, kept);
}

absl::StatusOr<PipelineProgram> LowerForMemory(const PlannedPipeline& planned, Platform platform) {
  ASSIGN_OR_RETURN(PipelineProgram program,
                   LowerAs(ShortestAlike(planned.schedule), planned, platform, /*kept=*/{}));
  for (MeshProgram& mesh : program.meshes) {
    // The numbers of all micro-batches are there from the beginning.
    const auto num_wanted = static_cast<size_t>(planned.schedule.shape.num_micro_batches);
    while (!mesh.numbers.empty() && mesh.numbers.size() < num_wanted) {
      mesh.slots.push_back(mesh.slots[mesh.numbers.back()]);
      mesh.numbers.push_back(static_cast<int>(mesh.slots.size()) - 1);
    }
  }
  return program;
}

absl::Status CheckKinds(const PipelinePlan& plan, int num_kinds) {
  for (size_t i = 0; i < plan.stages.size(); ++i) {
    const PipelineStagePlan& stage = plan.stages[i];
    if (stage.kind < num_kinds) continue;
    return InvalidArgument("plan: stage {} is on hosts of kind {} ({}), its cluster has {} kind{}",
                           i, stage.kind, stage.device, num_kinds, num_kinds == 1 ? "" : "s");
  }
  return absl::OkStatus();
}

double PartOfLimits(const PipelinePlan& plan, const PlanRequest& request) {
  double part = 0;
  for (const PipelineStagePlan& stage : plan.stages)
    part = std::max(part, PartOfLimit(stage, request));
  return part;
}

absl::Status CheckMemory(const PipelinePlan& plan, const PlanRequest& request) {
  if (PartOfLimits(plan, request) <= 1) return absl::OkStatus();
  const auto over = std::ranges::max_element(
      plan.stages, {}, [&](const PipelineStagePlan& stage) { return PartOfLimit(stage, request); });
  return ResourceExhausted(
      "the pipeline needs {} bytes per device{}{}, {} are allowed; raise the limit, or take more "
      "micro-batches or stages",
      over->plan.peak_memory_bytes, over->device.empty() ? "" : fmt::format(" ({})", over->device),
      plan.memory_tier == MemoryTier::kCompiled ? " when compiled" : "",
      *request.MemoryLimitOn(over->kind));
}

absl::StatusOr<std::unique_ptr<PipelineExecutor>> CompilePipeline(PlannedPipeline& planned,
                                                                  Session& session) {
  ASSIGN_OR_RETURN(PipelineProgram program, LowerPipeline(planned, session.platform()));
  ASSIGN_OR_RETURN(std::unique_ptr<PipelineExecutor> executor, session.Load(std::move(program)));
  std::vector<std::vector<int64_t>> temporary;  // by mesh and program
  for (const std::vector<pjrt::MemoryStatistics>& of_mesh : executor->memory()) {
    temporary.emplace_back();
    for (const pjrt::MemoryStatistics& memory : of_mesh) {
      temporary.back().push_back(memory.temp_bytes);
    }
  }
  SetMemory(executor->program(), temporary, planned.plan);
  planned.plan.memory_tier = MemoryTier::kCompiled;
  return executor;
}

std::vector<std::vector<TracedEvent>> TraceOf(const PipelineExecutor& executor) {
  std::vector<std::vector<TracedEvent>> events;
  for (size_t i = 0; i < executor.trace().size(); ++i) {
    const MeshProgram& mesh = executor.program().meshes[i];
    std::vector<TracedEvent>& of_mesh = events.emplace_back();
    for (const InstructionTime& time : executor.trace()[i]) {
      const PipelineInstruction& instruction = mesh.instructions[time.instruction];
      if (std::holds_alternative<FreeInstruction>(instruction)) continue;
      std::string name = InstructionName(mesh, time.instruction);
      std::string category = name.substr(0, name.find(' '));
      of_mesh.push_back({std::move(name), std::move(category), time.begin_us, time.end_us});
    }
  }
  return events;
}

}  // namespace minka
