// Takes stacked weights apart, so that each stage of a pipeline holds its layers' alone.
#pragma once

#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "minka/ir/step.h"
#include "minka/lowering/stack_rows.h"

namespace minka {

struct SplitStep {
  Step step;
  StepRows rows;
};

// Writes loops over layers out (unroll_loops.h) and gives each layer its row of what is stacked for
// them: state that they read row by row, and what the optimizer keeps beside it, as far as new
// state is made of old row by row, too; constants that they read. Row 2 of "w" is named "w[2]".
// What is made of stacked values element by element, or in each row for itself, is made row by row;
// what reads them as a whole, reads the rows put together. A step of which nothing is split stays
// as it is, loops and all.
absl::StatusOr<SplitStep> SplitStacks(const Step& step);
// The same for a step that reads another one's state: splits the parameters of these names, and no
// others.
absl::StatusOr<SplitStep> SplitStacks(const Step& step, const std::set<std::string>& names);
// For one that makes it: splits these results alone.
absl::StatusOr<SplitStep> SplitResults(const Step& step, const std::set<int>& results);

}  // namespace minka
