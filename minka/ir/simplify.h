// Rewrites that change no result. opt-barrier keeps its operands apart
// from equal values outside, so that rematerialised operations stay.
#pragma once

#include <vector>

#include "minka/ir/module.h"

namespace minka {

// Replaces every call of the entry computation (also inside what it calls) by the callee's
// instructions.
Module InlineCalls(Module module);
// Drops instructions that reach no result and have no side effect, and computations that nothing
// calls. Parameters stay, and so does a marked loss: gradients of it may be all that a step
// returns, while it says what their forward pass is.
Module EliminateDeadCode(Module module);
// Merges instructions of the entry computation with equal opcode, operands and attributes.
Module EliminateCommonSubexpressions(Module module);
// Writes a transposition that only changes which operand of a dot comes first, and is its only
// reader, as the dot of the operands exchanged. Gradients of weights come so from JAX: compilers
// else transpose again in whatever reads them behind a collective, in strided loops.
Module ExchangeTransposedDots(Module module);

}  // namespace minka
