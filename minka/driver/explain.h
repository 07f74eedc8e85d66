// What a parameter's sharding is worth: the best plans with every other one.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "minka/driver/plan_step.h"
#include "minka/ir/step.h"
#include "minka/plan/plan.h"

namespace minka {

// The number of the first parameter whose name matches, which stands for those of equal layers.
// NotFound: none does. `whose`: the plan's, for the message.
absl::StatusOr<int> FindParameter(const Plan& plan, std::string_view whose,
                                  const std::string& glob);

// Plans `step` again on the plan's mesh with each sharding that the parameter could have, other
// pins of the request kept, and returns a table of what comes out; '*' stands beside the one that
// the plan has. `on_plan` is told before each. Cancelled where the request is.
absl::StatusOr<std::string> ExplainParameter(
    const Step& step, PlanRequest request, const Plan& plan, int parameter,
    const std::function<void(const std::string& pin)>& on_plan);

}  // namespace minka
