// The training steps whose times are compared.
#pragma once

#include <string>
#include <vector>

#include "minka/frontend/optimizer.h"
#include "minka/frontend/trace.h"

namespace minka {

// One step, for minka and for JAX.
struct Case {
  std::string model;  // as jax_baseline.py names it
  std::string size;   // what tells it from the model's other ones
  Model step;
  Optimizer optimizer;
  std::vector<std::string> jax_arguments;
};

// 0.2 to 2 seconds each on two cores.
std::vector<Case> AllCases();

}  // namespace minka
