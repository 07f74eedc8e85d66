// How each opcode passes gradients from its result to its operands.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "minka/frontend/tensor.h"

namespace minka {

// What a rule sees of one instruction, and where it leaves its answers. Operands and results are
// the forward values, recomputed on first use inside a rematerialised region: a rule asks only for
// what it needs.
struct Adjoint {
  Graph* graph = nullptr;
  Instruction instruction;
  std::vector<Tensor> result_gradients;  // invalid: none
  std::vector<bool> wanted;              // per operand
  std::vector<Tensor> gradients;         // per operand, the rule's answer; invalid: zero
  std::function<Tensor(Value)> primal;

  Tensor g() const { return result_gradients.front(); }
  Tensor x(int operand = 0) const { return primal(instruction.operands[operand]); }
  Tensor y() const { return primal(result); }
  Shape operand_shape(int operand) const { return operand_shapes[operand]; }
  // The opcode of the computation that the instruction calls if it is one binary operation.
  Opcode called_opcode() const;

  Value result;  // result 0
  std::vector<Shape> operand_shapes;
};

enum class GradientKind {
  kRule,
  kZero,     // the result does not depend smoothly on any operand
  kRefused,  // no rule
};

struct GradientRule {
  GradientKind kind = GradientKind::kRefused;
  absl::Status (*apply)(Adjoint&) = nullptr;  // kRule
  std::string_view reason;                    // kRefused: what to do instead
};

// The table.
GradientRule GradientRuleFor(Opcode opcode);

// Rules of operations that move or combine data.
absl::Status BroadcastGradient(Adjoint& a);
absl::Status ConcatenateGradient(Adjoint& a);
absl::Status DotGradient(Adjoint& a);
absl::Status DynamicSliceGradient(Adjoint& a);
absl::Status DynamicUpdateSliceGradient(Adjoint& a);
absl::Status GatherGradient(Adjoint& a);
absl::Status PadGradient(Adjoint& a);
absl::Status ReduceGradient(Adjoint& a);
absl::Status ScatterGradient(Adjoint& a);
absl::Status SliceGradient(Adjoint& a);
absl::Status TransposeGradient(Adjoint& a);

// Rules of windows and of batch normalisation.
absl::Status BatchNormInferenceGradient(Adjoint& a);
absl::Status BatchNormTrainingGradient(Adjoint& a);
absl::Status ConvolutionGradient(Adjoint& a);
absl::Status ReduceWindowGradient(Adjoint& a);

}  // namespace minka
