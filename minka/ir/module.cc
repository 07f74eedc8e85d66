#include "minka/ir/module.h"

#include "fmt/format.h"
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

uint64_t ModuleHash(const Module& module) {
  std::string bytes = HashText(ComputationHashes(module)[module.entry]);
  for (const Alias& alias : module.aliases) {
    bytes += fmt::format(" {}:{}", alias.result, alias.parameter);
  }
  return StableHash(bytes);
}

}  // namespace minka
