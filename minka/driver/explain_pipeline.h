// Why a pipeline is as it is: where the time and the memory of its steps go, and what the pipelines
// next to it would take.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "minka/driver/explain.h"
#include "minka/driver/pipeline.h"
#include "minka/driver/plan_step.h"
#include "minka/ir/step.h"

namespace minka {

struct ExplainedPipeline {
  const Step& step;  // as it was given to be planned
  const PlannedPipeline& planned;
  std::string name;  // of the plan, for messages
};

// Plans the step again as `request` says. What it asks of the pipeline holds where that is not what
// is tried: micro-batches, schedule, pins of the stages, the memory limit. '*' stands beside what
// the plan has.
//
//   the whole     per mesh its tasks, waits and memory; what a step would take without transfers,
//                 uneven stages, shared cores, waits, the limit; other partings of the devices and
//                 of the layers, other schedules
//   a stage       its programs and what collectives take of them; other shapes of its mesh, layers
//                 moved over its borders
//   a tensor,     each sharding that it could have on its stage (the first that has it unless one
//   an operation  is named), all stages as they are
//
// What request and question say of stacked parameters they say of their rows (request_in_rows.h).
// NotFound: nothing has the name. Cancelled where the request is.
absl::StatusOr<std::string> ExplainPipeline(const ExplainedPipeline& explained,
                                            const PlanRequest& request,
                                            const ExplainQuestion& question,
                                            const OnExplained& on_explained);

}  // namespace minka
