// Takes stacked weights apart, so that each stage of a pipeline holds its layers' alone.
#pragma once

#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/ir/literal.h"
#include "minka/ir/step.h"

namespace minka {

// What parameters and results of a step have become, by number: one of the new step, or several,
// which are its rows, [1, ...] each, one behind the other along dimension 0.
struct StepRows {
  std::vector<std::vector<int>> parameters, results;
};

struct SplitStep {
  Step step;
  StepRows rows;
};

// Writes loops over layers out (unroll_loops.h) and gives each layer its row of what is stacked for
// them: state that they read row by row, and what the optimizer keeps beside it, as far as new
// state is made of old row by row, too; constants that they read. Row 2 of "w" is named "w[2]".
// What is made of stacked values element by element, or in each row for itself, is made row by row;
// what reads them as a whole, reads the rows put together. Another step stays as it is but for its
// loops.
absl::StatusOr<SplitStep> SplitStacks(const Step& step);
// The same for a step that reads another one's state: splits the parameters of these names, and no
// others.
absl::StatusOr<SplitStep> SplitStacks(const Step& step, const std::set<std::string>& names);
// For one that makes it: splits these results alone.
absl::StatusOr<SplitStep> SplitResults(const Step& step, const std::set<int>& results);

// One that nothing was split of.
StepRows WholeRows(const Step& step);

// The rows of a value, [1, ...] each. Precondition: it has a dimension.
std::vector<Literal> RowsOf(const Literal& whole);
// The other way. Precondition: at least one, of equal shapes.
Literal Stacked(std::span<const Literal> rows);

}  // namespace minka
