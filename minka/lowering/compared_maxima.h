// Maxima and minima in a form that XLA's loops run through fast.
#pragma once

#include "minka/ir/module.h"

namespace minka {

// Reductions of floats to their maximum or minimum compare instead:
//   x > y or x is not a number ? x : y
// which hands on what is not a number as the instructions do; of zeros of both signs it takes
// either. XLA:CPU vectorises this; where the
// instructions hand it on (xla_cpu_enable_fast_min_max is off), it reduces by them element by
// element, which takes ten times as long (docs/design/0004).
Module ComparedMaxima(Module module);

}  // namespace minka
