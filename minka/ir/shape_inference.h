// The result shapes that an instruction must have, from its operands and attributes.
#pragma once

#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/ir/module.h"

namespace minka {

// Result shapes of `instruction` given its operands' shapes. Where the operands do not determine
// the result (parameter, reshape, broadcast, iota, convert, constant, rng, custom-call, unknown
// opcodes) the declared results are checked for consistency and returned. The error says what does
// not fit ("dot: contracting dimension 1 of lhs has size 8, 0 of rhs 9").
absl::StatusOr<std::vector<Shape>> InferShapes(const Module& module, const Instruction& instruction,
                                               std::span<const Shape> operands);

}  // namespace minka
