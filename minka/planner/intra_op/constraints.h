// Pins and limits one by one: which of them leave a search without a plan.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "minka/planner/intra_op/intra_op.h"

namespace minka {

struct Constraint {
  std::string flag;       // as on the command line: "--pin x=[a,-]", "--no-all-gather"
  SearchOptions without;  // the others
};

// Pins and the limits that forbid something, in the order of SearchOptions.
std::vector<Constraint> ConstraintsOf(const SearchOptions& options);

// Does a search under these options find a plan that fits? If not, why.
using TrySearch = std::function<absl::Status(const SearchOptions&)>;

// The refusal of a search under `options`, with what stands in its way: the pins and limits of
// which any one must go for a plan, or all of them where one is not enough. The refusal as it is
// where it says something else than that nothing is allowed (FailedPrecondition) or fits
// (ResourceExhausted), or where no pin or limit is to blame. Searches at most once per pin and
// limit, and once more.
Refusal NameCulprits(const Refusal& refusal, const SearchOptions& options, const TrySearch& search);

}  // namespace minka
