#include "minka/ir/verifier.h"

#include <set>

#include "absl/container/flat_hash_set.h"
#include "minka/base/status.h"
#include "minka/ir/shape_inference.h"

namespace minka {
namespace {

class ComputationVerifier {
 public:
  ComputationVerifier(const Module& module, ComputationId id)
      : module_(module), id_(id), computation_(module.computations[id]) {}

  absl::Status Run() const {
    RETURN_IF_ERROR(CheckNames());
    for (InstructionId id = 0; id < computation_.num_instructions(); ++id) {
      const Instruction& instruction = computation_.instructions[id];
      if (absl::Status status = CheckInstruction(id, instruction); !status.ok()) {
        return WithContext(status,
                           fmt::format("'{}' in '{}'", instruction.name, computation_.name));
      }
    }
    RETURN_IF_ERROR(CheckParameters());
    return CheckResults();
  }

 private:
  absl::Status CheckNames() const {
    absl::flat_hash_set<std::string_view> names;
    for (InstructionId id = 0; id < computation_.num_instructions(); ++id) {
      const std::string& name = computation_.instructions[id].name;
      if (name.empty()) {
        return InvalidArgument("instruction {} of '{}' has no name", id, computation_.name);
      }
      if (!names.insert(name).second) {
        return InvalidArgument("'{}' has two instructions named '{}'", computation_.name, name);
      }
    }
    return absl::OkStatus();
  }

  // Is `value` a result of an instruction before `end`?
  bool IsDefinedBefore(Value value, InstructionId end) const {
    if (value.instruction < 0 || value.instruction >= end) return false;
    const auto num_results = computation_.instructions[value.instruction].results.size();
    return value.result >= 0 && value.result < static_cast<int>(num_results);
  }

  absl::Status CheckInstruction(InstructionId id, const Instruction& instruction) const {
    std::vector<Shape> operands;
    for (const Value operand : instruction.operands) {
      if (!IsDefinedBefore(operand, id)) {
        return InvalidArgument(
            "operand {} is result {} of instruction {}, which does not come before",
            operands.size(), operand.result, operand.instruction);
      }
      operands.push_back(computation_.shape(operand));
    }
    for (const ComputationId called : instruction.called) {
      if (called < 0 || called >= id_) {
        return InvalidArgument(
            "calls computation {}; callees come before their callers (this is {})", called, id_);
      }
    }
    ASSIGN_OR_RETURN(const std::vector<Shape> inferred,
                     InferShapes(module_, instruction, operands));
    return CheckShapes(instruction, inferred);
  }

  absl::Status CheckShapes(const Instruction& instruction,
                           const std::vector<Shape>& inferred) const {
    const std::string_view opcode = OpcodeName(instruction.opcode);
    if (inferred.size() != instruction.results.size()) {
      return InvalidArgument("{}: has {} results, declares {}", opcode, inferred.size(),
                             instruction.results.size());
    }
    for (size_t i = 0; i < inferred.size(); ++i) {
      if (inferred[i] == instruction.results[i]) continue;
      return InvalidArgument("{}: result {} is {}, declared {}", opcode, i, ToString(inferred[i]),
                             ToString(instruction.results[i]));
    }
    return absl::OkStatus();
  }

  absl::Status CheckParameters() const {
    size_t num_parameters = 0;
    for (const Instruction& instruction : computation_.instructions) {
      num_parameters += instruction.opcode == Opcode::kParameter ? 1 : 0;
    }
    if (num_parameters != computation_.parameters.size()) {
      return InvalidArgument("'{}' has {} parameters, lists {}", computation_.name, num_parameters,
                             computation_.parameters.size());
    }
    for (size_t number = 0; number < num_parameters; ++number) {
      const InstructionId id = computation_.parameters[number];
      if (id >= 0 && id < computation_.num_instructions() &&
          computation_.instructions[id].opcode == Opcode::kParameter &&
          computation_.instructions[id].As<ParameterAttributes>().number ==
              static_cast<int64_t>(number)) {
        continue;
      }
      return InvalidArgument("'{}' has no parameter number {} where its list says",
                             computation_.name, number);
    }
    return absl::OkStatus();
  }

  absl::Status CheckResults() const {
    for (size_t i = 0; i < computation_.results.size(); ++i) {
      const Value value = computation_.results[i];
      if (IsDefinedBefore(value, computation_.num_instructions())) continue;
      return InvalidArgument(
          "result {} of '{}' is result {} of instruction {}, which does not exist", i,
          computation_.name, value.result, value.instruction);
    }
    return absl::OkStatus();
  }

  const Module& module_;
  ComputationId id_;
  const Computation& computation_;
};

absl::Status CheckAliases(const Module& module) {
  const Computation& entry = module.entry_computation();
  std::set<int> results;
  std::set<int> parameters;
  for (const Alias& alias : module.aliases) {
    if (alias.result < 0 || alias.result >= static_cast<int>(entry.results.size()) ||
        alias.parameter < 0 || alias.parameter >= static_cast<int>(entry.parameters.size())) {
      return InvalidArgument("alias of result {} and parameter {}: there are {} and {}",
                             alias.result, alias.parameter, entry.results.size(),
                             entry.parameters.size());
    }
    if (!results.insert(alias.result).second || !parameters.insert(alias.parameter).second) {
      return InvalidArgument("alias of result {} and parameter {}: one of them is aliased twice",
                             alias.result, alias.parameter);
    }
    const Shape& result = entry.shape(entry.results[alias.result]);
    const Shape& parameter = entry.instructions[entry.parameters[alias.parameter]].shape();
    if (result != parameter) {
      return InvalidArgument("alias of result {} ({}) and parameter {} ({}): shapes differ",
                             alias.result, ToString(result), alias.parameter, ToString(parameter));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Verify(const Module& module) {
  const auto num_computations = static_cast<ComputationId>(module.computations.size());
  if (module.entry < 0 || module.entry >= num_computations) {
    return InvalidArgument("module '{}': entry computation {} of {} does not exist", module.name,
                           module.entry, num_computations);
  }
  std::set<std::string_view> names;
  for (ComputationId id = 0; id < num_computations; ++id) {
    const std::string& name = module.computations[id].name;
    if (name.empty()) return InvalidArgument("computation {} has no name", id);
    if (!names.insert(name).second) return InvalidArgument("two computations named '{}'", name);
    RETURN_IF_ERROR(ComputationVerifier(module, id).Run());
  }
  return CheckAliases(module);
}

}  // namespace minka
