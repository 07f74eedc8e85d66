// From names and numbers, as the command line gives them, to an optimizer.
#pragma once

#include "absl/status/statusor.h"
#include "minka/frontend/gradient_scaling.h"
#include "minka/frontend/optimizer.h"
#include "minka/models/registry.h"

namespace minka {

// InvalidArgument lists the known names, or says which option does not fit. Precondition: the
// optimizer is given. Default learning rates: sgd and nesterov 0.01, adam, adamw and lamb 1e-3,
// lion 1e-4, adafactor 0.01.
absl::StatusOr<Optimizer> MakeOptimizer(const UpdateOptions& options);
absl::StatusOr<GradientScaling> MakeScaling(const UpdateOptions& options);

}  // namespace minka
