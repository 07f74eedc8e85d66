#include "minka/ir/module.h"

#include "minka/base/hash.h"
#include "minka/ir/structure_key.h"

namespace minka {

UseTable::UseTable(const Computation& computation) {
  offsets_.reserve(computation.instructions.size());
  int32_t num_values = 0;
  for (const Instruction& instruction : computation.instructions) {
    offsets_.push_back(num_values);
    num_values += static_cast<int32_t>(instruction.results.size());
  }
  uses_.resize(num_values);
  is_result_.resize(num_values);
  for (InstructionId id = 0; id < computation.num_instructions(); ++id) {
    const std::vector<Value>& operands = computation.instructions[id].operands;
    for (size_t i = 0; i < operands.size(); ++i) {
      uses_[offsets_[operands[i].instruction] + operands[i].result].push_back(
          {id, static_cast<int>(i)});
    }
  }
  for (const Value result : computation.results) {
    is_result_[offsets_[result.instruction] + result.result] = true;
  }
}

namespace {

uint64_t PackValue(Value value) {
  return (static_cast<uint64_t>(value.instruction) << 32) | static_cast<uint32_t>(value.result);
}

void AppendBytes(std::string& bytes, uint64_t number) {
  for (int shift = 0; shift < 64; shift += 8) {
    bytes.push_back(static_cast<char>((number >> shift) & 0xff));
  }
}

uint64_t ComputationHash(const Module& module, const Computation& computation,
                         const std::vector<uint64_t>& hashes) {
  std::string bytes;
  for (const Instruction& instruction : computation.instructions) {
    AppendBytes(bytes, StableHash(StructureKey(instruction, PackValue,
                                               [&](ComputationId id) { return hashes[id]; })));
  }
  for (const Value result : computation.results) AppendBytes(bytes, PackValue(result));
  if (&computation == &module.entry_computation()) {
    for (const Alias& alias : module.aliases) {
      AppendBytes(bytes, alias.result);
      AppendBytes(bytes, alias.parameter);
    }
  }
  return StableHash(bytes);
}

}  // namespace

uint64_t ModuleHash(const Module& module) {
  std::vector<uint64_t> hashes;
  hashes.reserve(module.computations.size());
  for (const Computation& computation : module.computations) {
    hashes.push_back(ComputationHash(module, computation, hashes));
  }
  return hashes[module.entry];
}

}  // namespace minka
