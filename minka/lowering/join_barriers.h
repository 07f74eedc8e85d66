// Barriers that order memory.
#pragma once

#include "minka/ir/module.h"

namespace minka {

// Frontend attribute of `opt-barrier` instructions: those with equal text are lanes of one barrier.
inline constexpr char kBarrierAttribute[] = "minka.barrier";

// Makes one barrier of all lanes again, so that nothing behind it can start before everything in
// front of it is there: a recomputation waits for the gradient that it is made for. (The planner
// takes barriers apart, because each value is split on its own.) Instructions keep their order
// otherwise. The module comes back as it was if lanes have come to depend on each other.
Module JoinBarriers(const Module& module);

}  // namespace minka
