#include "minka/plan/check_computation.h"

#include <algorithm>

#include "minka/base/status.h"
#include "minka/plan/reshard_text.h"

namespace minka {
namespace {

absl::Status CheckAxisUse(const OpRule& rule, const AxisUse& use) {
  const size_t limit = use.kind == AxisUse::Kind::kFactor   ? rule.factors.size()
                       : use.kind == AxisUse::Kind::kLinear ? rule.linear_groups.size()
                                                            : 1;
  if (use.index >= 0 && static_cast<size_t>(use.index) < limit) return absl::OkStatus();
  return InvalidArgument("{} {} does not exist, there are {}",
                         use.kind == AxisUse::Kind::kFactor ? "factor" : "linear group", use.index,
                         limit);
}

absl::Status ExpectCount(std::string_view what, size_t got, size_t want) {
  if (got == want) return absl::OkStatus();
  return InvalidArgument("its plan has {} {}, it has {}", got, what, want);
}

bool IsToken(const Shape& shape) { return shape.type == ElementType::kToken; }

// The plan of one called computation.
class CalledChecker {
 public:
  CalledChecker(const Module& module, const Computation& computation, const CalledPlan& plan,
                const Mesh& mesh)
      : module_(module),
        computation_(computation),
        plan_(plan),
        mesh_(mesh),
        rules_(RulesOf(module, computation)) {}

  absl::Status Check(const CalledShardings& wanted) const {
    RETURN_IF_ERROR(CheckCounts());
    RETURN_IF_ERROR(CheckParameters(wanted.parameters));
    for (InstructionId id = 0; id < computation_.num_instructions(); ++id) {
      RETURN_IF_ERROR(
          CheckStrategy(computation_, id, rules_[id], plan_.operations[id].strategy, mesh_));
    }
    for (size_t i = 0; i < plan_.reshards.size(); ++i) {
      RETURN_IF_ERROR(WithContext(CheckReshard(plan_.reshards[i]), fmt::format("reshards[{}]", i)));
    }
    for (InstructionId id = 0; id < computation_.num_instructions(); ++id) {
      RETURN_IF_ERROR(CheckOperands(id));
      const CalledPlan::Operation& operation = plan_.operations[id];
      RETURN_IF_ERROR(CheckCalled(module_, computation_, id, rules_[id], operation.strategy,
                                  operation.called, mesh_));
    }
    return CheckResults(wanted.results);
  }

 private:
  std::string Text(const Sharding& sharding) const { return ToString(sharding, mesh_); }
  Sharding ShardingOf(Value value, int version) const {
    return VersionSharding(computation_, rules_, plan_, value, version);
  }

  absl::Status CheckCounts() const {
    RETURN_IF_ERROR(
        ExpectCount("parameters", plan_.parameters.size(), computation_.parameters.size()));
    RETURN_IF_ERROR(
        ExpectCount("operations", plan_.operations.size(), computation_.instructions.size()));
    return ExpectCount("results", plan_.result_versions.size(), computation_.results.size());
  }

  absl::Status CheckParameters(const std::vector<Sharding>& wanted) const {
    for (size_t i = 0; i < wanted.size(); ++i) {
      const InstructionId id = computation_.parameters[i];
      if (plan_.parameters[i] != wanted[i]) {
        return InvalidArgument("{} is {}, but its caller gives {}", NameOf(computation_, id),
                               Text(plan_.parameters[i]), Text(wanted[i]));
      }
      const std::vector<AxisUse>& axes = plan_.operations[id].strategy.axes;
      if (std::ranges::all_of(axes, [](const AxisUse& use) { return use == AxisUse{}; })) continue;
      return InvalidArgument("{} has a strategy, but its caller says how it is split",
                             NameOf(computation_, id));
    }
    return absl::OkStatus();
  }

  absl::Status CheckReshard(const CalledReshard& reshard) const {
    RETURN_IF_ERROR(CheckValue(computation_, reshard.value));
    const Sharding made = ShardingOf(reshard.value, 0);
    if (reshard.from != made) {
      return InvalidArgument("reads {} of {}, which is made as {}", Text(reshard.from),
                             NameOf(computation_, reshard.value.instruction), Text(made));
    }
    return CheckSteps(computation_.shape(reshard.value), reshard.from, reshard.to, reshard.steps,
                      mesh_);
  }

  absl::Status CheckVersion(Value value, int version) const {
    const bool exists =
        version == 0 || (version > 0 && version <= static_cast<int>(plan_.reshards.size()) &&
                         plan_.reshards[version - 1].value == value);
    if (exists) return absl::OkStatus();
    return InvalidArgument("{} has no version {}", NameOf(computation_, value.instruction),
                           version);
  }

  absl::Status CheckOperands(InstructionId id) const {
    const std::vector<Value>& operands = computation_.instructions[id].operands;
    const CalledPlan::Operation& operation = plan_.operations[id];
    const std::string name = NameOf(computation_, id);
    RETURN_IF_ERROR(WithContext(
        ExpectCount("operands", operation.operand_versions.size(), operands.size()), name));
    for (size_t i = 0; i < operands.size(); ++i) {
      if (IsToken(computation_.shape(operands[i]))) continue;
      const int version = operation.operand_versions[i];
      RETURN_IF_ERROR(
          WithContext(CheckVersion(operands[i], version), fmt::format("{}, operand {}", name, i)));
      const Sharding wanted = OperandSharding(rules_[id], operation.strategy, static_cast<int>(i));
      const Sharding given = ShardingOf(operands[i], version);
      if (given == wanted) continue;
      return InvalidArgument("{}, operand {}: version {} of {} is {}, but {} needs {}", name, i,
                             version, NameOf(computation_, operands[i].instruction), Text(given),
                             ToString(operation.strategy, rules_[id], mesh_), Text(wanted));
    }
    return absl::OkStatus();
  }

  absl::Status CheckResults(const std::vector<Sharding>& wanted) const {
    for (size_t i = 0; i < wanted.size(); ++i) {
      const Value value = computation_.results[i];
      if (IsToken(computation_.shape(value))) continue;
      const int version = plan_.result_versions[i];
      RETURN_IF_ERROR(WithContext(CheckVersion(value, version), fmt::format("result {}", i)));
      const Sharding given = ShardingOf(value, version);
      if (given == wanted[i]) continue;
      return InvalidArgument("result {} ({}) is {}, but its caller wants {}", i,
                             NameOf(computation_, value.instruction), Text(given), Text(wanted[i]));
    }
    return absl::OkStatus();
  }

  const Module& module_;
  const Computation& computation_;
  const CalledPlan& plan_;
  const Mesh& mesh_;
  const std::vector<OpRule> rules_;
};

}  // namespace

std::string NameOf(const Computation& computation, InstructionId id) {
  const Instruction& instruction = computation.instructions[id];
  return fmt::format("{} '{}'", OpcodeName(instruction.opcode), instruction.name);
}

absl::Status CheckValue(const Computation& computation, Value value) {
  if (value.instruction >= 0 && value.instruction < computation.num_instructions() &&
      value.result >= 0 &&
      value.result < static_cast<int>(computation.instruction(value).results.size())) {
    return absl::OkStatus();
  }
  return InvalidArgument("value {}.{} does not exist", value.instruction, value.result);
}

absl::Status CheckStrategy(const Computation& computation, InstructionId id, const OpRule& rule,
                           const Strategy& strategy, const Mesh& mesh) {
  const Instruction& instruction = computation.instructions[id];
  const std::string name = NameOf(computation, id);
  const size_t num_axes = static_cast<size_t>(mesh.num_axes());
  const size_t num_uses = num_axes * rule.num_lanes;
  if (strategy.axes.size() != num_uses) {
    return InvalidArgument("{}: the strategy names {} axes, mesh {} asks for {}", name,
                           strategy.axes.size(), mesh.ToString(), num_uses);
  }
  for (size_t i = 0; i < num_uses; ++i) {
    const int lane = static_cast<int>(i / num_axes);
    RETURN_IF_ERROR(WithContext(
        CheckAxisUse(rule.num_lanes > 1 ? LaneRule(rule, lane) : rule, strategy.axes[i]), name));
  }
  for (size_t i = 0; i < instruction.operands.size(); ++i) {
    RETURN_IF_ERROR(WithContext(Validate(OperandSharding(rule, strategy, static_cast<int>(i)),
                                         computation.shape(instruction.operands[i]), mesh),
                                fmt::format("{}, operand {}", name, i)));
  }
  for (size_t i = 0; i < instruction.results.size(); ++i) {
    if (IsToken(instruction.results[i])) continue;
    RETURN_IF_ERROR(WithContext(
        Validate(ResultSharding(rule, strategy, static_cast<int>(i)), instruction.results[i], mesh),
        fmt::format("{}, result {}", name, i)));
  }
  return absl::OkStatus();
}

absl::Status CheckSteps(const Shape& shape, const Sharding& from, const Sharding& to,
                        std::span<const ReshardStep> steps, const Mesh& mesh) {
  Sharding current = from;
  for (const ReshardStep& step : steps) {
    ASSIGN_OR_RETURN(current, ApplyStep(current, step, mesh));
    RETURN_IF_ERROR(Validate(current, shape, mesh));
    if (current != step.result) {
      return InvalidArgument("'{}' leads to {}, not to {}", ToString(step, mesh),
                             ToString(current, mesh), ToString(step.result, mesh));
    }
  }
  if (current == to) return absl::OkStatus();
  return InvalidArgument("the steps lead to {}, not to {}", ToString(current, mesh),
                         ToString(to, mesh));
}

absl::Status CheckCalled(const Module& module, const Computation& computation, InstructionId id,
                         const OpRule& rule, const Strategy& strategy,
                         std::span<const CalledPlan> called, const Mesh& mesh) {
  const Instruction& instruction = computation.instructions[id];
  const std::string name = NameOf(computation, id);
  const size_t num_planned = IsControlFlow(instruction.opcode) ? instruction.called.size() : 0;
  if (called.size() != num_planned) {
    return InvalidArgument("{}: the plan says how {} called computations run, it calls {}", name,
                           called.size(), num_planned);
  }
  for (size_t index = 0; index < called.size(); ++index) {
    const Computation& inside = module.computations[instruction.called[index]];
    const CalledShardings wanted =
        ShardingsOfCalled(module, computation, id, rule, strategy, index);
    RETURN_IF_ERROR(WithContext(CalledChecker(module, inside, called[index], mesh).Check(wanted),
                                fmt::format("{}, computation '{}'", name, inside.name)));
  }
  return absl::OkStatus();
}

}  // namespace minka
