#include "minka/lowering/saved_values.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "minka/analysis/flops.h"
#include "minka/analysis/minimum_cut.h"
#include "minka/ir/rewriter.h"

namespace minka {
namespace {

constexpr int kCheapWeight = 4;  // per element, see ElementWeight

bool IsBackward(const ProgramTask& task) {
  return task.kind == ProgramKind::kBackward || task.kind == ProgramKind::kWeightGradient;
}

bool IsCheap(const Instruction& instruction) {
  if (instruction.results.size() != 1 || !instruction.called.empty()) return false;
  switch (instruction.opcode) {
    case Opcode::kBroadcast:
    case Opcode::kConstant:
    case Opcode::kConvert:
    case Opcode::kIota:
    case Opcode::kPad:
    case Opcode::kReshape:
    case Opcode::kReverse:
    case Opcode::kSelect:
    case Opcode::kSlice:
    case Opcode::kTranspose:
      return true;
    default:
      break;
  }
  const ElementType type = instruction.shape().type;
  return IsElementwise(instruction.opcode) && (IsFloat(type) || type == ElementType::kPred) &&
         (instruction.opcode == Opcode::kDivide ||
          ElementWeight(instruction.opcode) < kCheapWeight);
}

class Saver {
 public:
  Saver(StageStep stage, std::span<const int> received)
      : stage_(std::move(stage)),
        entry_(std::move(stage_.step.module.entry_computation())),
        is_kept_(entry_.instructions.size()),
        rewriter_(entry_) {
    for (InstructionId id = 0; id < entry_.num_instructions(); ++id) {
      is_kept_[id] = entry_.instructions[id].opcode != Opcode::kParameter &&
                     stage_.tasks[id].kind == ProgramKind::kForward;
    }
    for (const int number : received) is_kept_[entry_.parameters[number]] = true;
  }

  StageStep Run() && {
    FindRepeated();
    for (InstructionId id = 0; id < entry_.num_instructions(); ++id) Copy(id);
    for (Mark& mark : stage_.step.marks) mark.value = rewriter_.Now(mark.value);
    std::ranges::sort(stage_.step.marks, {}, &Mark::value);
    Computation copy = std::move(rewriter_).Finish();
    stage_.step.module.entry_computation() = std::move(copy);
    stage_.tasks = std::move(tasks_);
    return std::move(stage_);
  }

 private:
  // Vertices that are with the source: what backward programs read, and what they compute again.
  void FindRepeated() {
    MinimumCut cut;
    std::map<Value, MinimumCut::Vertex> is_read;
    std::vector<MinimumCut::Vertex> is_repeated(entry_.instructions.size(), cut.sink());
    int64_t unlimited = 1;
    for (InstructionId id = 0; id < entry_.num_instructions(); ++id) {
      if (!is_kept_[id]) continue;
      if (IsCheap(entry_.instructions[id])) is_repeated[id] = cut.AddVertex();
      for (int i = 0; i < static_cast<int>(entry_.instructions[id].results.size()); ++i) {
        const int64_t bytes = entry_.shape({id, i}).num_bytes();
        is_read[{id, i}] = cut.AddVertex();
        cut.AddEdge(is_read[{id, i}], is_repeated[id], bytes);
        unlimited += bytes;
      }
    }
    for (InstructionId id = 0; id < entry_.num_instructions(); ++id) {
      const bool is_backward = IsBackward(stage_.tasks[id]);
      if (!is_backward && is_repeated[id] == cut.sink()) continue;
      for (const Value operand : entry_.instructions[id].operands) {
        if (!is_kept_[operand.instruction]) continue;
        cut.AddEdge(is_backward ? cut.source() : is_repeated[id], is_read[operand], unlimited);
      }
    }
    cut.Solve();
    for (const MinimumCut::Vertex vertex : is_repeated) {
      is_repeated_.push_back(vertex != cut.sink() && cut.IsWithSource(vertex));
    }
  }

  void Copy(InstructionId id) {
    Instruction copy = entry_.instructions[id];
    for (Value& operand : copy.operands) operand = ReadBy(stage_.tasks[id], operand);
    rewriter_.Map(id, Append(std::move(copy), stage_.tasks[id]));
  }

  std::vector<Value> Append(Instruction instruction, const ProgramTask& task) {
    tasks_.push_back(task);
    return rewriter_.Append(std::move(instruction));
  }

  Value ReadBy(const ProgramTask& task, Value value) {
    if (!IsBackward(task) || !is_repeated_[value.instruction]) return rewriter_.Now(value);
    const auto found = repeated_.find({task, value});
    if (found != repeated_.end()) return found->second;
    Instruction copy = entry_.instruction(value);
    for (Value& operand : copy.operands) operand = ReadBy(task, operand);
    copy.name = rewriter_.NewName(copy.name);
    copy.op_name = "recompute/" + copy.op_name;
    copy.part.phase = Phase::kBackward;
    const Value now = Append(std::move(copy), task).front();
    repeated_[{task, value}] = now;
    stage_.computed_again.push_back(now.instruction);
    return now;
  }

  StageStep stage_;
  const Computation entry_;
  std::vector<bool> is_kept_;      // by instruction, until its micro-batch's backward pass
  std::vector<bool> is_repeated_;  // by instruction
  Rewriter rewriter_;
  std::map<std::pair<ProgramTask, Value>, Value> repeated_;
  std::vector<ProgramTask> tasks_;
};

}  // namespace

StageStep SaveLess(StageStep stage, std::span<const int> received) {
  return Saver(std::move(stage), received).Run();
}

}  // namespace minka
