// What is written anew for the compiler of local programs, and for nothing else.
#pragma once

#include "minka/ir/module.h"
#include "minka/lowering/departures.h"

namespace minka {

// Everything that the platform's compiler has no fast code for, in forms for which it has:
// convolutions (convolution_forms.h), maxima (compared_maxima.h), then reductions and dots
// (flatten_dims.h). The last step of the lowering; `minka profile` measures programs written so.
Module CompiledForms(Module module, Departures departures);

}  // namespace minka
