// The runs of one device by which the noise of a step is measured.
#pragma once

#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/oracle/oracle.h"

namespace minka {

// What one device computes from inputs, by result; `reference` from widened ones. The single run
// comes first.
struct OneDeviceRuns {
  using Run = std::function<absl::StatusOr<std::vector<Literal>>(const StepInputs& inputs)>;
  Run single, nudged, reference;
};

absl::StatusOr<OneDeviceResults> DrawNoise(const Step& step, const StepInputs& inputs,
                                           const OneDeviceRuns& runs);

}  // namespace minka
