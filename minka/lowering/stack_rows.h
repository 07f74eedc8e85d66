// Arrays that a step has as their rows: which of its parameters and results these are, and their
// values.
#pragma once

#include <span>
#include <vector>

#include "minka/ir/literal.h"
#include "minka/ir/step.h"

namespace minka {

// What parameters and results of a given step are in one that has rows of them, by number: one, or
// several, which are its rows, [1, ...] each, one behind the other along dimension 0. Numbers
// ascend.
using RowNumbers = std::vector<std::vector<int>>;
struct StepRows {
  RowNumbers parameters, results;
};

// One that nothing was split of.
StepRows WholeRows(const Step& step);

// The rows of a value, [1, ...] each. Precondition: it has a dimension.
std::vector<Literal> RowsOf(const Literal& whole);
// The other way. Precondition: at least one, of equal shapes.
Literal Stacked(std::span<const Literal> rows);

// Values of the given step's parameters, or results, as those of the step that has rows; those
// without bytes have no rows with bytes either.
std::vector<Literal> InRows(const std::vector<Literal>& values, const RowNumbers& rows);
// The other way. Precondition: all have bytes.
std::vector<Literal> PutTogether(const std::vector<Literal>& values, const RowNumbers& rows);

}  // namespace minka
