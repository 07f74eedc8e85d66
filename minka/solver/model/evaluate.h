// Cost and memory of a choice, straight from the problem: the judge of every answer, independent of
// the solver.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/solver/model/problem.h"

namespace minka {

struct Evaluation {
  // Without the forbidden entries. Any checked problem's cost fits.
  int64_t cost = 0;
  // How many forbidden node costs and table cells the choice uses, multiplicity not counted.
  int64_t num_forbidden = 0;
  int64_t peak_usage_bytes = 0;
  // The first time of the peak; 0 if nothing uses memory.
  int64_t peak_time = 0;
  bool within_limit = true;
  bool feasible() const { return num_forbidden == 0 && within_limit; }
};

// O(nodes + edges + usages log usages). Error: the choice has the wrong length or an index out of
// range. `problem` must have passed Check().
absl::StatusOr<Evaluation> Evaluate(const SolverProblem& problem, std::span<const int32_t> choice);

// Bytes in use as a step function: from `time` (to the next entry's) so many bytes; the last entry
// has zero.
struct UsageStep {
  int64_t time = 0;
  int64_t bytes = 0;
};
std::vector<UsageStep> UsageOverTime(const SolverProblem& problem, std::span<const int32_t> choice);

}  // namespace minka
