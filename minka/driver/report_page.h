// What a report page (report/page.h) says of a plan.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/cluster/cluster.h"
#include "minka/driver/pipeline.h"
#include "minka/ir/step.h"
#include "minka/plan/plan.h"
#include "minka/report/chrome_trace.h"

namespace minka {

// One mesh: the step's operations and collectives one behind the other, as they are predicted.
// `cluster`: the one that the plan is for.
std::string PageOfPlan(const Step& prepared, const Plan& plan, const Cluster& cluster);

// `hosts`: what the plan is for, by kind. `measured`: a traced step (TraceOf), by mesh; empty:
// none. InvalidArgument where it has more or fewer meshes than the plan.
absl::StatusOr<std::string> PageOfPipeline(const PlannedPipeline& planned,
                                           const std::vector<Cluster>& hosts,
                                           std::vector<std::vector<TracedEvent>> measured = {});

}  // namespace minka
