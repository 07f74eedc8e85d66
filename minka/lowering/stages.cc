#include "minka/lowering/stages.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "minka/base/check.h"
#include "minka/base/status.h"
#include "minka/ir/call_graph.h"
#include "minka/ir/rewriter.h"
#include "minka/lowering/saved_values.h"
#include "minka/lowering/stage_placement.h"
#include "minka/lowering/sum_on_stages.h"
#include "minka/sharding/example_dims.h"

namespace minka {
namespace {

absl::Status CheckOptions(const Step& step, const StageOptions& options) {
  const std::vector<int>& stages = options.stage_of_layer;
  if (!step.num_layers || *step.num_layers != static_cast<int>(stages.size())) {
    return InvalidArgument("{} layers are given to stages; {} has {}", stages.size(),
                           step.module.name, step.num_layers.value_or(0));
  }
  if (stages.empty()) {
    return InvalidArgument(
        "{} has no layers to make stages of: it marks no boundaries between them",
        step.module.name);
  }
  if (stages[0] != 0) {
    return InvalidArgument("layer 0 is given to stage {}; the first is 0", stages[0]);
  }
  for (size_t layer = 1; layer < stages.size(); ++layer) {
    const int before = stages[layer - 1];
    if (stages[layer] == before || stages[layer] == before + 1) continue;
    return InvalidArgument("layer {} is given to stage {} behind one of stage {}", layer,
                           stages[layer], before);
  }
  return absl::OkStatus();
}

// What a stage gives others, by value of the whole step.
using Borders = std::map<Value, std::vector<int>>;  // -> stages that read it, ascending

absl::StatusOr<Borders> FindBorders(const Step& step, const StagePlacement& placement,
                                    int num_stages) {
  const Computation& entry = step.module.entry_computation();
  Borders borders;
  for (int stage = 0; stage < num_stages; ++stage) {
    const std::vector<InstructionId>& ids = placement.InstructionsOf(stage);
    const std::vector<ProgramTask> tasks = placement.TasksOf(stage);
    for (size_t i = 0; i < ids.size(); ++i) {
      for (const Value operand : entry.instructions[ids[i]].operands) {
        const int source = placement.stage(operand.instruction);
        if (source == kEverywhere || source == stage) continue;
        RETURN_IF_ERROR(placement.CheckRead(operand, ids[i], stage, tasks[i].kind));
        std::vector<int>& readers = borders[operand];
        if (readers.empty() || readers.back() != stage) readers.push_back(stage);
      }
    }
  }
  return borders;
}

// Writes the step of one stage.
class StageWriter {
 public:
  // The frame is the step's module without the operations of its entry computation.
  StageWriter(const Step& step, const Module& frame, const StagePlacement& placement,
              const Borders& borders, const std::vector<std::vector<ExampleDims>>& example_dims,
              int stage)
      : source_(step),
        frame_(frame),
        entry_(step.module.entry_computation()),
        placement_(placement),
        borders_(borders),
        example_dims_(example_dims),
        stage_(stage),
        ids_(placement.InstructionsOf(stage)),
        tasks_of_ids_(placement.TasksOf(stage)),
        rewriter_(entry_, ids_.size()) {}

  StageStep Run(StagedStep& staged) && {
    WriteParameters(staged);
    Receive(staged, /*per_micro_batch=*/false);
    bool is_in_loop = false;
    for (size_t i = 0; i < ids_.size(); ++i) {
      const InstructionId id = ids_[i];
      if (!is_in_loop && placement_.loop().exists() && id > placement_.loop().begin) {
        is_in_loop = true;
        Receive(staged, /*per_micro_batch=*/true);
      }
      if (entry_.instructions[id].opcode == Opcode::kParameter) continue;
      rewriter_.Copy(id);
      tasks_.push_back(tasks_of_ids_[i]);
    }
    WriteResults(staged);
    SetTasksOfParameters();
    return std::move(*this).Finish();
  }

 private:
  bool IsOnStage(InstructionId id) const { return std::ranges::binary_search(ids_, id); }

  Value AppendParameter(Instruction instruction, const ParameterInfo& info) {
    instruction.attributes =
        ParameterAttributes{.number = static_cast<int64_t>(step_.parameters.size())};
    tasks_.emplace_back();
    step_.parameters.push_back(info);
    return rewriter_.AppendOne(std::move(instruction));
  }

  void WriteParameters(StagedStep& staged) {
    for (size_t i = 0; i < entry_.parameters.size(); ++i) {
      const InstructionId id = entry_.parameters[i];
      if (!IsOnStage(id)) continue;
      staged.parameters[i].push_back({stage_, static_cast<int>(step_.parameters.size())});
      parameters_[static_cast<int>(i)] = static_cast<int>(step_.parameters.size());
      rewriter_.Map({id, 0}, AppendParameter(entry_.instructions[id], source_.parameters[i]));
      step_.parameters.back().state_result = -1;  // unless it is found among the results
    }
  }

  void Receive(StagedStep& staged, bool per_micro_batch) {
    size_t number = 0;
    for (const auto& [value, readers] : borders_) {
      Border& border = staged.borders[number++];
      if (border.per_micro_batch != per_micro_batch) continue;
      if (!std::ranges::binary_search(readers, stage_)) continue;
      const Instruction& source = entry_.instruction(value);
      Instruction parameter{.opcode = Opcode::kParameter,
                            .name = fmt::format("{}.{}.received", source.name, value.result),
                            .results = {entry_.shape(value)},
                            .op_name = source.op_name,
                            .part = source.part};
      parameter.part.loop = per_micro_batch ? LoopRole::kBody : LoopRole::kOutside;
      border.to.push_back({stage_, static_cast<int>(step_.parameters.size())});
      ParameterInfo info{.role = ParameterRole::kConstant,
                         .name = fmt::format("received/{}", source.name)};
      if (IsPerMicroBatch(placement_.task(value.instruction).kind)) {
        info.role = ParameterRole::kBatch;
        info.received = example_dims_[value.instruction][value.result];
      }
      rewriter_.Map(value, AppendParameter(std::move(parameter), info));
    }
  }

  void WriteResults(StagedStep& staged) {
    for (int i = 0; i < static_cast<int>(entry_.results.size()); ++i) {
      if (placement_.StageOfResult(i) != stage_) continue;
      results_[i] = static_cast<int>(values_.size());
      staged.results[i] = {stage_, results_[i]};
      values_.push_back(rewriter_.Now(entry_.results[i]));
      step_.results.push_back(source_.results[i]);
    }
    for (const auto& [number, now] : parameters_) {
      const auto found = results_.find(source_.parameters[number].state_result);
      if (found != results_.end()) step_.parameters[now].state_result = found->second;
    }
    size_t number = 0;
    for (const auto& [value, readers] : borders_) {
      Border& border = staged.borders[number++];
      if (placement_.stage(value.instruction) != stage_) continue;
      border.from = {stage_, static_cast<int>(values_.size())};
      values_.push_back(rewriter_.Now(value));
      step_.results.push_back({.name = fmt::format("sent/{}", entry_.instruction(value).name)});
    }
  }

  // The program that reads a parameter first.
  void SetTasksOfParameters() {
    const std::vector<Instruction>& written = rewriter_.copy().instructions;
    std::vector<std::optional<ProgramTask>> first(written.size());
    for (size_t id = 0; id < written.size(); ++id) {
      for (const Value operand : written[id].operands) {
        std::optional<ProgramTask>& task = first[operand.instruction];
        task = task ? std::min(*task, tasks_[id]) : tasks_[id];
      }
    }
    for (size_t id = 0; id < written.size(); ++id) {
      if (written[id].opcode != Opcode::kParameter) continue;
      tasks_[id] = first[id].value_or(ProgramTask{ProgramKind::kFront});
    }
  }

  void KeepAliases(Module& module) const {
    module.aliases.clear();
    for (const Alias& alias : source_.module.aliases) {
      const auto result = results_.find(alias.result);
      const auto parameter = parameters_.find(alias.parameter);
      if (result == results_.end() || parameter == parameters_.end()) continue;
      module.aliases.push_back({.result = result->second, .parameter = parameter->second});
    }
  }

  void KeepMarks() {
    for (Mark mark : source_.marks) {
      if (!IsOnStage(mark.value.instruction)) continue;
      mark.value = rewriter_.Now(mark.value);
      if (mark.kind == MarkKind::kGradient) {
        const auto parameter = parameters_.find(mark.index);
        if (parameter == parameters_.end()) continue;
        mark.index = parameter->second;
      }
      step_.marks.push_back(mark);
    }
    std::ranges::sort(step_.marks, {}, &Mark::value);
  }

  StageStep Finish() && {
    step_.num_layers = source_.num_layers;
    KeepMarks();
    Module module = frame_;
    module.name = fmt::format("{}.stage_{}", module.name, stage_);
    module.entry_computation() = std::move(rewriter_).Finish(std::move(values_));
    KeepAliases(module);
    const std::vector<ComputationId> reachable = ReachableComputations(module);
    step_.module = KeepComputations(std::move(module), reachable);
    return {std::move(step_), std::move(tasks_), static_cast<int>(results_.size())};
  }

  const Step& source_;
  const Module& frame_;
  const Computation& entry_;
  const StagePlacement& placement_;
  const Borders& borders_;
  const std::vector<std::vector<ExampleDims>>& example_dims_;
  const int stage_;
  const std::vector<InstructionId>& ids_;  // on the stage
  const std::vector<ProgramTask> tasks_of_ids_;
  Rewriter rewriter_;
  std::map<int, int> parameters_, results_;  // of the whole step -> of the stage
  Step step_;
  std::vector<Value> values_;       // its results
  std::vector<ProgramTask> tasks_;  // by instruction written
};

// That arrive with every micro-batch.
std::vector<int> ReceivedParameters(const StagedStep& staged, int stage) {
  std::vector<int> numbers;
  for (const Border& border : staged.borders) {
    if (!border.per_micro_batch) continue;
    for (const StagePort& to : border.to) {
      if (to.stage == stage) numbers.push_back(to.number);
    }
  }
  return numbers;
}

// By kind, and by the order of those of one kind, so that equal layers have equal numbers on any
// stage.
void NumberPrograms(StageStep& stage) {
  constexpr int kMaxOfKind = 16;
  std::map<ProgramTask, int> numbers;
  for (const ProgramTask& task : stage.tasks) numbers.try_emplace(task);
  for (auto& [task, number] : numbers) {
    const auto first = numbers.lower_bound({.kind = task.kind, .phase = 0});
    const auto before = std::distance(first, numbers.find(task));
    number = static_cast<int>(task.kind) * kMaxOfKind +
             std::min(static_cast<int>(before), kMaxOfKind - 1) + 1;
  }
  Computation& entry = stage.step.module.entry_computation();
  for (InstructionId id = 0; id < entry.num_instructions(); ++id) {
    entry.instructions[id].part.program = static_cast<int8_t>(numbers.at(stage.tasks[id]));
  }
}

}  // namespace

std::vector<ProgramTask> SplitBackward(const StageStep& stage) {
  const Computation& entry = stage.step.module.entry_computation();
  const MicroLoop loop = FindMicroLoop(stage.step.module);
  std::vector<bool> is_awaited(entry.instructions.size());
  for (size_t i = stage.num_own_results; i < entry.results.size(); ++i) {
    const InstructionId sent = entry.results[i].instruction;
    is_awaited[sent] = !loop.LeavesLoop(sent);
  }
  std::vector<ProgramTask> tasks = stage.tasks;
  for (InstructionId id = entry.num_instructions() - 1; id >= 0; --id) {
    if (tasks[id].kind != ProgramKind::kBackward) continue;
    if (!is_awaited[id]) {
      tasks[id].kind = ProgramKind::kWeightGradient;
      continue;
    }
    for (const Value operand : entry.instructions[id].operands) {
      is_awaited[operand.instruction] = true;
    }
  }
  return tasks;
}

absl::StatusOr<StagedStep> CutIntoStages(const Step& step, const StageOptions& options) {
  RETURN_IF_ERROR(CheckOptions(step, options));
  const int num_stages = options.stage_of_layer.back() + 1;
  const Step summed = SumOnStages(step, StagePlacement(step, options).stages());
  const StagePlacement placement(summed, options);
  ASSIGN_OR_RETURN(const Borders borders, FindBorders(summed, placement, num_stages));
  StagedStep staged;
  staged.parameters.resize(step.parameters.size());
  staged.results.resize(step.results.size());
  for (const auto& [value, readers] : borders) {
    staged.borders.push_back({.per_micro_batch = placement.loop().IsTransient(value.instruction),
                              .shape = summed.module.entry_computation().shape(value)});
  }
  const std::vector<std::vector<ExampleDims>> example_dims = FindExampleDims(summed);
  const Module frame = WithEntry(summed.module, {});
  for (int stage = 0; stage < num_stages; ++stage) {
    staged.stages.push_back(
        StageWriter(summed, frame, placement, borders, example_dims, stage).Run(staged));
    if (!staged.stages.back().step.module.entry_computation().instructions.empty()) continue;
    return InvalidArgument(
        "stage {} would have nothing to do: what its layers compute depends on no weights and is "
        "made wherever it is read",
        stage);
  }
  for (int stage = 0; stage < num_stages; ++stage) {
    if (options.splits_backward) staged.stages[stage].tasks = SplitBackward(staged.stages[stage]);
    if (options.is_one_program) continue;
    staged.stages[stage] =
        SaveLess(std::move(staged.stages[stage]), ReceivedParameters(staged, stage));
    NumberPrograms(staged.stages[stage]);
  }
  return staged;
}

}  // namespace minka
