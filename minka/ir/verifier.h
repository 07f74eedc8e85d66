// Checks a module once at the border; everything behind it trusts modules.
#pragma once

#include "absl/status/status.h"
#include "minka/ir/module.h"

namespace minka {

// Ids in range and in order, parameters numbered without gaps, unique names, called computations of
// the right signature and without cycles, shapes as inferred, aliases between equal shapes. The
// message names computation, instruction and why.
absl::Status Verify(const Module& module);

}  // namespace minka
