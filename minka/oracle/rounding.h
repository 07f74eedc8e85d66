// What rounding reaches in a step: the widths of the floats on the way to a result, inputs that are
// one rounding away, and results that random numbers reach.
#pragma once

#include <cstdint>
#include <vector>

#include "minka/ir/literal.h"
#include "minka/ir/step.h"

namespace minka {

// The distance from 1 to the next larger number in the narrowest float type among the values that a
// result is computed from, and among those that a parameter reaches; through fed-back state and
// called computations, too. 0 where there is no float.
struct PathEpsilons {
  std::vector<double> of_results, of_parameters;
};
PathEpsilons FindPathEpsilons(const Step& step);

// Every element of a float array of 16 bits or more times 1 + epsilon or 1 - epsilon, by the seed's
// bits. Whole numbers stay, because they may be counters, masks or indices.
Literal Nudged(const Literal& literal, double epsilon, uint64_t seed);

// By result: does it depend on the `rng` opcode, through fed-back state, too?
std::vector<bool> DependsOnRng(const Step& step);

}  // namespace minka
