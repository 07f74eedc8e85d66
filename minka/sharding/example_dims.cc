#include "minka/sharding/example_dims.h"

#include <algorithm>
#include <utility>

#include "minka/sharding/op_rule.h"

namespace minka {
namespace {

ExampleDims OfParameter(const Instruction& instruction, const ParameterInfo& info) {
  if (info.received) return *info.received;
  if (info.role != ParameterRole::kBatch || info.batch_dim < 0) return {};
  ExampleDims dims{.batch = info.batch_dim};
  for (int dim = 0; dim < instruction.shape().rank(); ++dim) {
    if (dim != info.batch_dim) dims.within.push_back(dim);
  }
  return dims;
}

int DimOf(const std::vector<int>& factor_of_dim, int factor) {
  const auto found = std::ranges::find(factor_of_dim, factor);
  return found == factor_of_dim.end() ? -1 : static_cast<int>(found - factor_of_dim.begin());
}

// Of one lane of an operation. Where operands disagree the first one says what counts examples.
void Follow(const OpRule& rule, const std::vector<ExampleDims>& operands,
            std::vector<ExampleDims>& results) {
  for (size_t i = 0; i < operands.size() && i < rule.operand_dims.size(); ++i) {
    const std::vector<int>& factor_of_dim = rule.operand_dims[i];
    const int batch = operands[i].batch < 0 ? kWholeDim : factor_of_dim[operands[i].batch];
    for (size_t r = 0; r < results.size(); ++r) {
      ExampleDims& result = results[r];
      if (batch != kWholeDim && result.batch < 0) result.batch = DimOf(rule.result_dims[r], batch);
      for (const int within : operands[i].within) {
        const int factor = factor_of_dim[within];
        const int dim = factor == kWholeDim ? -1 : DimOf(rule.result_dims[r], factor);
        if (dim >= 0) result.within.push_back(dim);
      }
    }
  }
  for (ExampleDims& result : results) {
    std::ranges::sort(result.within);
    const auto repeated = std::ranges::unique(result.within);
    result.within.erase(repeated.begin(), repeated.end());
    std::erase(result.within, result.batch);
  }
}

}  // namespace

std::vector<std::vector<ExampleDims>> FindExampleDims(const Step& step) {
  const Computation& entry = step.module.entry_computation();
  std::vector<std::vector<ExampleDims>> found(entry.num_instructions());
  for (InstructionId id = 0; id < entry.num_instructions(); ++id) {
    const Instruction& instruction = entry.instructions[id];
    std::vector<ExampleDims>& results = found[id];
    results.resize(instruction.results.size());
    if (instruction.opcode == Opcode::kParameter) {
      const auto number = static_cast<size_t>(instruction.As<ParameterAttributes>().number);
      results[0] = OfParameter(instruction, step.parameters[number]);
      continue;
    }
    std::vector<ExampleDims> operands;
    for (const Value operand : instruction.operands) {
      operands.push_back(found[operand.instruction][operand.result]);
    }
    if (std::ranges::all_of(operands, [](const ExampleDims& dims) { return dims.empty(); }))
      continue;
    const OpRule rule = RuleFor(step.module, entry, id);
    if (rule.num_lanes == 1) {
      Follow(rule, operands, results);
    } else {
      results = std::move(operands);  // the shapes of a lane are equal
    }
    if (instruction.part.phase != Phase::kApply) continue;
    for (ExampleDims& dims : results) dims.within.clear();
  }
  return found;
}

}  // namespace minka
