// A step from what JAX lowers a function to.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "minka/ir/step.h"

namespace minka {

// `hlo`: a serialised HloModuleProto. `description`: what its parameters and results mean, as the
// attribute `minka.step` says it. Calls are inlined, so that marks inside of jitted functions are
// found; a result that is the value marked as loss is the loss; new state takes the memory of the
// old.
absl::StatusOr<Step> StepOfJax(std::string_view hlo, const std::string& description);

}  // namespace minka
