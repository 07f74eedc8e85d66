// The training steps whose times are compared.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/ir/step.h"
#include "minka/runtime/mesh/step_runner.h"

namespace minka {

struct CaseStep {
  Step step;
  ParameterValues inputs;  // of every parameter
  // Elements of the weights, which JAX's copy must have, too.
  std::optional<int64_t> num_parameters;
};

// One step, for minka and for JAX.
struct Case {
  std::string model;  // as jax_baseline.py names it
  std::string size;   // what tells it from the model's other ones
  std::function<absl::StatusOr<CaseStep>()> load;
  std::vector<std::string> jax_arguments;
  // JAX takes the same function with the same inputs, so that its loss is the same, too; else it is
  // a copy written by hand with values of its own.
  bool takes_inputs = false;

  std::string name() const { return model + " " + size; }
};

// minka's models, 0.2 to 2 seconds each on two cores, and the flax modules of `module_folder`, 0.01
// to 1 second.
absl::StatusOr<std::vector<Case>> AllCases(const std::string& module_folder);

}  // namespace minka
