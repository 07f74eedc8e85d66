// The same problem as a mixed-integer program, solved by HiGHS: what tests and benchmarks compare
// with.
#pragma once

#include <cstdint>
#include <optional>

#include "minka/solver/model/problem.h"

namespace minka {

struct OracleAnswer {
  bool finished = false;        // false: out of time
  std::optional<int64_t> cost;  // unset if infeasible or out of time without a solution
  double seconds = 0;
};

// `problem` must have passed Check(). Costs should stay below 10^9, so that HiGHS's tolerances
// cannot hide a unit.
OracleAnswer SolveWithHighs(const SolverProblem& problem, double time_limit_seconds);

}  // namespace minka
