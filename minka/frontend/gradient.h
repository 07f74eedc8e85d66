// Reverse-mode differentiation: appends to a graph the instructions that compute the gradient of a
// scalar. It works on instructions alone, with one rule per opcode (gradient_rules.h); nothing is
// known of layers or models.
//
// The backward instructions come in reverse order of the forward ones. Integer and predicate paths
// have no gradient, neither do operands recorded with StopGradient. Where a derivative does not
// exist: maximum and minimum give ties to the second operand, reductions by maximum and minimum
// share equally among ties, abs, sign and rounding give 0.
#pragma once

#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/frontend/tensor.h"

namespace minka {

// Forward instructions [begin, end) whose results are not kept for the backward pass but computed
// again there, from the values that enter the region. An opt-barrier over these values and over the
// incoming gradients stands in front of the recomputation: it keeps common-subexpression
// elimination from undoing it and the scheduler from starting it early. Values that depend on
// nothing but differentiated inputs and constants are kept.
struct RematRegion {
  InstructionId begin = 0;
  InstructionId end = 0;
};

struct GradientOptions {
  std::vector<RematRegion> remat_regions;  // disjoint, ascending
};

struct GradientResult {
  std::vector<Tensor> gradients;  // of the inputs' shapes and types; zeros without a path
  // Per region the first result of its barrier; invalid where no gradient passed.
  std::vector<Value> recomputations;
};

// Gradients of the scalar `loss` with respect to `inputs`. Unimplemented names an opcode on the way
// that has no rule.
absl::StatusOr<GradientResult> Gradients(Graph& graph, Tensor loss, std::span<const Tensor> inputs,
                                         const GradientOptions& options = {});

}  // namespace minka
