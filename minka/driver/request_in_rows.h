// What is asked of a pipeline by the names of stacked parameters, of which stages hold rows
// (lowering/split_stacks.h).
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "minka/driver/plan_step.h"
#include "minka/ir/step.h"
#include "minka/lowering/stack_rows.h"

namespace minka {

// The request on the step that has rows: pins, those of stages too, and layer starts that name
// stacked parameters of the given one name their rows. InvalidArgument for a pin that splits what
// counts the rows.
absl::StatusOr<PlanRequest> RequestInRows(PlanRequest request, const Step& given,
                                          const StepRows& rows);

// A glob on names of parameters, as one that matches their rows where it matches nothing but
// stacked ones.
std::string GlobInRows(const std::string& glob, const Step& given, const StepRows& rows);

}  // namespace minka
