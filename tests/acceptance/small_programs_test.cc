// The small programs of Alpa's tests (OSDI'22): basic ones, gradient accumulation, shardings given
// by hand. Facts are local shapes and counts of collectives.
#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/base/status.h"
#include "minka/cost/cost_model.h"
#include "minka/driver/plan_step.h"
#include "minka/driver/prepare.h"
#include "minka/frontend/nn.h"
#include "minka/frontend/optimizer.h"
#include "minka/frontend/trace.h"
#include "minka/ir/builder.h"
#include "minka/lowering/spmd.h"
#include "minka/models/mlp.h"

namespace minka {
namespace {

const Shape kMatrix{ElementType::kF32, {6, 4}};

Step Described(ModuleBuilder module, const std::vector<std::string>& inputs,
               const std::vector<std::string>& results) {
  Step step;
  step.module = *std::move(module).Finish();
  for (const std::string& name : inputs) step.parameters.push_back({.name = name});
  for (const std::string& name : results) step.results.push_back({ResultRole::kMetric, name});
  return step;
}

struct Planned {
  Step prepared;
  Plan plan;
  SpmdProgram program;

  const Mesh& mesh() const { return plan.stages.front().mesh; }
  std::vector<std::string> LocalParameters() const {
    const Computation& entry = prepared.module.entry_computation();
    std::vector<std::string> shapes;
    for (size_t i = 0; i < entry.parameters.size(); ++i) {
      shapes.push_back(ToString(LocalShape(entry.instructions[entry.parameters[i]].shape(),
                                           program.parameters[i], mesh())));
    }
    return shapes;
  }
  std::vector<std::string> LocalResults() const {
    const Computation& entry = prepared.module.entry_computation();
    std::vector<std::string> shapes;
    for (size_t i = 0; i < entry.results.size(); ++i) {
      shapes.push_back(
          ToString(LocalShape(entry.shape(entry.results[i]), program.results[i], mesh())));
    }
    return shapes;
  }
};

absl::StatusOr<Planned> PlanAndLower(const Step& step, PlanRequest request,
                                     const std::string& mesh) {
  ASSIGN_OR_RETURN(const Mesh parsed, Mesh::Parse(mesh));
  request.cluster = Cluster::Local(static_cast<int>(parsed.num_devices()));
  request.meshes = {parsed};
  request.gap = 0;
  Planned out;
  ASSIGN_OR_RETURN(PlanResult result, PlanStep(step, request));
  out.prepared = std::move(result.prepared);
  out.plan = std::move(result.candidates[result.best].plan);
  RETURN_IF_ERROR(CheckPlan(out.plan, out.prepared.module));
  ASSIGN_OR_RETURN(out.program, LowerSpmd(out.prepared.module, out.plan.stages.front()));
  return out;
}

struct Synchronisation {
  std::map<std::string, int> in_loop;
  std::map<std::string, int> behind;  // without scalars
};

Synchronisation SynchronisationOf(const Planned& planned) {
  Synchronisation found;
  for (const PlannedCollective& collective :
       ListCollectives(planned.prepared.module, planned.plan.stages.front())) {
    if (collective.runs > 1) {
      ++found.in_loop[collective.kind];
    } else if (collective.bytes > ElementBytes(collective.type)) {
      ++found.behind[collective.kind];
    }
  }
  return found;
}

CostModelChoice AlpaCosts() {
  return {.kind = CostModelKind::kAlpa, .alpha = {1, 1}, .beta = {1, 1}};
}

TEST(BasicPrograms, AnUnevenReshapeCostsNothing) {
  ModuleBuilder module("reshape");
  ComputationBuilder b = module.Entry();
  b.SetResults({b.Reshape(b.Parameter({ElementType::kF32, {144}}, "x"), {8, 18})});
  const Step step = Described(std::move(module), {"x"}, {"y"});
  const auto planned = PlanAndLower(step, {.cost_model = AlpaCosts()}, "a=1,b=4");
  ASSERT_TRUE(planned.ok()) << Message(planned.status());
  EXPECT_EQ(planned->plan.objective, 0);
}

TEST(BasicPrograms, ADonatedBufferIsSplitOnOneDimension) {
  ModuleBuilder module("donate");
  ComputationBuilder b = module.Entry();
  const Value x = b.Parameter({ElementType::kF32, {128, 128}}, "x");
  b.SetResults({b.Binary(Opcode::kAdd, x, b.FullLike(x, 1))});
  module.AddAlias({.result = 0, .parameter = 0});
  Step step = Described(std::move(module), {"x"}, {"x"});
  step.parameters[0] = {.role = ParameterRole::kState, .name = "x", .state_result = 0};
  step.results[0].role = ResultRole::kState;
  const auto planned = PlanAndLower(step, {}, "a=4");
  ASSERT_TRUE(planned.ok()) << Message(planned.status());
  EXPECT_THAT(planned->LocalResults()[0], testing::AnyOf("f32[32,128]", "f32[128,32]"));
}

TEST(BasicPrograms, OneDeviceNeedsNoCollectives) {
  ModuleBuilder module("one");
  ComputationBuilder b = module.Entry();
  const Value x = b.Parameter(kMatrix, "x");
  b.SetResults({b.Binary(Opcode::kAdd, x, b.FullLike(x, 1))});
  const auto planned = PlanAndLower(Described(std::move(module), {"x"}, {"y"}), {}, "a=1,b=1");
  ASSERT_TRUE(planned.ok()) << Message(planned.status());
  EXPECT_THAT(planned->plan.collectives, testing::IsEmpty());
}

TEST(BasicPrograms, TheMatrixOfAVectorsProductIsSplitByColumns) {
  ModuleBuilder module("gemv");
  ComputationBuilder b = module.Entry();
  const Value x = b.Parameter({ElementType::kF32, {128}}, "x");
  const Value matrix = b.Parameter({ElementType::kF32, {128, 256}}, "matrix");
  b.SetResults({b.Dot(x, matrix, {{0}, {0}, {}, {}})});
  const Step step = Described(std::move(module), {"x", "matrix"}, {"y"});
  const auto planned = PlanAndLower(step, {}, "a=4");
  ASSERT_TRUE(planned.ok()) << Message(planned.status());
  EXPECT_THAT(planned->plan.collectives, testing::IsEmpty());
  EXPECT_EQ(planned->LocalParameters()[1], "f32[128,64]");
}

TEST(BasicPrograms, ArgmaxIsSplitOverTheOtherDimension) {
  ModuleBuilder module("argmax");
  ComputationBuilder reducer = module.AddComputation("argmax");
  const Value a = reducer.Parameter({ElementType::kF32, {}}, "a");
  const Value i = reducer.Parameter({ElementType::kS32, {}}, "i");
  const Value b = reducer.Parameter({ElementType::kF32, {}}, "b");
  const Value j = reducer.Parameter({ElementType::kS32, {}}, "j");
  const Value larger = reducer.Compare(CompareAttributes::Direction::kGe, a, b);
  reducer.SetResults({reducer.Select(larger, a, b), reducer.Select(larger, i, j)});
  ComputationBuilder entry = module.Entry();
  const Value x = entry.Parameter({ElementType::kF32, {144, 144}}, "x");
  const Value places = entry.Iota({ElementType::kS32, {144, 144}}, 0);
  const Value reduced =
      entry.Append({.opcode = Opcode::kReduce,
                    .operands = {x, places, entry.Scalar(ElementType::kF32, -1e30),
                                 entry.Scalar(ElementType::kS32, 0)},
                    .attributes = DimensionsAttributes{{0}},
                    .called = {module.id(reducer)}});
  entry.SetResults({{reduced.instruction, 1}});
  const auto planned = PlanAndLower(Described(std::move(module), {"x"}, {"place"}), {}, "a=4");
  ASSERT_TRUE(planned.ok()) << Message(planned.status());
  EXPECT_THAT(planned->plan.collectives, testing::IsEmpty());
  EXPECT_EQ(planned->LocalParameters()[0], "f32[144,36]");
}

// Two layers without biases, `between` them.
Step TwoLayers(const Shape& input, int64_t features,
               std::function<Tensor(const Scope& scope, Tensor x)> between) {
  const Shape target{ElementType::kF32, {input.dims[0]}};
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

int64_t LargestOf(const Module& module, Opcode opcode) {
  int64_t largest = 0;
  for (const Instruction& instruction : module.entry_computation().instructions) {
    if (instruction.opcode == opcode) {
      largest = std::max(largest, instruction.shape().num_elements());
    }
  }
  return largest;
}

TEST(BasicPrograms, EachDeviceDrawsItsOwnPartOfADropoutsBits) {
  const Step step =
      TwoLayers({ElementType::kF32, {32, 32, 16}}, 16,
                [](const Scope& scope, Tensor x) { return Dropout(scope / "drop", x, 0.1); });
  const auto planned = PlanAndLower(step, {}, "a=4");
  ASSERT_TRUE(planned.ok()) << Message(planned.status());
  EXPECT_EQ(SynchronisationOf(*planned).behind, (std::map<std::string, int>{{"all-reduce", 1}}));
  // The bits are a function of the element's number.
  EXPECT_EQ(LargestOf(planned->program.module, Opcode::kIota), 32 * 32 * 16 / 4);
}

TEST(BasicPrograms, GatherAndScatterWorkOnAQuarterOfTheArray) {
  const Step step = TwoLayers({ElementType::kF32, {256, 32}}, 32, [](const Scope& scope, Tensor x) {
    const Tensor columns = scope.graph().Iota({ElementType::kS32, {16, 1}}, 0);
    return Gather(x, columns,
                  {.offset_dims = {0},
                   .collapsed_slice_dims = {1},
                   .start_index_map = {1},
                   .slice_sizes = {256, 1},
                   .index_vector_dim = 1});
  });
  const auto planned = PlanAndLower(step, {.cost_model = AlpaCosts()}, "a=1,b=4");
  ASSERT_TRUE(planned.ok()) << Message(planned.status());
  EXPECT_LT(planned->plan.objective, 1e6);
  EXPECT_EQ(SynchronisationOf(*planned).behind, (std::map<std::string, int>{{"all-reduce", 1}}));
  const Computation& entry = planned->program.module.entry_computation();
  int num_found = 0;
  for (const Instruction& instruction : entry.instructions) {
    if (instruction.opcode != Opcode::kGather && instruction.opcode != Opcode::kScatter) continue;
    ++num_found;
    EXPECT_THAT(ToString(entry.shape(instruction.operands[0])),
                testing::AnyOf("f32[64,32]", "f32[256,8]"));
  }
  EXPECT_EQ(num_found, 2);
}

TEST(BasicPrograms, SortIsPlannedWhole) {
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
  const auto planned = PlanAndLower(Described(std::move(module), {"x"}, {"order"}),
                                    {.cost_model = AlpaCosts()}, "a=1,b=4");
  ASSERT_TRUE(planned.ok()) << Message(planned.status());
  EXPECT_EQ(LargestOf(planned->program.module, Opcode::kSort), 1024);
}

Step Sum() {
  ModuleBuilder module("sum");
  ComputationBuilder b = module.Entry();
  const Value x = b.Parameter(kMatrix, "a"), y = b.Parameter(kMatrix, "b");
  b.SetResults({b.Binary(Opcode::kAdd, x, y)});
  return Described(std::move(module), {"a", "b"}, {"sum"});
}

TEST(ManualSharding, InputsLieAsTheyArePinned) {
  const std::vector<std::pair<std::vector<std::string>, std::vector<std::string>>> cases = {
      {{"a=[-,model]", "b=[-,model]"}, {"f32[6,2]", "f32[6,2]"}},
      {{"a=[data,-]", "b=[data,model]"}, {"f32[3,4]", "f32[3,2]"}},
      {{"a=[-,-]", "b=[data,-]"}, {"f32[6,4]", "f32[3,4]"}}};
  for (const auto& [pins, shapes] : cases) {
    const auto planned = PlanAndLower(Sum(), {.pins = pins}, "data=2,model=2");
    ASSERT_TRUE(planned.ok()) << Message(planned.status());
    EXPECT_EQ(planned->LocalParameters(), shapes);
  }
}

TEST(ManualSharding, ResultsLieAsTheyArePinned) {
  ModuleBuilder module("outputs");
  ComputationBuilder b = module.Entry();
  const Value a = b.Parameter(kMatrix, "a");
  b.SetResults({b.Binary(Opcode::kMultiply, a, a), b.Binary(Opcode::kAdd, a, b.FullLike(a, 1)),
                b.Binary(Opcode::kMultiply, a, b.FullLike(a, 2)),
                b.Binary(Opcode::kDivide, a, b.FullLike(a, 2))});
  const Step step = Described(std::move(module), {"a"}, {"square", "next", "double", "half"});
  const auto planned = PlanAndLower(
      step, {.pins = {"square=[data,-]", "next=[-,-]", "double=[-,model]", "half=[data,model]"}},
      "data=2,model=2");
  ASSERT_TRUE(planned.ok()) << Message(planned.status());
  EXPECT_EQ(planned->LocalResults(),
            (std::vector<std::string>{"f32[3,4]", "f32[6,4]", "f32[6,2]", "f32[3,2]"}));
}

// Two Dense layers, momentum, two micro-batches.
Step Accumulating() {
  return Trace(Mlp({.batch = 256, .hidden = 16, .num_layers = 2}), Sgd({.momentum = 0.9}))
      .value()
      .step;
}

TEST(GradientAccumulation, GradientsAreReducedOnceAStep) {
  const auto planned = PlanAndLower(Accumulating(),
                                    {.micro_batches = {.num_micro_batches = 2},
                                     .limits = {.no_all_to_all = true},
                                     .cost_model = AlpaCosts()},
                                    "a=1,b=4");
  ASSERT_TRUE(planned.ok()) << Message(planned.status());
  EXPECT_EQ(planned->plan.num_micro_batches, 2);
  const Synchronisation found = SynchronisationOf(*planned);
  EXPECT_THAT(found.in_loop, testing::IsEmpty());
  EXPECT_EQ(found.behind, (std::map<std::string, int>{{"all-reduce", 1}}));
  EXPECT_EQ(planned->plan.accumulators.at("gradient of params/layer_0/kernel"),
            "sum f32[16,16] [-,-]{partial: b}");
}

TEST(GradientAccumulation, GradientsAreReducedOnceAStepOnAGrid) {
  const auto planned = PlanAndLower(Accumulating(),
                                    {.micro_batches = {.num_micro_batches = 2},
                                     .limits = {.no_all_to_all = true, .batch_axis = "a"},
                                     .cost_model = AlpaCosts()},
                                    "a=2,b=2");
  ASSERT_TRUE(planned.ok()) << Message(planned.status());
  const Synchronisation found = SynchronisationOf(*planned);
  // Of activations, whose features are split over b. Alpa's program has four all-reduces in all.
  EXPECT_EQ(found.in_loop, (std::map<std::string, int>{{"all-gather", 1}, {"reduce-scatter", 1}}));
  EXPECT_EQ(found.behind, (std::map<std::string, int>{{"all-reduce", 1}}));
}

TEST(GradientAccumulation, Zero2AccumulatesScatteredUnlessWholeFits) {
  PlanRequest request = {.micro_batches = {.num_micro_batches = 2},
                         .methods = {Method::kZero2},
                         .cost_model = AlpaCosts()};
  const auto scattered = PlanAndLower(Accumulating(), request, "a=1,b=4");
  ASSERT_TRUE(scattered.ok()) << Message(scattered.status());
  const std::string kernel = "gradient of params/layer_0/kernel";
  EXPECT_THAT(scattered->plan.accumulators.at(kernel),
              testing::AnyOf("sum f32[16,16] [b,-]", "sum f32[16,16] [-,b]"));
  request.memory_limit_bytes = int64_t{1} << 30;
  const auto partial = PlanAndLower(Accumulating(), request, "a=1,b=4");
  ASSERT_TRUE(partial.ok()) << Message(partial.status());
  EXPECT_EQ(partial->plan.accumulators.at(kernel), "sum f32[16,16] [-,-]{partial: b}");
  EXPECT_THAT(SynchronisationOf(*partial).in_loop, testing::IsEmpty());
}

// Row and column means of squares are sums over a split dimension: one combined all-reduce. Their
// cost is on top of what the gradients cost.
TEST(Zero2, AdafactorReadsScatteredGradients) {
  const auto traced =
      Trace(Mlp({.batch = 256, .hidden = 32, .num_layers = 6}), Adafactor({.min_factored_dim = 4}));
  ASSERT_TRUE(traced.ok()) << Message(traced.status());
  const auto planned = PlanAndLower(
      traced->step, {.methods = {Method::kZero2}, .cost_model = AlpaCosts()}, "a=4,b=1");
  ASSERT_TRUE(planned.ok()) << Message(planned.status());
  EXPECT_EQ(
      SynchronisationOf(*planned).behind,
      (std::map<std::string, int>{{"all-gather", 1}, {"all-reduce", 1}, {"reduce-scatter", 1}}));
}

TEST(GradientAccumulation, ManualShardingsHoldForMicroBatches) {
  const auto planned =
      PlanAndLower(Accumulating(),
                   {.micro_batches = {.num_micro_batches = 2},
                    .pins = {"params/layer_0/kernel=[-,model]", "params/layer_0/bias=[model]",
                             "params/layer_1/kernel=[model,-]", "params/layer_1/bias=[-]",
                             "x=[-,data,-]", "y=[-,data,-]"}},
                   "data=2,model=2");
  ASSERT_TRUE(planned.ok()) << Message(planned.status());
  std::map<std::string, std::string> local;
  const std::vector<std::string> shapes = planned->LocalParameters();
  for (size_t i = 0; i < shapes.size(); ++i) {
    local[planned->prepared.parameters[i].name] = shapes[i];
  }
  EXPECT_EQ(local["params/layer_0/kernel"], "f32[16,8]");
  EXPECT_EQ(local["params/layer_0/bias"], "f32[8]");
  EXPECT_EQ(local["params/layer_1/kernel"], "f32[8,16]");
  EXPECT_EQ(local["params/layer_1/bias"], "f32[16]");
  EXPECT_EQ(local["x"], "f32[2,64,16]");
}

}  // namespace
}  // namespace minka
