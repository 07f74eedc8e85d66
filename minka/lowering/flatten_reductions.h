// Reductions in the form that XLA's loops run through fast.
#pragma once

#include "minka/ir/module.h"

namespace minka {

// A reduction of several neighbouring dimensions in front of the last one, such as a bias's
// gradient [examples, positions, features] -> [features], reads the same elements as one dimension:
// XLA's CPU compiler vectorises a loop over one reduced dimension, and not over several, which is
// five times slower. The last dimension is cut in two for it, because XLA takes a reshape back that
// does nothing but merge what is reduced. What is computed stays the same.
Module FlattenReductions(const Module& module);

}  // namespace minka
