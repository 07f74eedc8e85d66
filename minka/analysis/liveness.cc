#include "minka/analysis/liveness.h"

#include <algorithm>

namespace minka {

Liveness::Liveness(const Computation& computation) : ranges_(computation.instructions.size()) {
  for (InstructionId id = 0; id < computation.num_instructions(); ++id) {
    const Instruction& instruction = computation.instructions[id];
    ranges_[id].assign(instruction.results.size(), LiveRange{id, id});
    for (const Value operand : instruction.operands) {
      ranges_[operand.instruction][operand.result].last_use = id;
    }
  }
  for (const Value result : computation.results) {
    ranges_[result.instruction][result.result].last_use = computation.num_instructions();
  }
}

std::vector<int64_t> LiveBytes(const Computation& computation, const Liveness& liveness) {
  const InstructionId end = computation.num_instructions();
  std::vector<int64_t> change(end + 1);  // against the position before
  for (InstructionId id = 0; id < end; ++id) {
    const Instruction& instruction = computation.instructions[id];
    const bool is_parameter = instruction.opcode == Opcode::kParameter;
    for (size_t i = 0; i < instruction.results.size(); ++i) {
      const LiveRange& range = liveness.range({id, static_cast<int32_t>(i)});
      const int64_t bytes = instruction.results[i].num_bytes();
      change[is_parameter ? 0 : range.definition] += bytes;
      change[is_parameter ? end : std::min(range.last_use + 1, end)] -= bytes;
    }
  }
  std::vector<int64_t> live;
  live.reserve(end);
  int64_t bytes = 0;
  for (InstructionId id = 0; id < end; ++id) live.push_back(bytes += change[id]);
  return live;
}

}  // namespace minka
