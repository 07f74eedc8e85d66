// Random programs whose results do not depend on the order of additions.
#pragma once

#include <cstdint>
#include <vector>

#include "minka/ir/literal.h"
#include "minka/ir/module.h"

namespace minka {

struct RandomProgram {
  Module module;  // without dead code; some results aliased to parameters
  // By result: how far the order of additions and other rounding may take an element, besides a few
  // roundings of itself; 0: it is equal bit for bit however the program is split.
  std::vector<double> noise;
  std::vector<Literal> inputs;
};

struct RandomProgramOptions {
  int num_operations = 28;  // and half as many elementwise ones
  int num_inexact = 5;      // operations such as exp, at the end: read by results only
};

// Integer-valued floats below 2^24 through linear, reducing and data-moving operations, integers
// and predicates; the same program for the same seed.
RandomProgram MakeRandomProgram(uint64_t seed, const RandomProgramOptions& options = {});

}  // namespace minka
