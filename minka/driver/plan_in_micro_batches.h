// Plans a step on one mesh in as many micro-batches as are fastest.
#pragma once

#include "minka/driver/plan_step.h"

namespace minka {

// What the layers by themselves say of each number says which are planned, as in PlanPipeline;
// where they can say nothing (MayFitByLayers), there is one micro-batch. All that is planned shares
// the limits of time and work. `stages`: as FitByLayers has them. Refusals are of the largest
// number that was planned.
SearchResult<PlanResult> PlanInMicroBatches(const PlanRequest& request, PreparedSteps& steps,
                                            StagePlanner& stages);

}  // namespace minka
