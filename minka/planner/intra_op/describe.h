// What people read of a plan: parameters with their labels, totals of collectives.
#pragma once

#include <vector>

#include "minka/ir/step.h"
#include "minka/plan/plan.h"
#include "minka/planner/intra_op/intra_op.h"

namespace minka {

// Per parameter its sharding and per mesh axis a label, from how the operations that read it are
// split:
//
//   data      they split a factor that does not index the parameter (batch), which is whole there
//   operator  they split a factor that indexes the parameter
//   zero      it is stored split and gathered before use
//   idle      none of these
//
// Conversions, reshapes and the like are looked through to the first operation that does work with
// the value. Batch inputs are labelled as activations are, by their own dimensions: `data` splits
// the one that counts examples, `operator` another one, where the input is stored or in front of
// those that read it.
std::vector<ParameterPlan> DescribeParameters(const Step& step, const StagePlan& stage);

// Fills what follows from the plan's stages: parameters, collectives, bytes, notes on operations
// without a rule.
void Describe(const Step& step, Plan& plan);

// The plan of a step on one mesh, described.
Plan PlanOf(const Step& step, Method method, const CostModel& cost, IntraOpResult result);

}  // namespace minka
