// CheckPlan: is the plan one for this module, and can it be lowered?
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "minka/base/hash.h"
#include "minka/base/status.h"
#include "minka/plan/check_computation.h"
#include "minka/plan/combine.h"
#include "minka/plan/plan.h"
#include "minka/plan/reshard_text.h"

namespace minka {
namespace {

class StageChecker {
 public:
  StageChecker(const Module& module, const StagePlan& stage)
      : module_(module),
        computation_(module.entry_computation()),
        stage_(stage),
        mesh_(stage.mesh),
        loop_(FindMicroLoop(module)) {}

  absl::Status Check() {
    RETURN_IF_ERROR(CheckCounts());
    for (InstructionId id = 0; id < computation_.num_instructions(); ++id) {
      RETURN_IF_ERROR(CheckStrategyOf(id));
    }
    for (size_t i = 0; i < stage_.reshards.size(); ++i) {
      RETURN_IF_ERROR(
          WithContext(CheckReshard(static_cast<int>(i)), fmt::format("reshards[{}]", i)));
    }
    for (InstructionId id = 0; id < computation_.num_instructions(); ++id) {
      RETURN_IF_ERROR(CheckOperands(id));
      RETURN_IF_ERROR(CheckCalled(module_, computation_, id, rules_[id], stage_.ops[id].strategy,
                                  stage_.ops[id].called, mesh_));
    }
    RETURN_IF_ERROR(CheckGroups());
    RETURN_IF_ERROR(CheckResults());
    return CheckAliases();
  }

 private:
  std::string Name(InstructionId id) const { return NameOf(computation_, id); }
  std::string Text(const Sharding& sharding) const { return ToString(sharding, mesh_); }

  absl::Status CheckCounts() const {
    const auto expect = [](std::string_view what, size_t got, size_t want) -> absl::Status {
      if (got == want) return absl::OkStatus();
      return InvalidArgument("the plan has {} {}, the module {}", got, what, want);
    };
    RETURN_IF_ERROR(expect("operations", stage_.ops.size(), computation_.instructions.size()));
    return expect("results", stage_.result_versions.size(), computation_.results.size());
  }

  absl::Status CheckStrategyOf(InstructionId id) {
    const Instruction& instruction = computation_.instructions[id];
    rules_.push_back(RuleFor(module_, computation_, id));
    const Strategy& strategy = stage_.ops[id].strategy;
    RETURN_IF_ERROR(CheckStrategy(computation_, id, rules_.back(), strategy, mesh_));
    results_.emplace_back();
    for (size_t i = 0; i < instruction.results.size(); ++i) {
      const bool is_token = instruction.results[i].type == ElementType::kToken;
      results_.back().push_back(
          is_token ? Sharding{} : ResultSharding(rules_.back(), strategy, static_cast<int>(i)));
    }
    return absl::OkStatus();
  }

  // The version is one of the value and made early enough to be read by instruction `reader`.
  absl::Status CheckVersion(Value value, int version, InstructionId reader) const {
    if (version == 0) return absl::OkStatus();
    if (version < 0 || version > static_cast<int>(stage_.reshards.size()) ||
        stage_.reshards[version - 1].value != value) {
      return InvalidArgument("{} has no version {}", Name(value.instruction), version);
    }
    // A stage of a pipeline sends some results for each micro-batch.
    const bool is_sent =
        reader == computation_.num_instructions() && loop_.IsTransient(value.instruction);
    const bool leaves_loop = PartOf(loop_, stage_.reshards[version - 1]) == LoopPart::kInside &&
                             !loop_.IsInside(reader) && !is_sent;
    if (leaves_loop) {
      return InvalidArgument(
          "version {} of {} is made for each micro-batch and read outside the loop", version,
          Name(value.instruction));
    }
    if (stage_.reshards[version - 1].before <= reader) return absl::OkStatus();
    return InvalidArgument("version {} of {} is made before instruction {}, after it is read",
                           version, Name(value.instruction), stage_.reshards[version - 1].before);
  }

  const Sharding& ShardingOf(Value value, int version) const {
    return version == 0 ? results_[value.instruction][value.result]
                        : stage_.reshards[version - 1].to;
  }

  // An instruction in the part of the step where the reshard runs.
  InstructionId ReaderOf(const Reshard& reshard) const {
    return PartOf(loop_, reshard) == LoopPart::kInside ? std::min(reshard.before, loop_.end - 1)
                                                       : reshard.before;
  }

  absl::Status CheckReshard(int index) const {
    const Reshard& reshard = stage_.reshards[index];
    RETURN_IF_ERROR(CheckValue(computation_, reshard.value));
    if (reshard.from_version > index) {
      return InvalidArgument("version {} is made later", reshard.from_version);
    }
    if (reshard.before <= reshard.value.instruction ||
        reshard.before > computation_.num_instructions()) {
      return InvalidArgument("made before instruction {}, but {} is instruction {} of {}",
                             reshard.before, Name(reshard.value.instruction),
                             reshard.value.instruction, computation_.num_instructions());
    }
    if (index > 0 && stage_.reshards[index - 1].before > reshard.before) {
      return InvalidArgument("made before instruction {}, the one in front of it before {}",
                             reshard.before, stage_.reshards[index - 1].before);
    }
    RETURN_IF_ERROR(CheckVersion(reshard.value, reshard.from_version, ReaderOf(reshard)));
    const Sharding& source = ShardingOf(reshard.value, reshard.from_version);
    if (reshard.from != source) {
      return InvalidArgument("reads {} of {}, but version {} is {}", Text(reshard.from),
                             Name(reshard.value.instruction), reshard.from_version, Text(source));
    }
    return CheckSteps(computation_.shape(reshard.value), reshard.from, reshard.to, reshard.steps,
                      mesh_);
  }

  absl::Status CheckOperands(InstructionId id) const {
    const Instruction& instruction = computation_.instructions[id];
    const OpPlan& op = stage_.ops[id];
    if (op.operand_versions.size() != instruction.operands.size()) {
      return InvalidArgument("{}: the plan names {} operands, it has {}", Name(id),
                             op.operand_versions.size(), instruction.operands.size());
    }
    for (size_t i = 0; i < instruction.operands.size(); ++i) {
      const Value operand = instruction.operands[i];
      if (computation_.shape(operand).type == ElementType::kToken) continue;
      RETURN_IF_ERROR(WithContext(CheckVersion(operand, op.operand_versions[i], id),
                                  fmt::format("{}, operand {}", Name(id), i)));
      const bool begins_stack = i == 0 && loop_.IsStack(id);
      const int version = op.operand_versions[i];
      if (begins_stack && version > 0 &&
          PartOf(loop_, stage_.reshards[version - 1]) == LoopPart::kInside) {
        return InvalidArgument("{}: what it begins with is made in the loop", Name(id));
      }
      const Sharding wanted = OperandSharding(rules_[id], op.strategy, static_cast<int>(i));
      const Sharding& given = ShardingOf(operand, op.operand_versions[i]);
      if (given == wanted) continue;
      return InvalidArgument("{}, operand {}: version {} of {} is {}, but {} needs {}", Name(id), i,
                             op.operand_versions[i], Name(operand.instruction), Text(given),
                             ToString(op.strategy, rules_[id], mesh_), Text(wanted));
    }
    return absl::OkStatus();
  }

  absl::Status CheckGroups() const {
    std::map<int, int> first_of_group;
    for (size_t i = 0; i < stage_.reshards.size(); ++i) {
      const Reshard& reshard = stage_.reshards[i];
      if (reshard.combine_group < 0) continue;
      const auto [entry, is_first] =
          first_of_group.emplace(reshard.combine_group, static_cast<int>(i));
      const Reshard& first = stage_.reshards[entry->second];
      if (!OnlyCollective(reshard)) {
        return InvalidArgument("reshards[{}]: in combine group {} without exactly one collective",
                               i, reshard.combine_group);
      }
      if (is_first) continue;
      const ReshardStep& step = reshard.steps[*OnlyCollective(reshard)];
      const ReshardStep& first_step = first.steps[*OnlyCollective(first)];
      if (step.kind == first_step.kind && step.axes == first_step.axes &&
          computation_.shape(reshard.value).type == computation_.shape(first.value).type &&
          PartOf(loop_, reshard) == PartOf(loop_, first)) {
        continue;
      }
      return InvalidArgument(
          "reshards[{}]: '{}' cannot be combined with '{}' of reshards[{}]: kind, axes, type "
          "and part of the step must be equal",
          i, ToString(step, mesh_), ToString(first_step, mesh_), entry->second);
    }
    return absl::OkStatus();
  }

  absl::Status CheckResults() const {
    for (size_t i = 0; i < computation_.results.size(); ++i) {
      const Value value = computation_.results[i];
      RETURN_IF_ERROR(WithContext(
          CheckVersion(value, stage_.result_versions[i], computation_.num_instructions()),
          fmt::format("result {}", i)));
      const Sharding& sharding = ShardingOf(value, stage_.result_versions[i]);
      if (sharding.partial.empty()) continue;
      return InvalidArgument("result {} ({}) is {}: results must be complete", i,
                             Name(value.instruction), Text(sharding));
    }
    return absl::OkStatus();
  }

  absl::Status CheckAliases() const {
    for (const Alias& alias : module_.aliases) {
      const InstructionId parameter = computation_.parameters[alias.parameter];
      const Sharding& before = results_[parameter][0];
      const Sharding& after =
          ShardingOf(computation_.results[alias.result], stage_.result_versions[alias.result]);
      if (before == after) continue;
      return InvalidArgument("state parameter {} ({}) is {}, but its new value (result {}) is {}",
                             alias.parameter, Name(parameter), Text(before), alias.result,
                             Text(after));
    }
    return absl::OkStatus();
  }

  const Module& module_;
  const Computation& computation_;
  const StagePlan& stage_;
  const Mesh& mesh_;
  const MicroLoop loop_;
  std::vector<OpRule> rules_;                   // by instruction
  std::vector<std::vector<Sharding>> results_;  // by instruction and result: version 0
};

}  // namespace

absl::Status CheckPlan(const Plan& plan, const Module& module) {
  const std::string hash = HashText(ModuleHash(module));
  if (plan.module_hash != hash) {
    return FailedPrecondition(
        "the plan was made for module {}, this module is {}; plan again or use the module that "
        "the plan was made for",
        plan.module_hash, hash);
  }
  return WithContext(StageChecker(module, plan.stage).Check(), "stage 0");
}

}  // namespace minka
