// Gradients of weights are computed as soon as they can be.
#pragma once

#include "minka/ir/module.h"

namespace minka {

// Modules come in the order in which some walk from their results met their operations: of JAX's,
// weight gradients stand behind the whole backward pass, in the order of the weights' names, and
// every activation and its gradient lives until then. Here dots, convolutions and reductions that
// free memory (last_reads.h), with the light operations that they alone need, stand right behind
// what they read where another dot, convolution, loop or branch came in between; nothing stands
// later than before. What is computed stays the same.
Module OrderForMemory(Module module);

}  // namespace minka
