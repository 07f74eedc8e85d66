// `--check`: a compiled plan against one device, with a search for the place where they differ.
#pragma once

#include "absl/status/statusor.h"
#include "minka/driver/oracle.h"
#include "minka/driver/parallelize.h"

namespace minka {

// Where results differ, the report says where that begins (first_difference.h), and it is ok where
// only decisions that lie within rounding of their threshold are made otherwise.
absl::StatusOr<OracleReport> CheckAgainstOneDevice(Parallelized& run, const StepInputs& inputs,
                                                   int num_steps);

}  // namespace minka
