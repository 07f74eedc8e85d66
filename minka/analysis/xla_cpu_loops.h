// What XLA's CPU compiler moves into and out of loops.
#pragma once

#include "minka/ir/module.h"

namespace minka {

// What a loop computes of values that never change in it is computed in front of it and carried
// (WhileLoopInvariantCodeMotion), broadcasts, slices and transposes by themselves excepted; carried
// constants are made where they are read (WhileLoopConstantSinking); what nobody reads is not
// carried (WhileLoopSimplifier). Loops' new bodies and conditions come behind the other
// computations.
Module MoveLoopInvariants(const Module& module);

}  // namespace minka
