// The problems that minka's own planner poses: named models on 2-D and 3-D meshes, with and without
// a memory limit.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "families.h"

namespace minka {

struct ModelCase {
  std::string model;
  std::string mesh;
  // Whether memory is limited, to 1.1 times the smallest limit that the solver finds a plan for.
  bool tight = false;
  // Only one layer, without a limit but with the bytes that one would count: the problem that
  // AtMemoryPrice is for.
  bool one_layer = false;

  std::string name() const;
};

// Every GPT size on 8 and 64 devices, 2-D and 3-D; small models, mixtures of experts and a
// Wide-ResNet on 8.
std::vector<ModelCase> ModelCases();

absl::StatusOr<NamedProblem> MakeModelProblem(const ModelCase& model_case);

// The problem with every byte of every usage added to the costs at `price` per byte, as a sweep
// over memory prices asks for it.
SolverProblem AtMemoryPrice(const SolverProblem& problem, double price);

}  // namespace minka
