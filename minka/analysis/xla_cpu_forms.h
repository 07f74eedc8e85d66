// The forms that XLA's CPU compiler gives operations before it fuses and orders them, as far as
// they take memory.
#pragma once

#include "minka/ir/module.h"

namespace minka {

// The module as its buffers see it; it need not compute the same.
//   - dots read [batch, free, contracted] and [batch, contracted, free]; what lies otherwise is
//     transposed, unless it is a matrix whose rows and columns change places
//   - an all-gather puts its parts one behind the other: the dimension comes first and is moved
//     afterwards; so with reduce-scatters
//   - whatever works on bf16 or f16 does so in f32, so that such values are only where they go from
//     one computation to another
//   - a pad is written to memory before it is read; a concatenation of more than eight parts and
//     these parts are, too
//   - the gradient of a pooling by maxima numbers all elements, finds the largest, and scatters
//   - an all-to-all cuts its operand into parts and puts the results together
// Equal transposes and conversions of one value are one.
Module CpuForms(const Module& module);

}  // namespace minka
