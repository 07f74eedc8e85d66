// Every array and operation of a plan with how it lies on the mesh: what `minka inspect` lists.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/ir/step.h"
#include "minka/plan/plan.h"

namespace minka {

enum class TensorKind { kParameter, kOptimizer, kInput, kOutput, kActivation };

// "params", "optimizer", "inputs", "outputs", "activations", as --only takes them.
std::string_view TensorKindName(TensorKind kind);
absl::StatusOr<TensorKind> ParseTensorKind(std::string_view name);

struct TensorOnMesh {
  TensorKind kind = TensorKind::kActivation;
  std::string name;   // of parameter, result or instruction
  std::string path;   // activations: the operation's name in the model
  std::string owner;  // kOptimizer: the parameter that it belongs to, see OwnersOfState; or empty
  Value value;
  Shape shape;
  Sharding sharding;
  // Per mesh axis: data, operator, zero, idle; an activation's `data` splits its batch dimension,
  // `partial` owes a sum.
  std::vector<std::string> labels;
  int batch_dim = -1;  // -1: no dimension counts examples
  int64_t bytes_per_device = 0;
  Phase phase = Phase::kForward;  // activations: computed in
  bool kept = false;              // activations: read again by the backward pass
};

// State and constants, inputs, results other than state, and every array that operations compute
// (in the sharding that its last reader sees), in the order of the module. State under
// "optimizer/" and state that belongs to a parameter is kOptimizer, all other state and constants
// kParameter.
std::vector<TensorOnMesh> TensorsOfPlan(const Step& prepared, const Plan& plan);

// Rows of name, shape, sharding, label per axis and bytes per device; with `dims` the batch
// dimension, too.
std::string TensorTable(const std::vector<TensorOnMesh>& tensors, const Mesh& mesh, bool dims);
// The same as one JSON object: schema_version, mesh, tensors.
std::string TensorsJson(const std::vector<TensorOnMesh>& tensors, const Mesh& mesh);

// Operations whose name or path matches the glob: what each mesh axis splits, shardings of operands
// and results, reshards in front of it, what it followed, costs.
std::string OperationsText(const Step& prepared, const Plan& plan, std::string_view glob);
std::string OperationsJson(const Step& prepared, const Plan& plan, std::string_view glob);

}  // namespace minka
