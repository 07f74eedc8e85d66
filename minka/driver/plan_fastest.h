// Plans a step on one mesh and as pipelines, and takes what is faster.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "minka/driver/pipeline.h"
#include "minka/driver/plan_step.h"
#include "minka/ir/step.h"

namespace minka {

// What a step is planned as.
using Planned = std::variant<PlanResult, PlannedPipeline>;

double StepTimeUs(const Planned& planned);
int64_t PeakMemoryBytes(const Planned& planned);

// A way to plan a step.
struct Attempt {
  std::string name;
  PlanRequest request;  // with pipeline options: as a pipeline
  absl::StatusOr<Planned> planned = absl::UnknownError("not planned");
};

// First what is likely to be the fastest: across hosts pipelines, on a single host one mesh. The
// others are not searched for where they are estimated to be slower than what is planned, or too
// large while there is another way (PlanRequest::faster_than_us). What has no plan says why; where
// one mesh is asked for what cannot be (InvalidArgument), what comes behind it is not planned.
void PlanAll(const Step& step, std::span<Attempt> attempts);

// Null: none has a plan.
Attempt* FastestOf(std::span<Attempt> attempts);

}  // namespace minka
