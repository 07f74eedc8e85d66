#include "minka/oracle/rounding.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "fmt/format.h"
#include "minka/base/hash.h"

namespace minka {
namespace {

bool CallsRng(const Module& module, const Instruction& instruction) {
  if (instruction.opcode == Opcode::kRng) return true;
  return std::ranges::any_of(instruction.called, [&](ComputationId id) {
    return std::ranges::any_of(module.computations[id].instructions,
                               [&](const Instruction& called) { return CallsRng(module, called); });
  });
}

// The largest epsilon of a computation's values, by computation, called ones included.
class ValueEpsilons {
 public:
  explicit ValueEpsilons(const Module& module)
      : module_(module), of_computations_(module.computations.size()) {}

  double Of(const Instruction& instruction) {
    double epsilon = 0;
    for (const Shape& shape : instruction.results) {
      epsilon = std::max(epsilon, Epsilon(shape.type));
    }
    if (instruction.opcode == Opcode::kReducePrecision) {
      const auto& precision = instruction.As<ReducePrecisionAttributes>();
      epsilon = std::max(epsilon, std::ldexp(1, -precision.mantissa_bits));
    }
    for (const ComputationId id : instruction.called) epsilon = std::max(epsilon, Of(id));
    return epsilon;
  }

 private:
  double Of(ComputationId id) {
    std::optional<double>& known = of_computations_[id];
    if (known) return *known;
    double epsilon = 0;
    for (const Instruction& instruction : module_.computations[id].instructions) {
      epsilon = std::max(epsilon, Of(instruction));
    }
    known = epsilon;
    return epsilon;
  }

  const Module& module_;
  std::vector<std::optional<double>> of_computations_;
};

// Is it no number, or one without a fraction?
bool IsWhole(double value) {
  constexpr double kFromHereOnAll = 4503599627370496;  // 2^52
  if (!(std::abs(value) < kFromHereOnAll)) return true;
  return value == static_cast<double>(static_cast<int64_t>(value));
}

}  // namespace

PathEpsilons FindPathEpsilons(const Step& step) {
  const Computation& entry = step.module.entry_computation();
  ValueEpsilons values(step.module);
  // Of the values that each instruction is computed from, and of those that are computed from it.
  std::vector<double> above, below;
  for (const Instruction& instruction : entry.instructions) above.push_back(values.Of(instruction));
  below = above;
  const auto raise = [](double& epsilon, double to) {
    const bool raises = to > epsilon;
    if (raises) epsilon = to;
    return raises;
  };
  for (bool changed = true; changed;) {
    changed = false;
    for (InstructionId id = 0; id < entry.num_instructions(); ++id) {
      for (const Value operand : entry.instructions[id].operands) {
        changed |= raise(above[id], above[operand.instruction]);
      }
    }
    for (InstructionId id = entry.num_instructions() - 1; id >= 0; --id) {
      for (const Value operand : entry.instructions[id].operands) {
        changed |= raise(below[operand.instruction], below[id]);
      }
    }
    for (size_t i = 0; i < step.parameters.size(); ++i) {
      const int result = step.parameters[i].state_result;
      if (result < 0) continue;
      const InstructionId from = entry.results[result].instruction, to = entry.parameters[i];
      changed |= raise(above[to], above[from]);
      changed |= raise(below[from], below[to]);
    }
  }
  PathEpsilons epsilons;
  for (const Value result : entry.results) epsilons.of_results.push_back(above[result.instruction]);
  for (const InstructionId id : entry.parameters) epsilons.of_parameters.push_back(below[id]);
  return epsilons;
}

Literal Nudged(const Literal& literal, double epsilon, uint64_t seed) {
  if (!IsFloat(literal.shape.type) || ElementBytes(literal.shape.type) < 2) return literal;
  epsilon = std::min(epsilon, 0.5);  // signs stay
  const double factors[] = {1 - epsilon, 1 + epsilon};
  std::vector<double> elements = ElementsAsDoubles(literal);
  uint64_t bits = 0;
  for (size_t i = 0; i < elements.size(); ++i) {
    if (i % 64 == 0) bits = StableHash(fmt::format("{}", i), seed);
    elements[i] *= IsWhole(elements[i]) ? 1 : factors[bits >> (i % 64) & 1];
  }
  return LiteralOf(literal.shape, elements);
}

std::vector<bool> DependsOnRng(const Step& step) {
  const Computation& entry = step.module.entry_computation();
  std::vector<bool> results(entry.results.size()), parameters(entry.parameters.size());
  for (bool changed = true; changed;) {
    std::vector<bool> depends(entry.num_instructions());
    for (InstructionId id = 0; id < entry.num_instructions(); ++id) {
      const Instruction& instruction = entry.instructions[id];
      depends[id] = CallsRng(step.module, instruction);
      if (instruction.opcode == Opcode::kParameter) {
        depends[id] = parameters[instruction.As<ParameterAttributes>().number];
      }
      for (const Value operand : instruction.operands) {
        depends[id] = depends[id] || depends[operand.instruction];
      }
    }
    for (size_t i = 0; i < results.size(); ++i) results[i] = depends[entry.results[i].instruction];
    changed = false;
    for (size_t i = 0; i < step.parameters.size(); ++i) {
      const int result = step.parameters[i].state_result;
      if (result < 0 || !results[result] || parameters[i]) continue;
      parameters[i] = changed = true;
    }
  }
  return results;
}

}  // namespace minka
