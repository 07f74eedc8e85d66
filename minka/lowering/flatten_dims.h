// Reductions and dots in the form that XLA's loops run through fast.
#pragma once

#include "minka/ir/module.h"
#include "minka/lowering/departures.h"

namespace minka {

// A reduction of several neighbouring dimensions in front of the last one, such as a bias's
// gradient [examples, positions, features] -> [features], reads the same elements as one dimension:
// XLA's CPU compiler vectorises a loop over one reduced dimension, and not over several, which is
// five times slower. The last dimension is cut in two for it, because XLA takes a reshape back that
// does nothing but merge what is reduced.
//
// A dot whose operands are matrices but for the number of their dimensions, such as a weight's
// gradient, which contracts examples and positions, reads them as matrices: XLA would transpose
// what contracts several dimensions, or contracts them first, in front of the dot.
//
// A product of few rows with a matrix that contracts its last dimension, such as a recurrent
// layer's gradient, has its operands exchanged (IsFasterExchanged). A barrier behind it keeps XLA
// from taking that back.
//
// What is computed stays the same. Each is a departure of its own (kFlatReductions, kFlatDots,
// kExchangedDots), done where `departures` has it.
Module FlattenDims(Module module, Departures departures);

}  // namespace minka
