// `--check`: a compiled plan against one device, with a search for the place where they differ.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "minka/driver/parallelize.h"
#include "minka/oracle/kept_values.h"
#include "minka/oracle/oracle.h"

namespace minka {

// What one device makes of a step whose plan has these micro-batches. Where each of them stands for
// the whole batch, its slices are run one by one (oracle/slices.h); what these leave out (running
// statistics), and steps with random bits, are run as rewritten for the plan, loop and all.
absl::StatusOr<OneDeviceResults> RunOnOneDevice(const Step& step,
                                                const MicroBatchOptions& micro_batches,
                                                const pjrt::Client& client,
                                                const StepInputs& inputs, int num_steps);

// The pipeline must live as long.
SearchedPlan SearchedPlanOf(const PlannedPipeline& pipeline);

// `inputs`: of the given step, which the one device runs. Where results differ, the report says
// where that begins (first_difference.h), and it is ok where only decisions that lie within
// rounding of their threshold are made otherwise.
absl::StatusOr<OracleReport> CheckAgainstOneDevice(Parallelized& run, const StepInputs& inputs,
                                                   int num_steps);

// A table of the outputs that differ most from one device's.
std::string DescribeCheck(const OracleReport& report);

}  // namespace minka
