// Which operations of a step compute the loss, which the gradients, and which apply them.
//
// With gradient marks: what depends on a gradient and leads to none is `apply`. Of the rest,
// ancestors of the loss are `forward`, ancestors of gradients `backward`. What reaches neither
// (metrics, running statistics, step counters) has the latest phase among its operands that depend
// on a batch, key or activation; what depends on state and constants alone is `apply` if only apply
// reads it.
//
// Without gradient marks: `apply` is what leads to new state only, through elementwise operations,
// broadcasts, reductions to a scalar, reshapes of these and constants: the optimiser behind the
// last dot, reduction or data movement of each gradient. So are other reductions of what it reads
// (Adafactor's means of rows and columns). What else leads to new state, but not to the loss, is
// `backward`.
//
// Without a loss (mark or result), `forward` stands for forward and backward.
#pragma once

#include <vector>

#include "minka/ir/step.h"

namespace minka {

// By instruction of the entry computation.
std::vector<Phase> ClassifyPhases(const Step& step);

}  // namespace minka
