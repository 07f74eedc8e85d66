#include "minka/ir/rewriter.h"

#include <algorithm>
#include <utility>

namespace minka {

Rewriter::Rewriter(const Computation& source) : source_(source), now_(source.instructions.size()) {
  copy_.name = source.name;
  copy_.instructions.reserve(source.instructions.size());
  for (const Instruction& instruction : source.instructions) names_.Reserve(instruction.name);
}

void Rewriter::Map(Value value, Value now) {
  std::vector<Value>& results = now_[value.instruction];
  results.resize(std::max<size_t>(results.size(), value.result + 1));
  results[value.result] = now;
}

Instruction Rewriter::Translated(InstructionId id) const {
  Instruction instruction = source_.instructions[id];
  for (Value& operand : instruction.operands) operand = Now(operand);
  return instruction;
}

std::vector<Value> Rewriter::Append(Instruction instruction) {
  const InstructionId id = copy_.num_instructions();
  std::vector<Value> results;
  for (size_t i = 0; i < instruction.results.size(); ++i) {
    results.push_back({id, static_cast<int32_t>(i)});
  }
  copy_.instructions.push_back(std::move(instruction));
  return results;
}

Value Rewriter::AppendOne(Instruction instruction) {
  copy_.instructions.push_back(std::move(instruction));
  return {copy_.num_instructions() - 1, 0};
}

Computation Rewriter::Finish() && {
  for (const InstructionId parameter : source_.parameters) {
    copy_.parameters.push_back(Now({parameter, 0}).instruction);
  }
  for (const Value result : source_.results) copy_.results.push_back(Now(result));
  return std::move(copy_);
}

}  // namespace minka
