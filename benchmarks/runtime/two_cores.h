// What two workers with a core each and one device each are like, in two processes that run the
// same at the same time.
#pragma once

#include "absl/status/statusor.h"
#include "minka/cost/calibration.h"

namespace minka {

struct ProfiledCores {
  Calibration calibration;  // of one of them
  double reference_us = 0;  // ReferenceUsOfTwoCores, before and after
};

// No plugin may be loaded in this process, as for RunApart.
absl::StatusOr<ProfiledCores> ProfileTwoCores();

// How fast the cores are now: a warm step of a perceptron of fixed shapes. Shared machines change
// their speed by a third within minutes, so that a prediction from a profile and a time that was
// measured later are comparable only by what both say of the same step.
absl::StatusOr<double> ReferenceUsOfTwoCores();

}  // namespace minka
