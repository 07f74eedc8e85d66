#include "minka/ir/micro_loop.h"

#include <cstdlib>
#include <string>

namespace minka {
namespace {

LoopRole RoleOf(const Instruction& instruction) {
  const auto found = instruction.frontend_attributes.find(kMicroAttribute);
  if (found == instruction.frontend_attributes.end()) return LoopRole::kOutside;
  if (found->second == "index") return LoopRole::kIndex;
  if (found->second == "sum") return LoopRole::kSum;
  if (found->second == "stack") return LoopRole::kStack;
  return found->second == "body" ? LoopRole::kBody : LoopRole::kOutside;
}

}  // namespace

MicroLoop FindMicroLoop(const Module& module) {
  MicroLoop loop;
  const auto count = module.frontend_attributes.find(kNumMicroBatchesAttribute);
  const Computation& entry = module.entry_computation();
  if (count == module.frontend_attributes.end()) return loop;
  loop.roles.assign(entry.instructions.size(), LoopRole::kOutside);
  loop.num_micro_batches = std::strtoll(count->second.c_str(), nullptr, 10);
  for (InstructionId id = 0; id < entry.num_instructions(); ++id) {
    loop.roles[id] = RoleOf(entry.instructions[id]);
    if (loop.roles[id] == LoopRole::kOutside) continue;
    if (!loop.exists()) loop.begin = id;
    loop.end = id + 1;
  }
  return loop;
}

}  // namespace minka
