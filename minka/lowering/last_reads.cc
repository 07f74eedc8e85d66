#include "minka/lowering/last_reads.h"

#include <algorithm>
#include <set>

namespace minka {

bool IsHeavy(const Instruction& instruction) {
  return instruction.opcode == Opcode::kDot || instruction.opcode == Opcode::kConvolution;
}

bool IsView(const Instruction& instruction) {
  return instruction.opcode == Opcode::kReshape || instruction.opcode == Opcode::kTranspose ||
         instruction.opcode == Opcode::kConvert;
}

bool IsFree(const Instruction& instruction) {
  return instruction.operands.empty() || instruction.opcode == Opcode::kBroadcast;
}

LastReads::LastReads(const Computation& computation, const UseTable& uses)
    : computation_(computation), uses_(uses), demand_(computation.num_instructions()) {
  for (InstructionId id = computation.num_instructions(); id-- > 0;) demand_[id] = FirstDemand(id);
}

InstructionId LastReads::FirstDemand(InstructionId id) const {
  InstructionId first = kNever;
  const Instruction& instruction = computation_.instructions[id];
  for (int32_t i = 0; i < static_cast<int32_t>(instruction.results.size()); ++i) {
    for (const Use& use : uses_.uses({id, i})) first = std::min(first, TimeOf(use.user));
  }
  return first;
}

InstructionId LastReads::TimeOf(InstructionId user) const {
  return IsHeavy(computation_.instructions[user]) ? user : demand_[user];
}

bool LastReads::FreesMemory(InstructionId id) const {
  const Instruction& instruction = computation_.instructions[id];
  // Smaller than what it reads; an argmax is left alone.
  if (instruction.opcode == Opcode::kReduce) return instruction.results.size() == 1;
  int64_t freed = 0;
  std::set<Value> sources;
  for (const Value operand : instruction.operands) {
    const Value source = Source(operand);
    if (!sources.insert(source).second || IsFree(computation_.instruction(source))) continue;
    if (IsReadLastBy(source, id)) freed += computation_.shape(source).num_bytes();
  }
  return freed > instruction.shape().num_bytes();
}

Value LastReads::Source(Value value) const {
  while (IsView(computation_.instruction(value))) {
    value = computation_.instruction(value).operands[0];
  }
  return value;
}

// Would it be the last reader if it ran as late as it may?
bool LastReads::IsReadLastBy(Value value, InstructionId id) const {
  if (uses_.is_result(value)) return false;
  return std::ranges::all_of(uses_.uses(value), [&](const Use& use) {
    const bool is_in_place = computation_.instructions[use.user].opcode == Opcode::kReduce;
    return (is_in_place ? use.user : TimeOf(use.user)) < demand_[id];
  });
}

}  // namespace minka
