#include "tests/acceptance/small_programs.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <span>
#include <utility>

#include "minka/base/check.h"
#include "minka/frontend/nn.h"
#include "minka/frontend/optimizer.h"
#include "minka/frontend/trace.h"
#include "minka/ir/builder.h"
#include "minka/models/mlp.h"
#include "tests/acceptance/programs.h"

namespace minka {
namespace {

using ElementType::kF32;
const Shape kMatrix{kF32, {6, 4}};

Step Described(ModuleBuilder module, const std::vector<std::string>& inputs,
               const std::vector<std::string>& results) {
  Step step;
  step.module = *std::move(module).Finish();
  for (const std::string& name : inputs) step.parameters.push_back({.name = name});
  for (const std::string& name : results) step.results.push_back({ResultRole::kMetric, name});
  return step;
}

Step PlusOne(const Shape& shape) {
  ModuleBuilder module("plus_one");
  ComputationBuilder b = module.Entry();
  const Value x = b.Parameter(shape, "x");
  b.SetResults({b.Binary(Opcode::kAdd, x, b.FullLike(x, 1))});
  return Described(std::move(module), {"x"}, {"y"});
}

Step DonatedPlusOne() {
  Step step = PlusOne({kF32, {128, 128}});
  step.module.aliases.push_back({.result = 0, .parameter = 0});
  step.parameters[0] = {.role = ParameterRole::kState, .name = "x", .state_result = 0};
  step.results[0] = {ResultRole::kState, "x"};
  return step;
}

Step UnevenReshape() {
  ModuleBuilder module("reshape");
  ComputationBuilder b = module.Entry();
  b.SetResults({b.Reshape(b.Parameter({kF32, {144}}, "x"), {8, 18})});
  return Described(std::move(module), {"x"}, {"y"});
}

Step TransposedReshapedDot() {
  ModuleBuilder module("dot_reshape_transpose");
  ComputationBuilder entry = module.Entry();
  const Value a = entry.Parameter({kF32, {64, 256, 4}}, "a");
  const Value b = entry.Parameter({kF32, {1024, 16, 4}}, "b");
  const Value rows = entry.Reshape(entry.Transpose(a, {0, 2, 1}), {64, 1024});
  const Value product = entry.Dot(rows, entry.Reshape(b, {1024, 64}), {{1}, {0}, {}, {}});
  entry.SetResults({entry.Unary(Opcode::kNegate, product)});
  return Described(std::move(module), {"a", "b"}, {"y"});
}

Step VectorTimesMatrix() {
  ModuleBuilder module("gemv");
  ComputationBuilder b = module.Entry();
  const Value x = b.Parameter({kF32, {128}}, "x");
  const Value matrix = b.Parameter({kF32, {128, 256}}, "matrix");
  b.SetResults({b.Dot(x, matrix, {{0}, {0}, {}, {}})});
  return Described(std::move(module), {"x", "matrix"}, {"y"});
}

Step Argmax() {
  ModuleBuilder module("argmax");
  ComputationBuilder reducer = module.AddComputation("argmax");
  const Value a = reducer.Parameter({kF32, {}}, "a");
  const Value i = reducer.Parameter({ElementType::kS32, {}}, "i");
  const Value b = reducer.Parameter({kF32, {}}, "b");
  const Value j = reducer.Parameter({ElementType::kS32, {}}, "j");
  const Value larger = reducer.Compare(CompareAttributes::Direction::kGe, a, b);
  reducer.SetResults({reducer.Select(larger, a, b), reducer.Select(larger, i, j)});
  ComputationBuilder entry = module.Entry();
  const Value x = entry.Parameter({kF32, {144, 144}}, "x");
  const Value places = entry.Iota({ElementType::kS32, {144, 144}}, 0);
  const Value reduced = entry.Append(
      {.opcode = Opcode::kReduce,
       .operands = {x, places, entry.Scalar(kF32, -1e30), entry.Scalar(ElementType::kS32, 0)},
       .attributes = DimensionsAttributes{{0}},
       .called = {module.id(reducer)}});
  entry.SetResults({{reduced.instruction, 1}});
  return Described(std::move(module), {"x"}, {"place"});
}

Step Argsort() {
  ModuleBuilder module("argsort");
  ComputationBuilder less = module.AddComputation("less");
  const Value a = less.Parameter({ElementType::kS32, {}}, "a");
  const Value b = less.Parameter({ElementType::kS32, {}}, "b");
  less.Parameter({ElementType::kS32, {}}, "i");
  less.Parameter({ElementType::kS32, {}}, "j");
  less.SetResults({less.Compare(CompareAttributes::Direction::kLt, a, b)});
  ComputationBuilder entry = module.Entry();
  const Shape shape{ElementType::kS32, {1024}};
  const Value x = entry.Parameter(shape, "x");
  const Value sorted = entry.Append({.opcode = Opcode::kSort,
                                     .operands = {x, entry.Iota(shape, 0)},
                                     .results = {shape, shape},
                                     .attributes = DimensionsAttributes{{0}, true},
                                     .called = {module.id(less)}});
  entry.SetResults({{sorted.instruction, 1}});
  return Described(std::move(module), {"x"}, {"order"});
}

// Two layers without biases, `between` them.
Step TwoLayers(const Shape& input, int64_t features,
               std::function<Tensor(const Scope& scope, Tensor x)> between) {
  const Shape target{kF32, {input.dims[0]}};
  const Model model{
      .name = "two_layers",
      .inputs = {{"x", input}, {"y", target}},
      .forward = [=](const Scope& scope, std::span<const Tensor> inputs) -> ModelOutput {
        const Tensor hidden =
            Dense(scope / "first", inputs[0], {.features = {features}, .bias = false});
        const Tensor x = between(scope, hidden);
        const Tensor out = Dense(scope / "second", x, {.features = {16}, .bias = false});
        std::vector<int64_t> all_but_batch(out.rank() - 1);
        std::iota(all_but_batch.begin(), all_but_batch.end(), 1);
        return {.loss = MeanSquaredError(Mean(out, all_but_batch), inputs[1])};
      }};
  return Trace(model, Sgd()).value().step;
}

Step DropoutBetweenLayers() {
  return TwoLayers({kF32, {32, 32, 16}}, 16,
                   [](const Scope& scope, Tensor x) { return Dropout(scope / "drop", x, 0.1); });
}

Step GatherBetweenLayers() {
  return TwoLayers({kF32, {256, 32}}, 32, [](const Scope& scope, Tensor x) {
    const Tensor columns = scope.graph().Iota({ElementType::kS32, {16, 1}}, 0);
    return Gather(x, columns,
                  {.offset_dims = {0},
                   .collapsed_slice_dims = {1},
                   .start_index_map = {1},
                   .slice_sizes = {256, 1},
                   .index_vector_dim = 1});
  });
}

Step Sum() {
  ModuleBuilder module("sum");
  ComputationBuilder b = module.Entry();
  const Value x = b.Parameter(kMatrix, "a"), y = b.Parameter(kMatrix, "b");
  b.SetResults({b.Binary(Opcode::kAdd, x, y)});
  return Described(std::move(module), {"a", "b"}, {"sum"});
}

Step FourResults() {
  ModuleBuilder module("outputs");
  ComputationBuilder b = module.Entry();
  const Value a = b.Parameter(kMatrix, "a");
  b.SetResults({b.Binary(Opcode::kMultiply, a, a), b.Binary(Opcode::kAdd, a, b.FullLike(a, 1)),
                b.Binary(Opcode::kMultiply, a, b.FullLike(a, 2)),
                b.Binary(Opcode::kDivide, a, b.FullLike(a, 2))});
  return Described(std::move(module), {"a"}, {"square", "next", "double", "half"});
}

// Two Dense layers without activations, momentum.
Step LinearLayers() {
  const Shape shape{kF32, {256, 16}};
  const Model model{
      .name = "linear_layers",
      .inputs = {{"x", shape}, {"y", shape}},
      .forward = [](const Scope& scope, std::span<const Tensor> inputs) -> ModelOutput {
        const Tensor hidden = Dense(scope / "layer_0", inputs[0], {.features = {16}});
        const Tensor out = Dense(scope / "layer_1", hidden, {.features = {16}});
        return {.loss = MeanSquaredError(out, inputs[1])};
      }};
  return Trace(model, Sgd({.momentum = 0.9})).value().step;
}

// softmax(relu(x w1 + b1) w2 + b2); new parameters are old ones minus gradients.
Step SoftmaxOfTwoLayers() {
  const Model model{
      .name = "softmax_of_two_layers",
      .inputs = {{"x", {kF32, {64, 6}}}, {"y", {kF32, {64, 10}}}},
      .forward = [](const Scope& scope, std::span<const Tensor> inputs) -> ModelOutput {
        const Tensor hidden = Relu(Dense(scope / "1", inputs[0], {.features = {8}}));
        const Tensor out = Softmax(Dense(scope / "2", hidden, {.features = {10}}));
        return {.loss = MeanSquaredError(out, inputs[1])};
      }};
  return Trace(model, Sgd({.learning_rate = 1, .momentum = 0})).value().step;
}

SmallProgram Accumulating(const std::string& name, const std::string& mesh, SearchLimits limits) {
  limits.no_all_to_all = true;
  return {name,
          LinearLayers(),
          {.mesh = mesh, .search = {.limits = limits}, .num_micro_batches = 2},
          AlpaCosts()};
}

}  // namespace

CostModelChoice AlpaCosts() {
  return {.kind = CostModelKind::kAlpa, .alpha = {1, 1}, .beta = {1, 1}};
}

std::vector<SmallProgram> SmallPrograms() {
  const Shard row = {.mesh = "a=1,b=4"}, grid = {.mesh = "data=2,model=2"};
  const auto pinned = [&](const std::vector<std::string>& pins) {
    Shard shard = grid;
    shard.search.pins = pins;
    return shard;
  };
  SmallProgram manual = {
      "manual_accumulation", SoftmaxOfTwoLayers(),
      pinned({"params/1/kernel=[-,model]", "params/1/bias=[model]", "params/2/kernel=[model,-]",
              "params/2/bias=[-]", "x=[data,-]", "y=[data,-]"}),
      AlpaCosts()};
  manual.how.num_micro_batches = 2;
  manual.how.search.limits.batch_axis = "data";
  return {{"donate_buffer", DonatedPlusOne(), {.mesh = "a=4"}},
          {"dot_reshape_transpose", TransposedReshapedDot(), row},
          {"one_by_one_mesh", PlusOne(kMatrix), {.mesh = "a=1,b=1"}},
          {"dropout", DropoutBetweenLayers(), row},
          {"gather", GatherBetweenLayers(), row, AlpaCosts()},
          {"reshape_uneven_partition", UnevenReshape(), row},
          {"argmax", Argmax(), row},
          {"sort", Argsort(), row},
          {"gemv", VectorTimesMatrix(), row},
          {"fast_call", Sum(), {.mesh = "a=2,b=2"}},
          {"weight_init", JaxStep("mlp_hidden16_initial_values").value(), row},
          Accumulating("accumulation", "a=1,b=4", {}),
          Accumulating("accumulation_2d", "a=2,b=2", {.batch_axis = "a"}),
          Accumulating("accumulation_reduce_scatter", "a=1,b=4", {.prefer_reduce_scatter = true}),
          {"manual_inputs_columns", Sum(), pinned({"a=[-,model]", "b=[-,model]"})},
          {"manual_inputs_both", Sum(), pinned({"a=[data,-]", "b=[data,model]"})},
          {"manual_inputs_whole", Sum(), pinned({"a=[-,-]", "b=[data,-]"})},
          {"manual_outputs", FourResults(),
           pinned({"square=[data,-]", "next=[-,-]", "double=[-,model]", "half=[data,model]"})},
          manual};
}

SmallProgram SmallProgramNamed(const std::string& name) {
  std::vector<SmallProgram> programs = SmallPrograms();
  const auto found = std::ranges::find(programs, name, &SmallProgram::name);
  MINKA_CHECK(found != programs.end(), "no small program {}", name);
  return std::move(*found);
}

}  // namespace minka
