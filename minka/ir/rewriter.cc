#include "minka/ir/rewriter.h"

#include <algorithm>
#include <utility>

#include "minka/base/check.h"

namespace minka {

Rewriter::Rewriter(const Computation& source, size_t num_instructions)
    : source_(source), now_(source.instructions.size()) {
  copy_.name = source.name;
  copy_.instructions.reserve(num_instructions);
}

std::string Rewriter::NewName(const std::string& wanted) {
  if (!knows_names_) {
    MINKA_CHECK(!has_moved_, "names of the source are asked for behind Move");
    for (const Instruction& instruction : source_.instructions) names_.Reserve(instruction.name);
    knows_names_ = true;
  }
  return names_.Take(wanted);
}

void Rewriter::Map(Value value, Value now) {
  absl::InlinedVector<Value, 1>& results = now_[value.instruction];
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

void Rewriter::Copy(InstructionId id) { Write(id, source_.instructions[id]); }

void Rewriter::Move(InstructionId id, Instruction&& instruction) {
  has_moved_ = true;
  Write(id, std::move(instruction));
}

void Rewriter::Write(InstructionId id, Instruction instruction) {
  for (Value& operand : instruction.operands) operand = Now(operand);
  now_[id].clear();
  for (size_t i = 0; i < instruction.results.size(); ++i)
    now_[id].push_back({copy_.num_instructions(), static_cast<int32_t>(i)});
  copy_.instructions.push_back(std::move(instruction));
}

Value Rewriter::AppendOne(Instruction instruction) {
  copy_.instructions.push_back(std::move(instruction));
  return {copy_.num_instructions() - 1, 0};
}

std::vector<Value> Rewriter::Inline(const Computation& callee,
                                    const std::vector<Value>& arguments) {
  std::vector<std::vector<Value>> now;
  const auto now_of = [&](Value value) { return now[value.instruction][value.result]; };
  for (const Instruction& instruction : callee.instructions) {
    if (instruction.opcode == Opcode::kParameter) {
      now.push_back({arguments[instruction.As<ParameterAttributes>().number]});
      continue;
    }
    Instruction copy = instruction;
    for (Value& operand : copy.operands) operand = now_of(operand);
    now.push_back(Append(std::move(copy)));
  }
  std::vector<Value> results;
  for (const Value result : callee.results) results.push_back(now_of(result));
  return results;
}

Computation Rewriter::Finish() && {
  std::vector<Value> results;
  for (const Value result : source_.results) results.push_back(Now(result));
  return std::move(*this).Finish(std::move(results));
}

Computation Rewriter::Finish(std::vector<Value> results) && {
  for (InstructionId id = 0; id < copy_.num_instructions(); ++id) {
    const Instruction& instruction = copy_.instructions[id];
    if (instruction.opcode != Opcode::kParameter) continue;
    const auto number = static_cast<size_t>(instruction.As<ParameterAttributes>().number);
    if (copy_.parameters.size() <= number) copy_.parameters.resize(number + 1);
    copy_.parameters[number] = id;
  }
  copy_.results = std::move(results);
  return std::move(copy_);
}

}  // namespace minka
