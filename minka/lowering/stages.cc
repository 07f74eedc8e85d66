#include "minka/lowering/stages.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "minka/base/check.h"
#include "minka/base/status.h"
#include "minka/ir/call_graph.h"
#include "minka/ir/micro_loop.h"
#include "minka/lowering/sum_on_stages.h"

namespace minka {
namespace {

// Of a value that every stage makes where it reads it.
constexpr int kEverywhere = -1;

// What is made of state and constants up to so many elements (step counters, learning rates) is
// made where it is read; of larger ones (weights), once.
constexpr int64_t kMaxSharedElements = 16;

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

// On which stage every operation stands, and in which program there.
class Placement {
 public:
  Placement(const Step& step, const StageOptions& options)
      : step_(step),
        entry_(step.module.entry_computation()),
        options_(options),
        loop_(FindMicroLoop(step.module)),
        stage_(entry_.instructions.size(), kEverywhere),
        num_stages_(options.stage_of_layer.back() + 1),
        tasks_(entry_.instructions.size()),
        earliest_(num_stages_, tasks_) {
    FindStages();
    FindTasks();
    if (options.splits_backward) FindWeightGradients();
  }

  const MicroLoop& loop() const { return loop_; }
  // kEverywhere, or the one that makes it.
  int stage(InstructionId id) const { return stage_[id]; }
  const std::vector<int>& stages() const { return stage_; }
  // Where `result` of the step is made.
  int StageOfResult(int result) const {
    const int stage = stage_[entry_.results[result].instruction];
    return stage != kEverywhere ? stage : 0;
  }
  // By instruction: the stage's own and what it makes for itself.
  std::vector<bool> InstructionsOf(int stage) const {
    std::vector<bool> found(entry_.instructions.size());
    for (int i = 0; i < static_cast<int>(entry_.results.size()); ++i) {
      if (StageOfResult(i) == stage) found[entry_.results[i].instruction] = true;
    }
    for (InstructionId id = entry_.num_instructions() - 1; id >= 0; --id) {
      if (stage_[id] == stage || IsIndex(id)) found[id] = true;
      if (!found[id]) continue;
      for (const Value operand : entry_.instructions[id].operands) {
        if (stage_[operand.instruction] == kEverywhere) found[operand.instruction] = true;
      }
    }
    return found;
  }
  // Of the instructions of a stage. What every stage makes for itself runs where it is first read.
  std::vector<ProgramTask> TasksOf(int stage, const std::vector<bool>& on_stage) const {
    std::vector<std::optional<ProgramTask>> first_read(entry_.instructions.size());
    std::vector<ProgramTask> tasks = tasks_;
    for (InstructionId id = entry_.num_instructions() - 1; id >= 0; --id) {
      if (!on_stage[id]) continue;
      if (stage_[id] == kEverywhere) {
        const ProgramTask wanted = first_read[id].value_or(ProgramTask{KindByPlace(id)});
        tasks[id] = std::max(earliest_[stage][id], WithinReach(id, wanted));
      }
      for (const Value operand : entry_.instructions[id].operands) {
        std::optional<ProgramTask>& first = first_read[operand.instruction];
        first = first ? std::min(*first, tasks[id]) : tasks[id];
      }
    }
    return tasks;
  }

  // OK, or who would wait for ever: forward programs go up the stages, backward ones down. `read`:
  // what the reader is part of on the stage.
  absl::Status CheckRead(Value value, InstructionId reader, int stage, ProgramKind read) const {
    const InstructionId id = value.instruction;
    const ProgramKind made = tasks_[id].kind;
    if (!IsPerMicroBatch(made) || !IsPerMicroBatch(read)) return absl::OkStatus();
    if (loop_.LeavesLoop(id)) return absl::OkStatus();
    const bool goes_up = stage_[id] < stage;
    const bool ok = made == ProgramKind::kForward ? goes_up || read != ProgramKind::kForward
                                                  : !goes_up && read != ProgramKind::kForward;
    if (ok) return absl::OkStatus();
    return InvalidArgument(
        "the layers cannot be stages here: {} ({} of stage {}) reads {} ({} of stage {}), which "
        "would come later",
        entry_.instructions[reader].name, ProgramKindName(read), stage,
        entry_.instructions[id].name, ProgramKindName(made), stage_[id]);
  }

 private:
  bool IsIndex(InstructionId id) const {
    return loop_.exists() && loop_.roles[id] == LoopRole::kIndex;
  }
  // What runs once, or for each micro-batch, does so wherever it is read.
  ProgramTask WithinReach(InstructionId id, const ProgramTask& wanted) const {
    if (!loop_.exists()) return wanted;
    const ProgramKind kind = KindByPlace(id);
    return IsPerMicroBatch(kind) == IsPerMicroBatch(wanted.kind) ? wanted : ProgramTask{kind};
  }

  bool MayBeMadeEverywhere(InstructionId id) const {
    const Instruction& instruction = entry_.instructions[id];
    if (instruction.opcode == Opcode::kParameter) return RoleOf(id) != ParameterRole::kState;
    // Less is sent than what it makes of it.
    if (instruction.opcode == Opcode::kBroadcast && instruction.part.layer < 0) return true;
    return GivesTheSameAgain(step_.module, instruction) &&
           std::ranges::all_of(instruction.operands, [&](Value operand) {
             const InstructionId source = operand.instruction;
             return IsWeight(source) ? entry_.shape(operand).num_elements() <= kMaxSharedElements
                                     : stage_[source] == kEverywhere;
           });
  }

  ParameterRole RoleOf(InstructionId parameter) const {
    const auto& attributes = entry_.instructions[parameter].As<ParameterAttributes>();
    return step_.parameters[attributes.number].role;
  }
  bool IsWeight(InstructionId id) const {
    if (entry_.instructions[id].opcode != Opcode::kParameter) return false;
    const ParameterRole role = RoleOf(id);
    return role == ParameterRole::kState || role == ParameterRole::kConstant;
  }

  // An operation of no layer stands with what it reads, or with the large part of that: a gradient
  // is squared and summed where it is. What several stages share stands on stage 0.
  int StageOf(InstructionId id) const {
    const int layer = entry_.instructions[id].part.layer;
    if (layer >= 0) return options_.stage_of_layer[layer];
    const std::optional<int> stage = StageOfOperands(id, 0);
    return stage ? *stage : StageOfOperands(id, kMaxSharedElements).value_or(0);
  }

  // Of those with more than so many elements, if it is one.
  std::optional<int> StageOfOperands(InstructionId id, int64_t num_elements) const {
    std::optional<int> found;
    for (const Value operand : entry_.instructions[id].operands) {
      const int stage = stage_[operand.instruction];
      if (stage == kEverywhere || entry_.shape(operand).num_elements() <= num_elements) continue;
      if (found && *found != stage) return std::nullopt;
      found = stage;
    }
    return found;
  }

  void FindStages() {
    std::vector<bool> is_read(entry_.instructions.size());
    for (InstructionId id = 0; id < entry_.num_instructions(); ++id) {
      if (!MayBeMadeEverywhere(id)) stage_[id] = StageOf(id);
      for (const Value operand : entry_.instructions[id].operands) {
        is_read[operand.instruction] = true;
      }
    }
    for (const InstructionId parameter : entry_.parameters) {
      if (!is_read[parameter] && stage_[parameter] == kEverywhere) stage_[parameter] = 0;
    }
    // State lies where it is updated.
    for (size_t i = 0; i < entry_.parameters.size(); ++i) {
      const int result = step_.parameters[i].state_result;
      if (step_.parameters[i].role != ParameterRole::kState || result < 0) continue;
      const InstructionId update = entry_.results[result].instruction;
      if (entry_.instructions[update].opcode == Opcode::kParameter) continue;
      // What new state is made of alone stands with the state it replaces.
      if (stage_[update] == kEverywhere) stage_[update] = stage_[entry_.parameters[i]];
      stage_[entry_.parameters[i]] = stage_[update];
    }
  }

  ProgramKind KindByPlace(InstructionId id) const {
    if (loop_.exists() && !loop_.IsInside(id)) {
      return id < loop_.begin ? ProgramKind::kFront : ProgramKind::kApply;
    }
    switch (entry_.instructions[id].part.phase) {
      case Phase::kForward:
        return ProgramKind::kForward;
      case Phase::kBackward:
        return ProgramKind::kBackward;
      case Phase::kApply:
        return loop_.exists() ? ProgramKind::kBackward : ProgramKind::kApply;
    }
    MINKA_CHECK(false);
  }

  void FindTasks() {
    for (InstructionId id = 0; id < entry_.num_instructions(); ++id) {
      const bool is_parameter = entry_.instructions[id].opcode == Opcode::kParameter;
      tasks_[id] = {is_parameter ? ProgramKind::kFront : KindByPlace(id)};
      for (int stage = 0; stage < num_stages_; ++stage) {
        if (stage_[id] != stage && stage_[id] != kEverywhere) continue;
        ProgramTask earliest = {stage_[id] == kEverywhere ? ProgramKind::kFront : tasks_[id].kind};
        for (const Value operand : entry_.instructions[id].operands) {
          earliest = std::max(earliest, EarliestRead(operand.instruction, stage, id));
        }
        earliest_[stage][id] = earliest;
        if (stage_[id] == stage) tasks_[id] = earliest;
      }
    }
  }

  // On a stage, of what `source` gives, by `reader`.
  ProgramTask EarliestRead(InstructionId source, int stage, InstructionId reader) const {
    if (stage_[source] == kEverywhere) return earliest_[stage][source];
    const ProgramTask& made = tasks_[source];
    const bool is_sent = stage_[source] != stage;
    if (loop_.LeavesLoop(source) && !loop_.IsInside(reader)) {
      return {ProgramKind::kApply, is_sent ? 1 : 0};
    }
    const bool is_parameter = entry_.instructions[source].opcode == Opcode::kParameter;
    const bool waits =
        is_sent && !is_parameter && !IsPerMicroBatch(made.kind) && made.kind == KindByPlace(reader);
    return {made.kind, waits ? made.phase + 1 : made.phase};
  }

  // Backward operations that no backward program of another stage waits for.
  void FindWeightGradients() {
    std::vector<bool> is_awaited(entry_.instructions.size());
    for (InstructionId id = entry_.num_instructions() - 1; id >= 0; --id) {
      if (tasks_[id].kind == ProgramKind::kBackward && !is_awaited[id]) {
        tasks_[id].kind = ProgramKind::kWeightGradient;
      }
      for (const Value operand : entry_.instructions[id].operands) {
        const InstructionId source = operand.instruction;
        const bool is_sent = stage_[source] != kEverywhere && stage_[source] != stage_[id];
        if (tasks_[id].kind == ProgramKind::kBackward || (is_sent && !IsOnceOrSum(id, source))) {
          is_awaited[source] = true;
        }
      }
    }
  }

  bool IsOnceOrSum(InstructionId reader, InstructionId source) const {
    return !IsPerMicroBatch(tasks_[reader].kind) && loop_.LeavesLoop(source);
  }

  const Step& step_;
  const Computation& entry_;
  const StageOptions& options_;
  const MicroLoop loop_;
  std::vector<int> stage_;  // by instruction
  const int num_stages_;
  std::vector<ProgramTask> tasks_;                  // by instruction; of those of a stage
  std::vector<std::vector<ProgramTask>> earliest_;  // by stage and instruction: not before
};

// What a stage gives others, by value of the whole step.
using Borders = std::map<Value, std::vector<int>>;  // -> stages that read it, ascending

absl::StatusOr<Borders> FindBorders(const Step& step, const Placement& placement, int num_stages) {
  const Computation& entry = step.module.entry_computation();
  Borders borders;
  for (int stage = 0; stage < num_stages; ++stage) {
    const std::vector<bool> on_stage = placement.InstructionsOf(stage);
    const std::vector<ProgramTask> tasks = placement.TasksOf(stage, on_stage);
    for (InstructionId id = 0; id < entry.num_instructions(); ++id) {
      if (!on_stage[id]) continue;
      for (const Value operand : entry.instructions[id].operands) {
        const int source = placement.stage(operand.instruction);
        if (source == kEverywhere || source == stage) continue;
        RETURN_IF_ERROR(placement.CheckRead(operand, id, stage, tasks[id].kind));
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
  StageWriter(const Step& step, const Placement& placement, const Borders& borders, int stage)
      : source_(step),
        entry_(step.module.entry_computation()),
        placement_(placement),
        borders_(borders),
        stage_(stage),
        on_stage_(placement.InstructionsOf(stage)),
        source_tasks_(placement.TasksOf(stage, on_stage_)),
        now_(entry_.instructions.size(), -1) {}

  StageStep Run(StagedStep& staged) && {
    out_.name = entry_.name;
    WriteParameters(staged);
    Receive(staged, /*per_micro_batch=*/false);
    for (InstructionId id = 0; id < entry_.num_instructions(); ++id) {
      if (placement_.loop().exists() && id == placement_.loop().begin + 1) {
        Receive(staged, /*per_micro_batch=*/true);
      }
      if (on_stage_[id] && now_[id] < 0) Copy(id);
    }
    WriteResults(staged);
    SetTasksOfParameters();
    return std::move(*this).Finish();
  }

 private:
  Value Now(Value value) const { return {now_[value.instruction], value.result}; }

  void Append(InstructionId id, Instruction instruction) {
    now_[id] = out_.num_instructions();
    out_.instructions.push_back(std::move(instruction));
    tasks_.push_back(source_tasks_[id]);
  }

  void Copy(InstructionId id) {
    Instruction instruction = entry_.instructions[id];
    for (Value& operand : instruction.operands) {
      const auto received = received_.find(operand);
      operand = received != received_.end() ? Value{received->second} : Now(operand);
    }
    Append(id, std::move(instruction));
  }

  void AppendParameter(Instruction instruction, const ParameterInfo& info) {
    instruction.attributes =
        ParameterAttributes{.number = static_cast<int64_t>(step_.parameters.size())};
    out_.parameters.push_back(out_.num_instructions());
    out_.instructions.push_back(std::move(instruction));
    tasks_.emplace_back();
    step_.parameters.push_back(info);
  }

  void WriteParameters(StagedStep& staged) {
    for (size_t i = 0; i < entry_.parameters.size(); ++i) {
      const InstructionId id = entry_.parameters[i];
      if (!on_stage_[id]) continue;
      staged.parameters[i].push_back({stage_, static_cast<int>(step_.parameters.size())});
      parameters_[static_cast<int>(i)] = static_cast<int>(step_.parameters.size());
      now_[id] = out_.num_instructions();
      AppendParameter(entry_.instructions[id], source_.parameters[i]);
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
      if (per_micro_batch) {
        parameter.frontend_attributes[kMicroAttribute] = "body";
      }
      border.to.push_back({stage_, static_cast<int>(step_.parameters.size())});
      received_[value] = out_.num_instructions();
      const bool is_activation = IsPerMicroBatch(TaskOfSource(value).kind);
      AppendParameter(std::move(parameter),
                      {.role = is_activation ? ParameterRole::kBatch : ParameterRole::kConstant,
                       .name = fmt::format("received/{}", source.name)});
    }
  }

  ProgramTask TaskOfSource(Value value) const { return source_tasks_[value.instruction]; }

  void WriteResults(StagedStep& staged) {
    for (int i = 0; i < static_cast<int>(entry_.results.size()); ++i) {
      if (placement_.StageOfResult(i) != stage_) continue;
      staged.results[i] = {stage_, static_cast<int>(out_.results.size())};
      results_[i] = static_cast<int>(out_.results.size());
      out_.results.push_back(Now(entry_.results[i]));
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
      border.from = {stage_, static_cast<int>(out_.results.size())};
      out_.results.push_back(Now(value));
      step_.results.push_back({.name = fmt::format("sent/{}", entry_.instruction(value).name)});
    }
  }

  // The program that reads a parameter first.
  void SetTasksOfParameters() {
    std::vector<std::optional<ProgramTask>> first(out_.instructions.size());
    for (size_t id = 0; id < out_.instructions.size(); ++id) {
      for (const Value operand : out_.instructions[id].operands) {
        std::optional<ProgramTask>& task = first[operand.instruction];
        task = task ? std::min(*task, tasks_[id]) : tasks_[id];
      }
    }
    for (const InstructionId id : out_.parameters) {
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
      if (!on_stage_[mark.value.instruction]) continue;
      mark.value = Now(mark.value);
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
    Module module = source_.module;
    module.name = fmt::format("{}.stage_{}", module.name, stage_);
    module.entry_computation() = std::move(out_);
    KeepAliases(module);
    const std::vector<ComputationId> reachable = ReachableComputations(module);
    step_.module = KeepComputations(std::move(module), reachable);
    return {std::move(step_), std::move(tasks_), static_cast<int>(results_.size())};
  }

  const Step& source_;
  const Computation& entry_;
  const Placement& placement_;
  const Borders& borders_;
  const int stage_;
  const std::vector<bool> on_stage_;
  const std::vector<ProgramTask> source_tasks_;
  std::vector<InstructionId> now_;
  std::map<Value, InstructionId> received_;
  std::map<int, int> parameters_, results_;  // of the whole step -> of the stage
  Step step_;
  Computation out_;
  std::vector<ProgramTask> tasks_;
};

}  // namespace

absl::StatusOr<StagedStep> CutIntoStages(const Step& step, const StageOptions& options) {
  RETURN_IF_ERROR(CheckOptions(step, options));
  const int num_stages = options.stage_of_layer.back() + 1;
  const Step summed = SumOnStages(step, Placement(step, options).stages());
  const Placement placement(summed, options);
  ASSIGN_OR_RETURN(const Borders borders, FindBorders(summed, placement, num_stages));
  StagedStep staged;
  staged.parameters.resize(step.parameters.size());
  staged.results.resize(step.results.size());
  for (const auto& [value, readers] : borders) {
    staged.borders.push_back({.per_micro_batch = placement.loop().IsTransient(value.instruction),
                              .shape = summed.module.entry_computation().shape(value)});
  }
  for (int stage = 0; stage < num_stages; ++stage) {
    staged.stages.push_back(StageWriter(summed, placement, borders, stage).Run(staged));
  }
  return staged;
}

}  // namespace minka
