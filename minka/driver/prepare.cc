#include "minka/driver/prepare.h"

#include <algorithm>
#include <vector>

#include "minka/base/status.h"
#include "minka/ir/builder.h"
#include "minka/ir/convolutions_as_dots.h"
#include "minka/ir/expand_batch_norm.h"
#include "minka/ir/micro_loop.h"
#include "minka/ir/simplify.h"
#include "minka/lowering/join_barriers.h"
#include "minka/lowering/rematerialize.h"

namespace minka {
namespace {

// A constant subgraph of at most so many instructions is cloned for each user.
constexpr int kMaxClonedInstructions = 12;

// Copies a module's entry computation instruction by instruction, so that a rewrite only says what
// it does differently.
class EntryRewriter {
 public:
  explicit EntryRewriter(const Module& source)
      : source_(source),
        entry_(source.entry_computation()),
        new_values_(entry_.num_instructions()) {
    out_.name = source.name;
    out_.entry = source.entry;
    out_.aliases = source.aliases;
    out_.frontend_attributes = source.frontend_attributes;
    out_.undecoded = source.undecoded;
    for (const Computation& computation : source.computations) {
      out_.computations.push_back(&computation == &entry_ ? Computation() : computation);
    }
    Computation& entry = out_.entry_computation();
    entry.name = entry_.name;
    entry.parameters = entry_.parameters;
    entry.results = entry_.results;
    entry.instructions.reserve(entry_.instructions.size());
  }

  const Computation& entry() const { return entry_; }

  // Appends a copy of the instruction with the operands given; returns its new id.
  InstructionId Append(const Instruction& instruction, std::vector<Value> operands) {
    Instruction copy = instruction;
    copy.operands = std::move(operands);
    auto& instructions = out_.entry_computation().instructions;
    instructions.push_back(std::move(copy));
    return static_cast<InstructionId>(instructions.size()) - 1;
  }

  void Map(Value old, Value now) {
    auto& results = new_values_[old.instruction];
    results.resize(std::max<size_t>(results.size(), old.result + 1));
    results[old.result] = now;
  }
  Value New(Value old) const { return new_values_[old.instruction][old.result]; }

  // The instruction as it was, its operands replaced by what they have become.
  void Copy(InstructionId id) {
    std::vector<Value> operands;
    for (const Value& operand : entry_.instructions[id].operands) operands.push_back(New(operand));
    const InstructionId copy = Append(entry_.instructions[id], std::move(operands));
    for (int result = 0; result < static_cast<int>(entry_.instructions[id].results.size());
         ++result) {
      Map({id, result}, {copy, result});
    }
  }

  Module Finish() && {
    Computation& entry = out_.entry_computation();
    for (InstructionId& parameter : entry.parameters) parameter = New({parameter, 0}).instruction;
    for (Value& result : entry.results) result = New(result);
    return std::move(out_);
  }

 private:
  const Module& source_;
  const Computation& entry_;
  Module out_;
  std::vector<std::vector<Value>> new_values_;
};

// A barrier of several values becomes one barrier per value, which the planner splits on its own;
// lowering joins them again.
Module SplitBarriers(const Module& module) {
  EntryRewriter rewriter(module);
  for (InstructionId id = 0; id < rewriter.entry().num_instructions(); ++id) {
    const Instruction& instruction = rewriter.entry().instructions[id];
    if (instruction.opcode != Opcode::kOptBarrier || instruction.operands.size() < 2) {
      rewriter.Copy(id);
      continue;
    }
    for (int lane = 0; lane < static_cast<int>(instruction.operands.size()); ++lane) {
      Instruction single = instruction;
      single.name = instruction.name + "." + std::to_string(lane);
      single.results = {instruction.results[lane]};
      single.frontend_attributes[kBarrierAttribute] = std::to_string(id);
      rewriter.Map({id, lane},
                   {rewriter.Append(single, {rewriter.New(instruction.operands[lane])}), 0});
    }
  }
  return std::move(rewriter).Finish();
}

// By instruction: how many instructions make its value from constants alone; 0 if it depends on
// anything else or on more than kMaxClonedInstructions.
std::vector<int> ConstantTreeSizes(const Computation& entry) {
  std::vector<int> sizes(entry.num_instructions(), 0);
  for (InstructionId id = 0; id < entry.num_instructions(); ++id) {
    const Instruction& instruction = entry.instructions[id];
    if (instruction.results.size() != 1 || !instruction.called.empty()) continue;
    const bool small_constant =
        instruction.opcode == Opcode::kConstant && instruction.shape().num_elements() <= 1;
    const bool makes = IsElementwise(instruction.opcode) ||
                       instruction.opcode == Opcode::kBroadcast ||
                       instruction.opcode == Opcode::kReshape;
    if (!small_constant && instruction.opcode != Opcode::kIota && !makes) continue;
    int size = 1;
    for (const Value& operand : instruction.operands) {
      const int part = sizes[operand.instruction];
      size = part == 0 ? kMaxClonedInstructions + 1 : size + part;
    }
    if (size <= kMaxClonedInstructions) sizes[id] = size;
  }
  return sizes;
}

class ConstantCloner {
 public:
  explicit ConstantCloner(const Module& module)
      : rewriter_(module), sizes_(ConstantTreeSizes(module.entry_computation())) {}

  Module Run() && {
    const Computation& entry = rewriter_.entry();
    for (InstructionId id = 0; id < entry.num_instructions(); ++id) {
      if (sizes_[id] == 0) CopyWithClones(id);
    }
    for (const Value& result : entry.results) {
      if (sizes_[result.instruction] > 0) rewriter_.Map(result, Clone(result.instruction));
    }
    return std::move(rewriter_).Finish();
  }

 private:
  void CopyWithClones(InstructionId id) {
    const Instruction& instruction = rewriter_.entry().instructions[id];
    for (const Value& operand : instruction.operands) {
      if (sizes_[operand.instruction] > 0) rewriter_.Map(operand, Clone(operand.instruction));
    }
    rewriter_.Copy(id);
  }

  Value Clone(InstructionId id) {
    const Instruction& instruction = rewriter_.entry().instructions[id];
    std::vector<Value> operands;
    for (const Value& operand : instruction.operands)
      operands.push_back(Clone(operand.instruction));
    Instruction copy = instruction;
    copy.name += ".c" + std::to_string(num_clones_++);
    return {rewriter_.Append(copy, std::move(operands)), 0};
  }

  EntryRewriter rewriter_;
  const std::vector<int> sizes_;
  int num_clones_ = 0;
};

}  // namespace

Preparation PreparationOf(const Plan& plan) {
  return {.micro_batches = {.num_micro_batches = plan.num_micro_batches,
                            .per_micro_batch = plan.per_micro_batch},
          .remat = plan.remat};
}

absl::StatusOr<Preparation> PreparationOfJson(std::string_view plan_json) {
  ASSIGN_OR_RETURN(PlannedPreparation planned, PlannedPreparationOf(plan_json));
  return Preparation{.micro_batches = {.num_micro_batches = planned.num_micro_batches,
                                       .per_micro_batch = planned.per_micro_batch},
                     .remat = std::move(planned.remat)};
}

namespace {

// What preparation writes says how a step was rewritten, and would be taken for what the rewriting
// of another means.
absl::Status CheckIsNotPrepared(const Module& module) {
  const auto refuse = [&](const std::string& where, const char* attribute) {
    return InvalidArgument(
        "{} of {} carries {}: the module has been prepared before; give the one it was made of",
        where, module.name, attribute);
  };
  if (module.frontend_attributes.contains(kNumMicroBatchesAttribute)) {
    return refuse("the module", kNumMicroBatchesAttribute);
  }
  for (const Computation& computation : module.computations) {
    for (const Instruction& instruction : computation.instructions) {
      for (const char* attribute : {kMicroAttribute, kBarrierAttribute}) {
        if (!instruction.frontend_attributes.contains(attribute)) continue;
        return refuse(fmt::format("'{}'", instruction.name), attribute);
      }
    }
  }
  return absl::OkStatus();
}

// Reshards of values with more dimensions are not found.
constexpr int kMostDimensions = 30;

absl::Status CheckRanks(const Module& module) {
  for (const Computation& computation : module.computations) {
    for (const Instruction& instruction : computation.instructions) {
      for (const Shape& shape : instruction.results) {
        if (shape.rank() <= kMostDimensions) continue;
        return InvalidArgument("'{}' of {} has {} dimensions; at most {} can be planned",
                               instruction.name, module.name, shape.rank(), kMostDimensions);
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Step> Simplify(const Step& step) {
  RETURN_IF_ERROR(CheckIsNotPrepared(step.module));
  Module module = InlineCalls(ConvolutionsAsDots(ExpandBatchNorm(ToModule(step))));
  module = SplitBarriers(ExchangeTransposedDots(module));
  module = EliminateCommonSubexpressions(EliminateDeadCode(module));
  return MakeStep(std::move(module), {});
}

absl::StatusOr<Step> PrepareSimplified(const Step& simplified, const Preparation& preparation) {
  // Before constants are cloned, so that copies get their own.
  ASSIGN_OR_RETURN(const Step step, Rematerialize(simplified, preparation.remat));
  Module module = EliminateDeadCode(ConstantCloner(ToModule(step)).Run());
  ASSIGN_OR_RETURN(const Step prepared, MakeStep(std::move(module), {}));
  ASSIGN_OR_RETURN(Step step_of_one, MakeMicroBatches(prepared, preparation.micro_batches));
  RETURN_IF_ERROR(CheckRanks(step_of_one.module));
  return step_of_one;
}

absl::StatusOr<Step> Prepare(const Step& step, const Preparation& preparation) {
  ASSIGN_OR_RETURN(const Step simplified, Simplify(step));
  return PrepareSimplified(simplified, preparation);
}

}  // namespace minka
