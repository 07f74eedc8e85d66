// Small random problems with everything that can go wrong at once: ties, forbidden pairs, aliases
// and followers, parallel and transposed edges, multiplicities, overlapping usages, limits that
// bind or cannot be met. For tests and fuzzing.
#pragma once

#include <cstdint>

#include "minka/solver/model/problem.h"
#include "minka/solver/model/random.h"

namespace minka {

struct RandomProblemOptions {
  int32_t max_nodes = 6;
  int32_t max_choices = 4;
  int64_t max_cost = 20;
  bool with_limit = true;
};

SolverProblem MakeRandomProblem(const RandomProblemOptions& options, Random& random);

}  // namespace minka
