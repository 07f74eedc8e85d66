// The forms that XLA's CPU compiler gives operations before it fuses and orders them, as far as
// they take memory.
#pragma once

#include "minka/ir/module.h"

namespace minka {

// The module as its buffers see it; it need not compute the same.
//   - dots read [batch, free, contracted] and [batch, contracted, free]; what lies otherwise is
//     transposed, unless it is a matrix whose rows and columns change places
//   - an all-gather puts its parts one behind the other: the dimension comes first and is moved
//     afterwards; so with reduce-scatters and all-to-alls
//   - whatever works on bf16 or f16 does so in f32, so that such values are only where they go from
//     one computation to another
// Equal transposes and conversions of one value are one.
Module CpuForms(const Module& module);

}  // namespace minka
