// Dots that free memory, and gathers that take it, are done where the program has them.
#pragma once

#include "minka/ir/module.h"

namespace minka {

// A weight's gradient reads an activation and a gradient for the last time, and nobody needs it
// before the end of the step. XLA's schedulers leave such a dot until then, and all that it reads
// lives as long. Behind this pass the next dot or convolution waits, at a barrier, for each dot and
// convolution that is not needed before and frees more bytes than its result has, and for each such
// reduction. A gather of state that several dots read, which the schedulers begin a step with,
// waits for what the first of them multiplies it with. What is computed stays the same.
//
// The barriers are lanes (join_barriers.h), to be joined afterwards.
Module ReleaseOperands(const Module& module);

}  // namespace minka
