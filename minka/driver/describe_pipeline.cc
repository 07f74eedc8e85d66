#include "minka/driver/describe_pipeline.h"

#include <algorithm>
#include <utility>
#include <variant>
#include <vector>

#include "minka/base/status.h"
#include "minka/driver/dump.h"
#include "minka/ir/hlo_proto.h"
#include "minka/report/pipeline_table.h"
#include "minka/report/plan_table.h"
#include "minka/report/tensors_of_plan.h"

namespace minka {
namespace {

// Of the weights that lie there; what other stages send is none.
int64_t WeightBytes(const StageStep& stage, const Plan& plan) {
  int64_t bytes = 0;
  for (const TensorOnMesh& tensor : TensorsOfPlan(stage.step, plan)) {
    if (tensor.kind != TensorKind::kParameter) continue;
    const Instruction& parameter = stage.step.module.entry_computation().instruction(tensor.value);
    const int number = static_cast<int>(parameter.As<ParameterAttributes>().number);
    if (stage.step.parameters[number].role != ParameterRole::kState) continue;
    bytes += tensor.bytes_per_device;
  }
  return bytes;
}

// The result of a stage as it makes it.
std::string ShardingOfResult(const PlannedPipeline& planned, const StagePort& from) {
  const Module& module = planned.staged.stages[from.stage].step.module;
  const StagePlan& plan = planned.plan.stages[from.stage].plan.stage;
  return ToString(VersionSharding(module, plan, module.entry_computation().results[from.number],
                                  plan.result_versions[from.number]),
                  plan.mesh);
}

std::string NameOfResult(const PlannedPipeline& planned, const StagePort& from) {
  const Computation& entry = planned.staged.stages[from.stage].step.module.entry_computation();
  const Instruction& made = entry.instruction(entry.results[from.number]);
  return made.op_name.empty() ? made.name : made.op_name;
}

PipelineContents ContentsOf(const PlannedPipeline& planned) {
  PipelineContents contents;
  for (size_t stage = 0; stage < planned.plan.stages.size(); ++stage) {
    contents.weight_bytes.push_back(
        WeightBytes(planned.staged.stages[stage], planned.plan.stages[stage].plan));
  }
  for (const Border& border : planned.staged.borders) {
    for (const StagePort& to : border.to) {
      const Plan& receiver = planned.plan.stages[to.stage].plan;
      SentValue sent{
          .name = NameOfResult(planned, border.from),
          .shape = border.shape,
          .from_mesh = planned.schedule.MeshOf(border.from.stage),
          .to_mesh = planned.schedule.MeshOf(to.stage),
          .sent_as = ShardingOfResult(planned, border.from),
          .received_as = ToString(receiver.parameters[to.number].sharding, receiver.stage.mesh),
          .per_micro_batch = border.per_micro_batch};
      if (sent.from_mesh != sent.to_mesh) contents.sent.push_back(std::move(sent));
    }
  }
  return contents;
}

std::string SlotLine(const PipelineProgram& program, const std::string& name, const MeshSlot& at) {
  const ArraySlot& slot = program.slot(at);
  return fmt::format("mesh {}  {}\n", at.mesh,
                     DescribeArray(name, slot.shape, slot.sharding, program.meshes[at.mesh].mesh));
}

std::string InputsText(const Step& prepared, const PipelineProgram& program) {
  std::string text;
  for (size_t i = 0; i < prepared.parameters.size(); ++i) {
    const ParameterInfo& info = prepared.parameters[i];
    for (const MeshSlot& at : program.parameters[i]) {
      text +=
          fmt::format("{:4}  {:8}  {}", i, RoleName(info.role), SlotLine(program, info.name, at));
    }
  }
  return text;
}

std::string OutputsText(const Step& prepared, const PipelineProgram& program) {
  std::string text;
  for (size_t i = 0; i < prepared.results.size(); ++i) {
    text += fmt::format("{:4}  {:8}  {}", i, RoleName(prepared.results[i].role),
                        SlotLine(program, prepared.results[i].name, program.results[i]));
  }
  return text;
}

std::string SlotsText(const MeshProgram& mesh, const std::vector<int>& slots) {
  std::string text;
  for (size_t i = 0; i < slots.size(); ++i) {
    const ArraySlot& slot = mesh.slots[slots[i]];
    text += fmt::format("{:4}  {}\n", i,
                        DescribeArray(slot.name, slot.shape, slot.sharding, mesh.mesh));
  }
  return text;
}

// "stage0.backward", "stage1.apply_1".
std::string FileNameOf(const StageProgram& program) {
  std::string name = fmt::format("stage{}.{}", program.stage, ToString(program.task));
  std::ranges::replace(name, ' ', '_');
  return name;
}

// What the program reads and makes when it runs first; it is the same for every micro-batch.
absl::Status DumpArrays(const MeshProgram& mesh, int number, const DumpFolder& dump) {
  const std::string name = FileNameOf(mesh.programs[number]);
  for (const PipelineInstruction& instruction : mesh.instructions) {
    const auto* const run = std::get_if<RunInstruction>(&instruction);
    if (run == nullptr || run->program != number) continue;
    RETURN_IF_ERROR(dump.Write(name + ".inputs.txt", SlotsText(mesh, run->arguments)));
    return dump.Write(name + ".outputs.txt", SlotsText(mesh, run->results));
  }
  return absl::OkStatus();
}

absl::Status DumpCompiled(PipelineExecutor& executor, int mesh, int number, const Plan& plan,
                          const DumpFolder& dump) {
  const std::string name = FileNameOf(executor.program().meshes[mesh].programs[number]);
  ASSIGN_OR_RETURN(const std::string bytes, executor.OptimizedModule(mesh, number));
  ASSIGN_OR_RETURN(const Module optimized, ImportHlo(bytes));
  RETURN_IF_ERROR(dump.Write(name + ".optimized.hlo.txt", HloText(optimized)));
  return dump.Write(name + ".memory.json", DescribeMemory(plan, executor.memory()[mesh][number]));
}

}  // namespace

absl::StatusOr<std::string> DescribePipeline(const PlannedPipeline& planned) {
  ASSIGN_OR_RETURN(const Timeline timeline, PredictTimeline(planned));
  return PipelineTable(planned.prepared, planned.plan, planned.schedule, timeline,
                       ContentsOf(planned));
}

std::string DescribeStages(const PlannedPipeline& planned) {
  std::string text;
  for (size_t i = 0; i < planned.plan.stages.size(); ++i) {
    const PipelineStagePlan& stage = planned.plan.stages[i];
    text += fmt::format("{}stage {}, layers {}, on mesh {}, {}\n\n{}", i == 0 ? "" : "\n", i,
                        LayersText(stage.plan.stage.layers), stage.mesh_number, MeshText(stage),
                        StoredAndCollectives(planned.staged.stages[i].step, stage.plan));
  }
  return text;
}

absl::Status DumpPipeline(const PlannedPipeline& planned, Platform platform,
                          PipelineExecutor* executor, const std::string& folder) {
  ASSIGN_OR_RETURN(const DumpFolder dump, DumpFolder::Create(folder));
  ASSIGN_OR_RETURN(const PipelineProgram program, LowerPipeline(planned, platform));
  RETURN_IF_ERROR(dump.Write("prepared.txt", HloText(ToModule(planned.prepared))));
  RETURN_IF_ERROR(dump.Write("plan.json", PipelinePlanToJson(planned.plan, planned.modules())));
  RETURN_IF_ERROR(dump.Write("step_inputs.txt", InputsText(planned.prepared, program)));
  RETURN_IF_ERROR(dump.Write("step_outputs.txt", OutputsText(planned.prepared, program)));
  for (int mesh = 0; mesh < static_cast<int>(program.meshes.size()); ++mesh) {
    const MeshProgram& of_mesh = program.meshes[mesh];
    for (int number = 0; number < static_cast<int>(of_mesh.programs.size()); ++number) {
      const StageProgram& of_stage = of_mesh.programs[number];
      RETURN_IF_ERROR(dump.Write(FileNameOf(of_stage) + ".hlo.txt", HloText(of_stage.module)));
      RETURN_IF_ERROR(DumpArrays(of_mesh, number, dump));
      if (executor == nullptr) continue;
      RETURN_IF_ERROR(
          DumpCompiled(*executor, mesh, number, planned.plan.stages[of_stage.stage].plan, dump));
    }
    RETURN_IF_ERROR(
        dump.Write(fmt::format("mesh{}.instructions.txt", mesh), InstructionsText(of_mesh)));
  }
  return dump.Write("cross_mesh_transfers.txt", TransfersText(program));
}

}  // namespace minka
