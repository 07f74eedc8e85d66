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

// Gradients of the scalar `loss` with respect to `inputs`, of their shapes and types; zeros where
// there is no path. Unimplemented names an opcode on the way that has no rule.
absl::StatusOr<std::vector<Tensor>> Gradients(Graph& graph, Tensor loss,
                                              std::span<const Tensor> inputs);

}  // namespace minka
