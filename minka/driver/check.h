// `--check`: a compiled plan against one device, with a search for the place where they differ.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "minka/driver/parallelize.h"
#include "minka/oracle/oracle.h"

namespace minka {

// The step that one device runs to say what a plan must compute: `step` itself, or, where the plan
// takes sums over the batch over each micro-batch instead, the step rewritten so, loop and all.
absl::StatusOr<Step> OneDeviceStep(const Step& step, const MicroBatchOptions& micro_batches);

// Where results differ, the report says where that begins (first_difference.h), and it is ok where
// only decisions that lie within rounding of their threshold are made otherwise. Of a pipeline it
// only says that results differ.
absl::StatusOr<OracleReport> CheckAgainstOneDevice(Parallelized& run, const StepInputs& inputs,
                                                   int num_steps);

// A table of the outputs that differ most from one device's.
std::string DescribeCheck(const OracleReport& report);

}  // namespace minka
