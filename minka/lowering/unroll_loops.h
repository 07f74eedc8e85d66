// Writes out the loops over a model's layers, so that they can be parted into stages.
#pragma once

#include "minka/ir/step.h"

namespace minka {

// Loops of the entry computation whose number of trips is known become their trips one behind the
// other where each trip reads its slice of stacked weights, or of what such a loop has stacked for
// it: `lax.scan` over layers, and the loop of its gradient. What one trip stacks and another one
// reads passes between them as it is, and each copy of a layer boundary gets a number of its own,
// in the order in which they stand. Loops over time, over micro-batches and inside of loops stay.
//
// Precondition: calls inlined, marks as barriers (ToModule). Returns the module alone.
Module UnrollLayerLoops(const Step& step);

}  // namespace minka
