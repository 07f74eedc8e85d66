#include "tests/random_programs/coverage.h"

#include <algorithm>
#include <cstdio>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <variant>

#include "fmt/format.h"
#include "minka/base/check.h"
#include "minka/sharding/op_rule.h"

namespace minka {
namespace {

constexpr Opcode kWithoutRule[] = {
    Opcode::kRng,       Opcode::kCall,          Opcode::kCustomCall, Opcode::kAllGather,
    Opcode::kAllReduce, Opcode::kAllToAll,      Opcode::kOther,      Opcode::kCollectivePermute,
    Opcode::kReplicaId, Opcode::kReduceScatter, Opcode::kPartitionId};
// XLA's CPU compiler has no code for them (docs/design/0004).
constexpr Opcode kDoNotCompile[] = {Opcode::kAcos,  Opcode::kAcosh, Opcode::kAsin, Opcode::kAsinh,
                                    Opcode::kAtanh, Opcode::kCosh,  Opcode::kSinh};

// The computation that combines elements; nullopt: the operation has none.
std::optional<ComputationId> Combiner(const Instruction& instruction) {
  switch (instruction.opcode) {
    case Opcode::kReduce:
    case Opcode::kReduceWindow:
    case Opcode::kScatter:
      return instruction.called[0];
    case Opcode::kSelectAndScatter:
      return instruction.called[1];
    default:
      return std::nullopt;
  }
}

std::string RuleName(const Module& module, const Instruction& instruction, const OpRule& rule) {
  std::string form;
  if (const std::optional<ComputationId> combiner = Combiner(instruction)) {
    const Computation& called = module.computations[*combiner];
    form = called.results.size() > 1
               ? "argmax"
               : std::string(OpcodeName(called.instruction(called.results[0]).opcode));
  } else if (const auto* a = std::get_if<ConvolutionAttributes>(&instruction.attributes)) {
    if (a->feature_group_count > 1) form = "feature groups";
    if (a->batch_group_count > 1) form = "batch groups";
  } else if (instruction.opcode == Opcode::kConvert && !rule.linear_groups.empty()) {
    form = "widening";
  }
  const std::string_view name = OpcodeName(instruction.opcode);
  return form.empty() ? std::string(name) : fmt::format("{} ({})", name, form);
}

std::optional<Value> InitialValue(const Instruction& instruction) {
  switch (instruction.opcode) {
    case Opcode::kReduce:
    case Opcode::kReduceWindow:
      return instruction.operands[instruction.operands.size() / 2];
    case Opcode::kScatter:
      return instruction.operands[0];
    case Opcode::kSelectAndScatter:
      return instruction.operands[2];
    case Opcode::kPad:
      return instruction.operands[1];
    default:
      return std::nullopt;
  }
}

// nullopt: nothing can be padded.
std::optional<bool> IsPadded(const Instruction& instruction) {
  const auto any_window = [](const std::vector<WindowDim>& dims) {
    return std::any_of(dims.begin(), dims.end(), [](const WindowDim& dim) {
      return dim.padding_low > 0 || dim.padding_high > 0;
    });
  };
  if (const auto* window = std::get_if<WindowAttributes>(&instruction.attributes)) {
    return any_window(window->dims);
  }
  if (const auto* convolution = std::get_if<ConvolutionAttributes>(&instruction.attributes)) {
    return any_window(convolution->window);
  }
  if (const auto* pad = std::get_if<PadAttributes>(&instruction.attributes)) {
    const auto is_positive = [](int64_t size) { return size > 0; };
    return std::any_of(pad->low.begin(), pad->low.end(), is_positive) ||
           std::any_of(pad->high.begin(), pad->high.end(), is_positive);
  }
  return std::nullopt;
}

std::string_view FormName(LocalForm form) {
  switch (form) {
    case LocalForm::kPlain:
      return "plain";
    case LocalForm::kIotaOffset:
      return "iota offset";
    case LocalForm::kOwnSlice:
      return "own slice";
    case LocalForm::kIndexOffset:
      return "index offset";
    case LocalForm::kGatherAndReduce:
      return "gather and reduce";
    case LocalForm::kWindowOffset:
      return "window offset";
    case LocalForm::kCollectivesInside:
      return "collectives inside";
    case LocalForm::kInitOnFirst:
      return "init on first";
  }
  MINKA_CHECK(false, "local form {}", static_cast<int>(form));
}

bool Contains(std::span<const Opcode> opcodes, Opcode opcode) {
  return std::find(opcodes.begin(), opcodes.end(), opcode) != opcodes.end();
}

}  // namespace

void Coverage::AddOperation(const Module& module, const StagePlan& stage, InstructionId id) {
  const Computation& computation = module.entry_computation();
  const Instruction& instruction = computation.instructions[id];
  const OpRule rule = RuleFor(module, computation, id);
  const std::vector<AxisUse>& axes = stage.ops[id].strategy.axes;
  const auto any_use = [&](auto is) { return std::any_of(axes.begin(), axes.end(), is); };
  // Factors of lanes are plain ones.
  const auto factor_of = [&](const AxisUse& use) {
    return rule.num_lanes == 1 && use.kind == AxisUse::Kind::kFactor ? &rule.factors[use.index]
                                                                     : nullptr;
  };
  const bool is_split =
      any_use([](const AxisUse& use) { return use.kind == AxisUse::Kind::kFactor; });
  const bool is_partial = any_use([&](const AxisUse& use) {
    const Factor* factor = factor_of(use);
    return use.kind == AxisUse::Kind::kLinear || (factor && !factor->partial_operands.empty());
  });
  const bool owes = std::any_of(rule.factors.begin(), rule.factors.end(),
                                [](const Factor& f) { return !f.partial_operands.empty(); });
  const auto count = [&](WayCount& way, bool is_taken) {
    way.can = true;
    way.count += is_taken;
    way.on_three_axes += is_taken && stage.mesh.num_axes() >= 3;
  };
  RuleCoverage& covered = rules_[RuleName(module, instruction, rule)];
  ++covered.num_operations;
  if (!rule.factors.empty()) count(covered.split, is_split);
  if (owes || !rule.linear_groups.empty()) count(covered.partial, is_partial);
  const bool is_active = is_split || is_partial;
  if (const std::optional<Value> initial = InitialValue(instruction)) {
    count(covered.initial_value, is_active && !IsZero(computation, *initial));
  }
  if (const std::optional<bool> is_padded = IsPadded(instruction)) {
    count(covered.padding, is_active && *is_padded);
  }
  for (const AxisUse& use : axes) {
    const Factor* factor = factor_of(use);
    if (factor) ++local_forms_[std::string(FormName(factor->local_form))];
  }
}

void Coverage::Add(const Module& module, const StagePlan& stage) {
  for (InstructionId id = 0; id < module.entry_computation().num_instructions(); ++id) {
    AddOperation(module, stage, id);
  }
  for (const Reshard& reshard : stage.reshards) {
    for (const ReshardStep& step : reshard.steps) {
      ++reshard_steps_[std::string(ToString(step.kind))];
    }
  }
  for (const PlannedCollective& collective : ListCollectives(module, stage)) {
    if (collective.num_values > 1) ++reshard_steps_[collective.kind + " (combined)"];
  }
}

void Coverage::Print() const {
  const auto cell = [](const WayCount& way) {
    return way.can ? fmt::format("{:>6} {:>6}", way.count, way.on_three_axes)
                   : fmt::format("{:>6} {:>6}", "-", "-");
  };
  std::string table = fmt::format(
      "Operations by rule, and those split, with partial operands, with an initial value that is "
      "not zero, and\npadded; each in all and on meshes of three axes. -: the rule does not have "
      "it.\n{:<30} {:>6} {:>13} {:>13} {:>13} {:>13}\n",
      "rule", "all", "split", "partial", "initial", "padded");
  for (const auto& [name, rule] : rules_) {
    table += fmt::format("{:<30} {:>6} {} {} {} {}\n", name, rule.num_operations, cell(rule.split),
                         cell(rule.partial), cell(rule.initial_value), cell(rule.padding));
  }
  for (const auto& [name, count] : local_forms_) {
    table += fmt::format("{:<30} {:>6}\n", fmt::format("local form: {}", name), count);
  }
  for (const auto& [name, count] : reshard_steps_) {
    table += fmt::format("{:<30} {:>6}\n", fmt::format("reshard: {}", name), count);
  }
  std::fputs(table.c_str(), stdout);
}

std::vector<std::string> Coverage::Missing(int least) const {
  std::vector<std::string> missing;
  std::set<std::string> opcodes;
  for (const auto& [name, rule] : rules_) {
    opcodes.insert(name.substr(0, name.find(" (")));
    const auto check = [&](const WayCount& way, std::string_view text) {
      if (way.can && way.count < least) {
        missing.push_back(fmt::format("{}: {} {}", name, way.count, text));
      }
    };
    check({.can = true, .count = rule.num_operations}, "in all");
    check(rule.split, "split");
    check(rule.partial, "with partial operands");
    check(rule.initial_value, "with an initial value");
    check(rule.padding, "padded");
  }
#define MINKA_OPCODE(Name, text, family)                                                       \
  if (!Contains(kWithoutRule, Opcode::k##Name) && !Contains(kDoNotCompile, Opcode::k##Name) && \
      !opcodes.contains(text)) {                                                               \
    missing.push_back(fmt::format("{} never ran", text));                                      \
  }
#include "minka/ir/opcode.def"
#undef MINKA_OPCODE
  for (int form = 0; form <= static_cast<int>(LocalForm::kInitOnFirst); ++form) {
    const std::string name(FormName(static_cast<LocalForm>(form)));
    const auto found = local_forms_.find(name);
    const int count = found == local_forms_.end() ? 0 : found->second;
    if (count < least) missing.push_back(fmt::format("local form {}: {}", name, count));
  }
  return missing;
}

}  // namespace minka
