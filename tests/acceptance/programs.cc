#include "tests/acceptance/programs.h"

#include <utility>
#include <vector>

#include "minka/base/file.h"
#include "minka/base/status.h"
#include "minka/ir/builder.h"
#include "minka/ir/hlo_proto.h"
#include "nlohmann/json.hpp"

namespace minka {
namespace {

const Shape kSquare{ElementType::kF32, {128, 128}};
const Shape kWide{ElementType::kF32, {128, 2048}};
const Shape kTall{ElementType::kF32, {2048, 128}};

// x y, contracting the last dimension of x with the first of y.
Value MatMul(ComputationBuilder& b, Value x, Value y) {
  const int64_t last = b.shape(x).rank() - 1;
  return b.Dot(x, y, {.lhs_contracting = {last}, .rhs_contracting = {0}});
}

// Wraps programs whose parameter 0 is the place of their only result.
absl::StatusOr<Step> WithPlacedResult(ModuleBuilder module, const std::vector<std::string>& names) {
  module.AddAlias({.result = 0, .parameter = 0});
  Step step;
  ASSIGN_OR_RETURN(step.module, std::move(module).Finish());
  step.parameters.push_back({.role = ParameterRole::kState, .name = "result", .state_result = 0});
  for (const std::string& name : names) step.parameters.push_back({.name = name});
  step.results = {{ResultRole::kState, "result"}};
  return step;
}

}  // namespace

absl::StatusOr<Step> JaxStep(const std::string& name) {
  const std::string folder = MINKA_JAX_MODULES;
  ASSIGN_OR_RETURN(const std::string index, ReadFile(folder + "/index.json"));
  const nlohmann::json json = nlohmann::json::parse(index);
  StepFlags flags;
  for (const auto& entry : json["modules"]) {
    if (entry["name"] != name) continue;
    for (const auto& [input, facts] : entry["batch_inputs"].items()) {
      flags.batch_inputs.push_back(
          fmt::format("{}:{}", facts["parameter"].get<int>(), facts["batch_dim"].get<int>()));
    }
  }
  ASSIGN_OR_RETURN(const std::string bytes, ReadFile(fmt::format("{}/{}.pb", folder, name)));
  ASSIGN_OR_RETURN(Module module, ImportHlo(bytes));
  return MakeStep(std::move(module), flags);
}

absl::StatusOr<Step> DenseChainStep(const DenseChain& chain) {
  ModuleBuilder module("dense_chain");
  ComputationBuilder b = module.Entry();
  const Shape activation{ElementType::kF32, {chain.batch, chain.dim}};
  Step step;
  std::vector<Value> weights, biases;
  for (int i = 0; i < chain.num_layers; ++i) {
    const std::string name = fmt::format("params/layer_{}/kernel", i);
    weights.push_back(b.Parameter({ElementType::kF32, {chain.dim, chain.dim}}, name));
    step.parameters.push_back({.role = ParameterRole::kState, .name = name, .state_result = i});
    step.results.push_back({ResultRole::kState, name});
    module.AddAlias({.result = i, .parameter = i});
  }
  for (int i = 0; i < chain.num_layers && chain.has_biases; ++i) {
    const std::string name = fmt::format("bias_{}", i);
    biases.push_back(b.Parameter({ElementType::kF32, {chain.dim}}, name));
    step.parameters.push_back({.name = name});
    step.results.push_back({ResultRole::kMetric, name});
  }
  const Value x = b.Parameter(activation, "x"), y = b.Parameter(activation, "y");
  for (const char* name : {"x", "y"}) {
    step.parameters.push_back({.role = ParameterRole::kBatch, .name = name, .batch_dim = 0});
  }

  std::vector<Value> inputs = {x};  // of each layer; last: the output
  for (int i = 0; i < chain.num_layers; ++i) {
    Value h = MatMul(b, inputs.back(), weights[i]);
    if (chain.has_biases) {
      h = b.Binary(Opcode::kAdd, h, b.Broadcast(biases[i], activation.dims, {1}));
    }
    inputs.push_back(h);
  }
  Value error = b.Binary(Opcode::kSubtract, inputs.back(), y);
  error = b.Binary(Opcode::kMultiply, error, b.FullLike(error, 0.5));
  std::vector<Value> new_weights(weights.size()), new_biases(biases.size());
  for (int i = chain.num_layers - 1; i >= 0; --i) {
    const Value gradient =
        b.Dot(inputs[i], error, {.lhs_contracting = {0}, .rhs_contracting = {0}});
    new_weights[i] = b.Binary(Opcode::kSubtract, weights[i], gradient);
    if (chain.has_biases) {
      const Value sum = b.Reduce(error, b.Scalar(ElementType::kF32, 0), {0}, Opcode::kAdd);
      new_biases[i] = b.Binary(Opcode::kSubtract, biases[i], sum);
    }
    if (i > 0) error = b.Dot(error, weights[i], {.lhs_contracting = {1}, .rhs_contracting = {1}});
  }
  new_weights.insert(new_weights.end(), new_biases.begin(), new_biases.end());
  b.SetResults(std::move(new_weights));
  ASSIGN_OR_RETURN(step.module, std::move(module).Finish());
  return step;
}

absl::StatusOr<Step> TransposedDot(int repeats) {
  ModuleBuilder module("transposed_dot");
  ComputationBuilder b = module.Entry();
  b.Parameter(kSquare, "result");
  Value x = b.Parameter(kTall, "x"), y = b.Parameter(kWide, "y");
  for (int i = 0; i < repeats; ++i) {
    x = b.Transpose(x, {1, 0});
    y = b.Transpose(y, {1, 0});
  }
  Value product = MatMul(b, x, y);
  for (int i = 0; i < (repeats + 1) / 2; ++i) product = b.Transpose(product, {1, 0});
  b.SetResults({product});
  return WithPlacedResult(std::move(module), {"x", "y"});
}

absl::StatusOr<Step> ReshapedDot(bool again) {
  ModuleBuilder module("reshaped_dot");
  ComputationBuilder b = module.Entry();
  b.Parameter(again ? Shape{ElementType::kF32, {128, 2, 64}} : kSquare, "result");
  Value x = b.Reshape(b.Parameter({ElementType::kF32, {128, 1024, 2}}, "x"), {128, 2048});
  Value y = b.Reshape(b.Parameter({ElementType::kF32, {1024, 2, 128}}, "y"), {2048, 128});
  if (again) {
    x = b.Reshape(b.Reshape(x, {32, 4, 2048}), {128, 2048});
    y = b.Reshape(b.Reshape(y, {512, 4, 128}), {2048, 128});
  }
  const Value product = MatMul(b, x, y);
  b.SetResults({again ? b.Reshape(product, {128, 2, 64}) : product});
  return WithPlacedResult(std::move(module), {"x", "y"});
}

absl::StatusOr<Step> SumOfTwoDots() {
  ModuleBuilder module("sum_of_two_dots");
  ComputationBuilder b = module.Entry();
  b.Parameter(kSquare, "result");
  const Value x1 = b.Parameter(kWide, "x1"), y1 = b.Parameter(kTall, "y1");
  const Value x2 = b.Parameter(kWide, "x2"), y2 = b.Parameter(kTall, "y2");
  b.SetResults({b.Binary(Opcode::kAdd, MatMul(b, x1, y1), MatMul(b, x2, y2))});
  return WithPlacedResult(std::move(module), {"x1", "y1", "x2", "y2"});
}

absl::StatusOr<Step> ExpOfThreeDots() {
  ModuleBuilder module("exp_of_three_dots");
  ComputationBuilder b = module.Entry();
  const Shape cube{ElementType::kF32, {32, 4, 128}};
  b.Parameter(cube, "result");
  Value sum = b.Parameter(cube, "z");
  std::vector<std::string> names = {"z"};
  for (int i = 1; i <= 3; ++i) {
    names.push_back(fmt::format("x{}", i));
    const Value x = b.Parameter(kWide, names.back());
    names.push_back(fmt::format("y{}", i));
    const Value y = b.Parameter(kTall, names.back());
    sum = b.Binary(Opcode::kAdd, sum, b.Reshape(MatMul(b, x, y), cube.dims));
  }
  for (int i = 0; i < 6; ++i) sum = b.Unary(Opcode::kExponential, sum);
  b.SetResults({sum});
  return WithPlacedResult(std::move(module), names);
}

}  // namespace minka
