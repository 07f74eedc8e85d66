// JAX's calls of LAPACK, which the devices do not have, as operations that their compiler has.
#pragma once

#include "minka/ir/module.h"

namespace minka {

// cholesky and triangular solve become HLO's operations, LU several of them; QR, products of
// reflectors and eigh the custom calls that XLA writes out itself (IsBatched in
// sharding/rule_builder.h). Where LAPACK reports that it failed, XLA's results are NaN. Other calls
// stay.
Module ReplaceLapackCalls(const Module& module);

}  // namespace minka
