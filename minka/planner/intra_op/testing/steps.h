// Small steps whose collectives are plain to see, for tests of the search.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "minka/analysis/structure.h"
#include "minka/cluster/cluster.h"
#include "minka/ir/builder.h"
#include "minka/planner/intra_op/intra_op.h"

namespace minka {

// loss = sum(relu(x w1) w2), new w = w - gradient; everything by hand, so that the expected
// collectives are plain to see.
inline Step TwoLayerStep(int64_t batch, int64_t width) {
  ModuleBuilder module("two_layers");
  ComputationBuilder b = module.Entry();
  const Shape weight{ElementType::kF32, {width, width}};
  const Value w1 = b.Parameter(weight, "w1"), w2 = b.Parameter(weight, "w2");
  const Value x = b.Parameter({ElementType::kF32, {batch, width}}, "x");
  const auto dot = [&](Value l, Value r, int64_t lc, int64_t rc) {
    return b.Dot(l, r, {.lhs_contracting = {lc}, .rhs_contracting = {rc}});
  };
  const Value h = dot(x, w1, 1, 0);
  const Value a = b.Binary(Opcode::kMaximum, h, b.FullLike(h, 0));
  const Value y = dot(a, w2, 1, 0);
  const Value dy = b.Binary(Opcode::kMultiply, y, b.FullLike(y, 2));
  const Value dw2 = dot(a, dy, 0, 0);
  const Value da = dot(dy, w2, 1, 1);
  const Value dh = b.Select(b.Compare(CompareAttributes::Direction::kGt, h, b.FullLike(h, 0)), da,
                            b.FullLike(da, 0));
  const Value dw1 = dot(x, dh, 0, 0);
  b.SetResults({b.Binary(Opcode::kSubtract, w1, dw1), b.Binary(Opcode::kSubtract, w2, dw2)});
  module.AddAlias({.result = 0, .parameter = 0});
  module.AddAlias({.result = 1, .parameter = 1});
  Step step;
  step.module = *std::move(module).Finish();
  step.parameters = {{.role = ParameterRole::kState, .name = "params/w1", .state_result = 0},
                     {.role = ParameterRole::kState, .name = "params/w2", .state_result = 1},
                     {.role = ParameterRole::kBatch, .name = "x", .batch_dim = 0}};
  step.results = {{ResultRole::kState, "params/w1"}, {ResultRole::kState, "params/w2"}};
  return WithStructure(std::move(step));
}

// y = x w1 w2 ...; new w = w - gradient of the sum of squares of y. `widths` of x and of what each
// weight makes.
inline Step ChainStep(int64_t batch, std::span<const int64_t> widths) {
  ModuleBuilder module("chain");
  ComputationBuilder b = module.Entry();
  Step step;
  std::vector<Value> weights, inputs;
  for (size_t i = 0; i + 1 < widths.size(); ++i) {
    const std::string name = fmt::format("params/w{}", i + 1);
    weights.push_back(b.Parameter({ElementType::kF32, {widths[i], widths[i + 1]}}, name));
    module.AddAlias({.result = static_cast<int>(i), .parameter = static_cast<int>(i)});
    step.parameters.push_back(
        {.role = ParameterRole::kState, .name = name, .state_result = static_cast<int>(i)});
    step.results.push_back({ResultRole::kState, name});
  }
  Value x = b.Parameter({ElementType::kF32, {batch, widths[0]}}, "x");
  step.parameters.push_back({.role = ParameterRole::kBatch, .name = "x", .batch_dim = 0});
  const auto dot = [&](Value l, Value r, int64_t lc, int64_t rc) {
    return b.Dot(l, r, {.lhs_contracting = {lc}, .rhs_contracting = {rc}});
  };
  for (const Value weight : weights) {
    inputs.push_back(x);
    x = dot(x, weight, 1, 0);
  }
  Value gradient = b.Binary(Opcode::kMultiply, x, b.FullLike(x, 2));
  std::vector<Value> results(weights.size());
  for (size_t i = weights.size(); i-- > 0;) {
    results[i] = b.Binary(Opcode::kSubtract, weights[i], dot(inputs[i], gradient, 0, 0));
    if (i > 0) gradient = dot(gradient, weights[i], 1, 1);
  }
  b.SetResults(results);
  step.module = *std::move(module).Finish();
  return WithStructure(std::move(step));
}

// On eight local devices, by roofline, to the best plan.
inline IntraOpResult PlanLocally(const Step& step, const Mesh& mesh, Method method) {
  IntraOpOptions options{.method = method};
  options.search.gap = 0;
  options.search.num_threads = 1;
  return *PlanMesh(step, mesh, *MakeRooflineCostModel(Cluster::Local(8), mesh), options);
}

}  // namespace minka
