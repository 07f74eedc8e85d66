#include "minka/lowering/stage_placement.h"

#include <algorithm>

#include "absl/container/flat_hash_map.h"
#include "minka/analysis/layers.h"
#include "minka/base/check.h"
#include "minka/base/status.h"
#include "minka/ir/call_graph.h"

namespace minka {
StagePlacement::StagePlacement(const Step& step, const StageOptions& options)
    : step_(step),
      entry_(step.module.entry_computation()),
      options_(options),
      loop_(FindMicroLoop(step.module)),
      stage_(entry_.instructions.size(), kEverywhere),
      is_sent_weight_(entry_.instructions.size()),
      num_stages_(options.stage_of_layer.back() + 1),
      tasks_(entry_.instructions.size()),
      instructions_of_(num_stages_),
      everywhere_(entry_.instructions.size()) {
  FindStages();
  FindInstructions();
  FindSentWeights();
  FindTasks();
  DelayUpdates();
}

int StagePlacement::StageOfResult(int result) const {
  const int stage = stage_[entry_.results[result].instruction];
  return stage != kEverywhere ? stage : 0;
}

std::vector<ProgramTask> StagePlacement::TasksOf(int stage) const {
  const std::vector<InstructionId>& ids = instructions_of_[stage];
  absl::flat_hash_map<InstructionId, ProgramTask> first_read;  // of what is made everywhere
  std::vector<ProgramTask> tasks(ids.size());
  for (size_t i = ids.size(); i-- > 0;) {
    const InstructionId id = ids[i];
    tasks[i] = tasks_[id];
    if (stage_[id] == kEverywhere) {
      const auto read = first_read.find(id);
      const ProgramTask wanted =
          read != first_read.end() ? read->second : ProgramTask{KindByPlace(id)};
      tasks[i] = std::max(Made(id, stage).earliest, WithinReach(id, wanted));
    }
    for (const Value operand : entry_.instructions[id].operands) {
      if (stage_[operand.instruction] != kEverywhere) continue;
      const auto [first, added] = first_read.try_emplace(operand.instruction, tasks[i]);
      if (!added) first->second = std::min(first->second, tasks[i]);
    }
  }
  return tasks;
}

absl::Status StagePlacement::CheckRead(Value value, InstructionId reader, int stage,
                                       ProgramKind read) const {
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
      entry_.instructions[reader].name, ProgramKindName(read), stage, entry_.instructions[id].name,
      ProgramKindName(made), stage_[id]);
}

ProgramTask StagePlacement::WithinReach(InstructionId id, const ProgramTask& wanted) const {
  if (!loop_.exists()) return wanted;
  const ProgramKind kind = KindByPlace(id);
  return IsPerMicroBatch(kind) == IsPerMicroBatch(wanted.kind) ? wanted : ProgramTask{kind};
}

bool StagePlacement::MayBeMadeEverywhere(InstructionId id) const {
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

ParameterRole StagePlacement::RoleOf(InstructionId parameter) const {
  const auto& attributes = entry_.instructions[parameter].As<ParameterAttributes>();
  return step_.parameters[attributes.number].role;
}

bool StagePlacement::IsWeight(InstructionId id) const {
  if (entry_.instructions[id].opcode != Opcode::kParameter) return false;
  const ParameterRole role = RoleOf(id);
  return role == ParameterRole::kState || role == ParameterRole::kConstant;
}

int StagePlacement::StageOf(InstructionId id) const {
  const int layer = entry_.instructions[id].part.layer;
  if (layer >= 0 && !IsSliceOfSharedWeights(id)) return options_.stage_of_layer[layer];
  const std::optional<int> stage = StageOfOperands(id, 0);
  return stage ? *stage : StageOfOperands(id, kMaxSharedElements).value_or(0);
}

bool StagePlacement::IsSliceOfSharedWeights(InstructionId id) const {
  const Instruction& instruction = entry_.instructions[id];
  if (instruction.opcode != Opcode::kSlice) return false;
  const InstructionId source = instruction.operands[0].instruction;
  return IsWeight(source) && entry_.instructions[source].part.layer < 0;
}

std::optional<int> StagePlacement::StageOfOperands(InstructionId id, int64_t num_elements) const {
  std::optional<int> found;
  for (const Value operand : entry_.instructions[id].operands) {
    const int stage = stage_[operand.instruction];
    if (stage == kEverywhere || entry_.shape(operand).num_elements() <= num_elements) continue;
    if (found && *found != stage) return std::nullopt;
    found = stage;
  }
  return found;
}

void StagePlacement::FindStages() {
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

void StagePlacement::FindInstructions() {
  for (const Value result : entry_.results) {
    if (stage_[result.instruction] == kEverywhere) everywhere_[result.instruction].push_back({0});
  }
  // Every stage has a loop.
  for (const InstructionId index : loop_.indices) {
    for (int stage = 0; stage < num_stages_; ++stage) {
      if (stage != stage_[index]) everywhere_[index].push_back({stage});
    }
  }
  for (InstructionId id = entry_.num_instructions() - 1; id >= 0; --id) {
    std::vector<OnStage>& made = everywhere_[id];
    std::ranges::sort(made, {}, &OnStage::stage);
    const auto repeated = std::ranges::unique(made, {}, &OnStage::stage);
    made.erase(repeated.begin(), repeated.end());
    const auto place = [&](int stage) {
      instructions_of_[stage].push_back(id);
      for (const Value operand : entry_.instructions[id].operands) {
        if (stage_[operand.instruction] == kEverywhere)
          everywhere_[operand.instruction].push_back({stage});
      }
    };
    if (stage_[id] != kEverywhere) place(stage_[id]);
    for (const OnStage& on : made) place(on.stage);
  }
  for (std::vector<InstructionId>& ids : instructions_of_) std::ranges::reverse(ids);
}

const StagePlacement::OnStage& StagePlacement::Made(InstructionId everywhere, int stage) const {
  return *std::ranges::lower_bound(everywhere_[everywhere], stage, {}, &OnStage::stage);
}

ProgramKind StagePlacement::KindByPlace(InstructionId id) const {
  if (loop_.exists() && !loop_.IsInside(id)) {
    return loop_.PartOf(id) == LoopPart::kFront ? ProgramKind::kFront : ProgramKind::kApply;
  }
  switch (entry_.instructions[id].part.phase) {
    case Phase::kForward:
      return ProgramKind::kForward;
    case Phase::kBackward:
      return is_sent_weight_[id] ? ProgramKind::kForward : ProgramKind::kBackward;
    case Phase::kApply:
      return loop_.exists() ? ProgramKind::kBackward : ProgramKind::kApply;
  }
  MINKA_CHECK(false);
}

void StagePlacement::FindSentWeights() {
  if (loop_.exists()) return;
  std::vector<bool> is_of_weights;
  for (InstructionId id = 0; id < entry_.num_instructions(); ++id) {
    const std::vector<Value>& operands = entry_.instructions[id].operands;
    is_of_weights.push_back(
        IsWeight(id) || (!operands.empty() && std::ranges::all_of(operands, [&](Value operand) {
          return stage_[operand.instruction] == kEverywhere || is_of_weights[operand.instruction];
        })));
  }
  for (InstructionId id = entry_.num_instructions() - 1; id >= 0; --id) {
    for (const Value operand : entry_.instructions[id].operands) {
      const InstructionId source = operand.instruction;
      const bool is_made = entry_.instructions[source].opcode != Opcode::kParameter &&
                           stage_[source] != kEverywhere && is_of_weights[source];
      const bool is_sent = stage_[source] < stage_[id] || is_sent_weight_[id];
      if (is_made && is_sent) is_sent_weight_[source] = true;
    }
  }
}

void StagePlacement::FindTasks() {
  for (InstructionId id = 0; id < entry_.num_instructions(); ++id) {
    const bool is_parameter = entry_.instructions[id].opcode == Opcode::kParameter;
    tasks_[id] = {is_parameter ? ProgramKind::kFront : KindByPlace(id)};
    if (stage_[id] != kEverywhere) tasks_[id] = Earliest(id, stage_[id], tasks_[id]);
    for (OnStage& on : everywhere_[id]) on.earliest = Earliest(id, on.stage, {ProgramKind::kFront});
  }
}

ProgramTask StagePlacement::Earliest(InstructionId id, int stage, ProgramTask least) const {
  for (const Value operand : entry_.instructions[id].operands)
    least = std::max(least, EarliestRead(operand.instruction, stage, id));
  return least;
}

ProgramTask StagePlacement::EarliestRead(InstructionId source, int stage,
                                         InstructionId reader) const {
  if (stage_[source] == kEverywhere) return Made(source, stage).earliest;
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

void StagePlacement::DelayUpdates() {
  std::vector<std::optional<ProgramTask>> first_read(entry_.instructions.size());
  std::vector<bool> is_sent(entry_.instructions.size());
  for (InstructionId id = entry_.num_instructions() - 1; id >= 0; --id) {
    const bool may_wait = tasks_[id].kind == ProgramKind::kApply && stage_[id] != kEverywhere &&
                          !loop_.IsInside(id) && !is_sent[id] && first_read[id] && !MakesLess(id);
    if (may_wait) tasks_[id] = std::max(tasks_[id], *first_read[id]);
    for (const Value operand : entry_.instructions[id].operands) {
      const InstructionId source = operand.instruction;
      if (stage_[source] != stage_[id]) is_sent[source] = true;
      first_read[source] = std::min(first_read[source].value_or(tasks_[id]), tasks_[id]);
    }
  }
}

bool StagePlacement::MakesLess(InstructionId id) const {
  const Instruction& instruction = entry_.instructions[id];
  int64_t made = 0;
  for (const Shape& shape : instruction.results) made += shape.num_bytes();
  return std::ranges::any_of(instruction.operands, [&](Value operand) {
    return entry_.shape(operand).num_bytes() > made;
  });
}

}  // namespace minka
