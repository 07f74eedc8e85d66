// The training steps that benchmarks/prediction/make_modules.py exports from flax models.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "minka/ir/step.h"

namespace minka {

// Runs make_modules.py by `python`, in the repository's root, unless `folder` has what it writes
// now. FailedPrecondition says how to install what it needs.
absl::Status MakeFlaxModules(const std::string& python, const std::string& folder);

// In make_modules.py's order.
absl::StatusOr<std::vector<std::string>> FlaxModuleNames(const std::string& folder);
absl::StatusOr<Step> LoadFlaxModule(const std::string& name, const std::string& folder);

}  // namespace minka
