#include "tests/support/collectives.h"

#include <algorithm>

namespace minka {
namespace {

int64_t TotalBytes(const Computation& computation, const Instruction& instruction) {
  int64_t bytes = 0;
  if (instruction.opcode == Opcode::kAllGather) {
    for (const Shape& shape : instruction.results) bytes += shape.num_bytes();
  } else {
    for (const Value operand : instruction.operands)
      bytes += computation.shape(operand).num_bytes();
  }
  return bytes;
}

}  // namespace

void PrintTo(const CollectiveInstruction& collective, std::ostream* out) {
  *out << collective.kind << ' ' << TypeName(collective.type) << ' ' << collective.bytes
       << " bytes";
}

std::vector<CollectiveInstruction> CollectivesOf(const Module& module) {
  std::vector<CollectiveInstruction> collectives;
  for (const Computation& computation : module.computations) {
    for (const Instruction& instruction : computation.instructions) {
      if (Family(instruction.opcode) != OpFamily::kCollective) continue;
      if (instruction.opcode == Opcode::kReplicaId) continue;
      collectives.push_back({std::string(OpcodeName(instruction.opcode)), instruction.shape().type,
                             TotalBytes(computation, instruction)});
    }
  }
  std::ranges::sort(collectives);
  return collectives;
}

std::vector<CollectiveInstruction> CollectivesOf(const Plan& plan, const Module& module) {
  std::vector<CollectiveInstruction> collectives;
  for (const PlannedCollective& planned : ListCollectives(module, plan.stage)) {
    collectives.push_back({planned.kind, planned.type, planned.bytes});
  }
  std::ranges::sort(collectives);
  return collectives;
}

}  // namespace minka
