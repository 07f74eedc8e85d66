#include "minka/ir/module.h"

#include <numeric>
#include <utility>

#include "fmt/format.h"
#include "minka/base/hash.h"
#include "minka/ir/structure_key.h"

namespace minka {

Module WithEntry(const Module& module, Computation entry) {
  Module out{.name = module.name,
             .entry = module.entry,
             .aliases = module.aliases,
             .num_micro_batches = module.num_micro_batches,
             .frontend_attributes = module.frontend_attributes,
             .undecoded = module.undecoded};
  out.computations.reserve(module.computations.size());
  for (ComputationId id = 0; id < static_cast<ComputationId>(module.computations.size()); ++id) {
    if (id == module.entry) {
      out.computations.emplace_back();
    } else {
      out.computations.push_back(module.computations[id]);
    }
  }
  out.entry_computation() = std::move(entry);
  return out;
}

UseTable::UseTable(const Computation& computation) {
  offsets_.reserve(computation.instructions.size());
  int32_t num_values = 0;
  for (const Instruction& instruction : computation.instructions) {
    offsets_.push_back(num_values);
    num_values += static_cast<int32_t>(instruction.results.size());
  }
  const auto number_of = [&](Value value) { return offsets_[value.instruction] + value.result; };
  first_use_.resize(num_values + 1);
  for (const Instruction& instruction : computation.instructions) {
    for (const Value operand : instruction.operands) ++first_use_[number_of(operand) + 1];
  }
  std::partial_sum(first_use_.begin(), first_use_.end(), first_use_.begin());
  uses_.resize(first_use_.back());
  std::vector<int32_t> next = first_use_;
  for (InstructionId id = 0; id < computation.num_instructions(); ++id) {
    const std::vector<Value>& operands = computation.instructions[id].operands;
    for (size_t i = 0; i < operands.size(); ++i)
      uses_[next[number_of(operands[i])]++] = {id, static_cast<int>(i)};
  }
  is_result_.resize(num_values);
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
