#include "minka/driver/prepare.h"

#include <algorithm>
#include <utility>
#include <variant>
#include <vector>

#include "minka/analysis/structure.h"
#include "minka/base/status.h"
#include "minka/ir/builder.h"
#include "minka/ir/convolutions_as_dots.h"
#include "minka/ir/expand_batch_norm.h"
#include "minka/ir/micro_loop.h"
#include "minka/ir/rewriter.h"
#include "minka/ir/simplify.h"
#include "minka/lowering/join_barriers.h"
#include "minka/lowering/order_for_memory.h"
#include "minka/lowering/rematerialize.h"
#include "minka/lowering/unroll_loops.h"

namespace minka {
namespace {

// A constant subgraph of at most so many instructions is cloned for each user.
constexpr int kMaxClonedInstructions = 12;

// A barrier of several values becomes one barrier per value, which the planner splits on its own;
// lowering joins them again.
Module SplitBarriers(Module module) {
  Computation source = std::move(module.entry_computation());
  Rewriter rewriter(source);
  for (InstructionId id = 0; id < source.num_instructions(); ++id) {
    Instruction& instruction = source.instructions[id];
    if (instruction.opcode != Opcode::kOptBarrier || instruction.operands.size() < 2) {
      rewriter.Move(id, std::move(instruction));
      continue;
    }
    for (int lane = 0; lane < static_cast<int>(instruction.operands.size()); ++lane) {
      Instruction single = instruction;
      single.name = instruction.name + "." + std::to_string(lane);
      single.operands = {rewriter.Now(instruction.operands[lane])};
      single.results = {instruction.results[lane]};
      single.frontend_attributes[kBarrierAttribute] = std::to_string(id);
      rewriter.Map({id, lane}, rewriter.AppendOne(std::move(single)));
    }
  }
  module.entry_computation() = std::move(rewriter).Finish();
  return module;
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
  explicit ConstantCloner(const Computation& entry)
      : rewriter_(entry), sizes_(ConstantTreeSizes(entry)) {}

  Computation Run() && {
    const Computation& entry = rewriter_.source();
    for (InstructionId id = 0; id < entry.num_instructions(); ++id) {
      if (sizes_[id] == 0) CopyWithClones(id);
    }
    for (const Value& result : entry.results) {
      const InstructionId id = result.instruction;
      if (sizes_[id] > 0) rewriter_.Map(result, Clone(id, entry.instructions[id].part));
    }
    return std::move(rewriter_).Finish();
  }

 private:
  // Each operand has a clone of its own: a loop may carry the same zeros in two shardings.
  void CopyWithClones(InstructionId id) {
    Instruction copy = rewriter_.source().instructions[id];
    for (Value& operand : copy.operands) {
      operand = sizes_[operand.instruction] == 0 ? rewriter_.Now(operand)
                                                 : Clone(operand.instruction, copy.part);
    }
    rewriter_.Map(id, rewriter_.Append(std::move(copy)));
  }

  // Stands where its reader does.
  Value Clone(InstructionId id, StepPart part) {
    Instruction copy = rewriter_.source().instructions[id];
    copy.part = part;
    for (Value& operand : copy.operands) operand = Clone(operand.instruction, part);
    copy.name += ".c" + std::to_string(num_clones_++);
    return rewriter_.AppendOne(std::move(copy));
  }

  Rewriter rewriter_;
  const std::vector<int> sizes_;
  int num_clones_ = 0;
};

}  // namespace

Preparation PreparationOf(const Plan& plan) {
  return {.micro_batches = {.num_micro_batches = plan.num_micro_batches,
                            .per_micro_batch = plan.per_micro_batch,
                            .narrow_sums = plan.narrow_sums},
          .remat = plan.remat};
}

absl::StatusOr<Preparation> PreparationOfJson(std::string_view plan_json) {
  ASSIGN_OR_RETURN(PlannedPreparation planned, PlannedPreparationOf(plan_json));
  return Preparation{.micro_batches = {.num_micro_batches = planned.num_micro_batches,
                                       .per_micro_batch = planned.per_micro_batch,
                                       .narrow_sums = planned.narrow_sums},
                     .remat = std::move(planned.remat),
                     .layers = std::move(planned.layers),
                     .unrolls_loops = !planned.stage_of_layer.empty()};
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
  if (module.num_micro_batches > 1) {
    return refuse("the module", kNumMicroBatchesAttribute);
  }
  for (const Computation& computation : module.computations) {
    for (const Instruction& instruction : computation.instructions) {
      if (!instruction.frontend_attributes.contains(kBarrierAttribute)) continue;
      return refuse(fmt::format("'{}'", instruction.name), kBarrierAttribute);
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

absl::StatusOr<Step> Simplify(const Step& step, const LayerChoice& layers, bool unrolls_loops) {
  const auto* const automatic = std::get_if<AutoLayers>(&layers);
  if (automatic && automatic->num_layers < 1) {
    return InvalidArgument("{} layers are asked for", automatic->num_layers);
  }
  RETURN_IF_ERROR(CheckIsNotPrepared(step.module));
  Module module = InlineCalls(ConvolutionsAsDots(ExpandBatchNorm(ToModule(step))));
  if (unrolls_loops) {
    module = UnrollLayerLoops({.module = std::move(module), .parameters = step.parameters});
  }
  module = SplitBarriers(ExchangeTransposedDots(std::move(module)));
  module = OrderForMemory(EliminateCommonSubexpressions(EliminateDeadCode(std::move(module))));
  ASSIGN_OR_RETURN(Step simplified, MakeStep(std::move(module), {}));
  return WithStructure(std::move(simplified), layers);
}

namespace {

// State that is updated, and a result that might be the loss.
bool LooksLikeTraining(const Step& simplified) {
  const Computation& entry = simplified.module.entry_computation();
  const bool has_update =
      std::ranges::any_of(entry.instructions, [](const Instruction& instruction) {
        return instruction.part.phase == Phase::kApply && !instruction.operands.empty();
      });
  for (size_t i = 0; i < simplified.results.size(); ++i) {
    const Shape& shape = entry.shape(entry.results[i]);
    const bool is_scalar = IsFloat(shape.type) && shape.rank() == 0;
    if (has_update && is_scalar && simplified.results[i].role != ResultRole::kState) return true;
  }
  return false;
}

}  // namespace

absl::Status CheckLayers(const Step& simplified, const LayerChoice& layers) {
  if (std::holds_alternative<MarkedLayers>(layers)) return absl::OkStatus();
  const auto* const automatic = std::get_if<AutoLayers>(&layers);
  const int num_layers = automatic ? automatic->num_layers : 1;
  const std::string& name = simplified.module.name;
  if (*simplified.num_layers == 0) {
    return InvalidArgument(
        "{} has no operations to make layers of: none depends on a batch and on weights "
        "(--batch-input names the inputs that are a batch)",
        name);
  }
  if (*simplified.num_layers < num_layers) {
    return InvalidArgument(
        "{} layers are asked for, but the forward pass of {} has {} operations, and each layer one "
        "at least",
        num_layers, name, *simplified.num_layers);
  }
  if (NamesLoss(simplified) || !LooksLikeTraining(simplified)) return absl::OkStatus();
  return InvalidArgument(
      "{} updates its state, but does not say by which loss, so there is no telling forward from "
      "backward pass; say which result it is (--loss RESULT)",
      name);
}

namespace {

// A loss that nobody asks for has said what the forward pass is.
void ForgetUnreadLosses(Step& step) {
  const UseTable uses(step.module.entry_computation());
  std::erase_if(step.marks, [&](const Mark& mark) {
    return mark.kind == MarkKind::kLoss && !uses.is_result(mark.value) &&
           uses.uses(mark.value).empty();
  });
}

}  // namespace

absl::StatusOr<Step> PrepareWholeBatch(const Step& simplified, const RematChoice& remat) {
  // Before constants are cloned, so that copies get their own.
  ASSIGN_OR_RETURN(Step step, Rematerialize(simplified, remat));
  ForgetUnreadLosses(step);
  Module module = ToModule(step);
  const Computation entry = std::move(module.entry_computation());
  module.entry_computation() = ConstantCloner(entry).Run();
  module = EliminateDeadCode(std::move(module));
  ASSIGN_OR_RETURN(Step prepared, MakeStep(std::move(module), {}));
  prepared.num_layers = step.num_layers;
  return prepared;
}

absl::StatusOr<Step> PrepareMicroBatches(const Step& of_whole_batch,
                                         const MicroBatchOptions& micro_batches) {
  ASSIGN_OR_RETURN(MicroBatchedStep of_one, MakeMicroBatches(of_whole_batch, micro_batches));
  RETURN_IF_ERROR(CheckRanks(of_one.step.module));
  return std::move(of_one.step);
}

absl::StatusOr<Step> Prepare(const Step& step, const Preparation& preparation) {
  ASSIGN_OR_RETURN(const Step simplified,
                   Simplify(step, preparation.layers, preparation.unrolls_loops));
  RETURN_IF_ERROR(CheckLayers(simplified, preparation.layers));
  ASSIGN_OR_RETURN(const Step prepared, PrepareWholeBatch(simplified, preparation.remat));
  return PrepareMicroBatches(prepared, preparation.micro_batches);
}

}  // namespace minka
