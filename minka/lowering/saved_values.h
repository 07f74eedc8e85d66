// What a stage keeps of a micro-batch between its forward and its backward program.
#pragma once

#include <span>

#include "minka/lowering/stages.h"

namespace minka {

// Backward programs read as few bytes of what the forward program made as can be, and compute again
// what takes little: element by element, without transcendental functions, integer arithmetic
// (which makes random bits) and sums. What is read anyway stays as it is; the numbers of `received`
// parameters say which ones are kept for a micro-batch, as others are there throughout.
//
// A minimum cut between what must be kept and what reads it (as for activations that XLA would keep
// within one program anyway: PyTorch's min-cut partitioner, dev-discuss.pytorch.org/t/467).
StageStep SaveLess(StageStep stage, std::span<const int> received);

}  // namespace minka
