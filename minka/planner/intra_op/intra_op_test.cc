#include "minka/planner/intra_op/intra_op.h"

#include <algorithm>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/analysis/structure.h"
#include "minka/base/check.h"
#include "minka/base/status.h"
#include "minka/cluster/cluster.h"
#include "minka/ir/builder.h"
#include "minka/ir/hlo_proto.h"
#include "minka/planner/intra_op/describe.h"
#include "minka/planner/intra_op/formulation.h"
#include "minka/planner/intra_op/testing/steps.h"
#include "minka/solver/model/evaluate.h"
#include "minka/solver/solve.h"

namespace minka {
namespace {

std::unique_ptr<CostModel> AlpaModel(const Mesh& mesh) {
  return *MakeAlpaCostModel(mesh, std::vector<double>(mesh.num_axes(), 1),
                            std::vector<double>(mesh.num_axes(), 1), false);
}

// Alpa's all-reduce over n devices.
double AllReduce(double bytes, double n) { return 1 + 2 * (n - 1) / n * bytes; }

SearchResult<IntraOpResult> PlanOn(const Step& step, const Mesh& mesh,
                                   IntraOpOptions options = {}) {
  options.search.gap = 0;
  options.search.num_threads = 1;
  return PlanMesh(WithStructure(step), mesh, *AlpaModel(mesh), options);
}

TEST(PlanMesh, LargeBatchesAreSplitAndGradientsReduced) {
  const Mesh mesh = *Mesh::Parse("data=4");
  const IntraOpResult result = *PlanOn(TwoLayerStep(1024, 32), mesh);
  EXPECT_NEAR(result.objective, 2 * AllReduce(4096, 4), 0.01);
  EXPECT_EQ(result.stop_reason, "optimal");
}

TEST(PlanMesh, LargeWeightsAreSplitByColumnThenRow) {
  const Mesh mesh = *Mesh::Parse("model=4");
  const Step step = TwoLayerStep(32, 256);
  const IntraOpResult result = *PlanOn(step, mesh);
  EXPECT_NEAR(result.objective, AllReduce(32 * 256 * 4, 4), 0.01);
  const std::vector<ParameterPlan> parameters = DescribeParameters(step, result.stage);
  EXPECT_EQ(ToString(parameters[0].sharding, mesh), "[-,model]");
  EXPECT_EQ(ToString(parameters[1].sharding, mesh), "[model,-]");
  EXPECT_EQ(parameters[0].labels, std::vector<std::string>{"operator"});
}

TEST(PlanMesh, DataParallelKeepsStateWholeAndCombinesTheGradients) {
  const Mesh mesh = *Mesh::Parse("data=4");
  const Step step = TwoLayerStep(32, 256);
  const IntraOpResult result = *PlanOn(step, mesh, {.method = Method::kData});
  EXPECT_NEAR(result.objective, 2 * AllReduce(256 * 256 * 4, 4), 0.01);
  const std::vector<PlannedCollective> collectives = ListCollectives(step.module, result.stage);
  ASSERT_EQ(collectives.size(), 1u);
  EXPECT_EQ(collectives[0].kind, "all-reduce");
  EXPECT_EQ(collectives[0].bytes, 2 * 256 * 256 * 4);
  const std::vector<ParameterPlan> parameters = DescribeParameters(step, result.stage);
  EXPECT_EQ(parameters[0].labels, std::vector<std::string>{"data"});
  EXPECT_EQ(ToString(parameters[2].sharding, mesh), "[data,-]");
  EXPECT_EQ(parameters[2].labels, std::vector<std::string>{"data"});
}

TEST(PlanMesh, TheSearchIsNeverSlowerThanAPlanByRules) {
  for (const char* shape : {"8", "2x4", "2x2x2"}) {
    const Mesh mesh = *Mesh::Parse(shape);
    for (const auto& [batch, width] : {std::pair(64, 64), {1024, 32}, {4096, 256}}) {
      const Step step = TwoLayerStep(batch, width);
      const double searched = PlanLocally(step, mesh, Method::kShard).stage.step_time_us;
      for (const Method method : {Method::kData, Method::kZero2, Method::kZero3}) {
        EXPECT_LE(searched, PlanLocally(step, mesh, method).stage.step_time_us)
            << shape << " " << batch << " " << MethodName(method);
      }
    }
  }
}

// Examples are split over the axis of four, so gradients are sums over it alone. All-reduces over
// all eight devices are measured to take less the more they carry.
TEST(PlanMesh, TheBoundHoldsWhereMeasuredTimesFallWithTheBytes) {
  const Mesh mesh = *Mesh::Parse("x=2,y=4");
  Calibration calibration{.num_devices = 8, .bytes_per_us = 1e6};
  for (const auto& [size, bytes, us] : {std::tuple(2, 4, 20.0),
                                        {2, 4096, 30.0},
                                        {4, 4, 20.0},
                                        {4, 4096, 30.0},
                                        {8, 16, 200.0},
                                        {8, 36, 100.0},
                                        {8, 4096, 101.0}}) {
    calibration.collectives.push_back({ReshardKind::kAllReduce, size, bytes, us});
    calibration.collectives.push_back({ReshardKind::kReduceScatter, size, bytes, us});
    calibration.collectives.push_back({ReshardKind::kAllGather, size, bytes, 1000 + us});
    calibration.collectives.push_back({ReshardKind::kAllToAll, size, bytes, 1000 + us});
  }
  const auto cost = MakeRooflineCostModel(Cluster::Local(8), mesh, &calibration);
  const IntraOpResult result =
      *PlanMesh(TwoLayerStep(4, 3), mesh, *cost,
                {.search = {.pins = {"x=[y,-]"}, .gap = 0, .num_threads = 1}});
  EXPECT_THAT(result.stage.reshards, testing::SizeIs(2));
  EXPECT_LE(result.lower_bound, result.objective);
  EXPECT_LE(result.gap, 1e-6);
}

// Where the compiler needs less than the search counts, a plan by rules fits that the search under
// the limit could not see. Its bound is not clamped to the plan's objective but said to be passed.
TEST(PlanMesh, APlanByRulesBelowTheBoundIsNamedAndBringsItsOwnBound) {
  const Mesh mesh = *Mesh::Parse("data=8");
  const Step step = TwoLayerStep(1024, 128);
  const auto cost = MakeRooflineCostModel(*Cluster::Preset("p3.16xlarge"), mesh);
  const IntraOpResult by_rules = *PlanMesh(
      step, mesh, *cost, {.method = Method::kData, .search = {.gap = 0, .num_threads = 1}});
  ASSERT_LT(by_rules.lower_bound, by_rules.objective);
  IntraOpOptions options{.search = {.gap = 0, .num_threads = 1}};
  options.search.memory_limit_bytes = by_rules.stage.peak_memory_bytes * 6 / 10;
  options.peak_memory_bytes = [](const StagePlan&) { return 1; };
  const IntraOpResult result = *PlanMesh(step, mesh, *cost, options);
  EXPECT_THAT(result.notes, testing::Contains(testing::StartsWith(
                                "method data has a plan that the search left out, below its "
                                "bound of ")));
  EXPECT_LE(result.lower_bound, by_rules.lower_bound);
  EXPECT_GE(result.gap, (result.objective - by_rules.lower_bound) / result.objective);
}

TEST(DescribeParameters, BatchInputsAreLabelledByTheirOwnDimensions) {
  ModuleBuilder module("dot");
  ComputationBuilder b = module.Entry();
  const Value x = b.Parameter({ElementType::kF32, {8, 16}}, "x");
  const Value w = b.Parameter({ElementType::kF32, {16, 32}}, "w");
  b.SetResults({b.Dot(x, w, {.lhs_contracting = {1}, .rhs_contracting = {0}})});
  const Step step = {.module = *std::move(module).Finish(),
                     .parameters = {{ParameterRole::kBatch, "x", -1, 0}, {.name = "w"}},
                     .results = {{.name = "y"}}};
  const Mesh mesh = *Mesh::Parse("data=2,model=4");
  const auto labels = [&](const std::vector<std::string>& pins) {
    const auto result = PlanOn(step, mesh, {.search = {.pins = pins}});
    MINKA_CHECK(result.ok(), "{}", Message(result.status()));
    std::vector<std::vector<std::string>> all;
    for (const ParameterPlan& parameter : DescribeParameters(step, result->stage)) {
      all.push_back(parameter.labels);
    }
    return all;
  };
  using Labels = std::vector<std::vector<std::string>>;
  EXPECT_EQ(labels({"x=[data,model]", "w=[model,-]"}),
            (Labels{{"data", "operator"}, {"data", "operator"}}));
  // What splits the columns of w does nothing to x.
  EXPECT_EQ(labels({"x=[data,-]", "w=[-,model]"}),
            (Labels{{"data", "idle"}, {"data", "operator"}}));
  // A whole input is cut where it is read.
  EXPECT_EQ(labels({"x=[-,-]", "y=[data,model]", "w=[-,model]"}),
            (Labels{{"data", "idle"}, {"data", "operator"}}));
}

// As JAX writes it: the dot gives the transposed gradient, which is transposed on the way to the
// update.
TEST(PlanMesh, TransposedGradientsAreCombined) {
  ModuleBuilder module("transposed_gradients");
  ComputationBuilder b = module.Entry();
  const Shape weight{ElementType::kF32, {32, 32}}, batch{ElementType::kF32, {1024, 32}};
  const Value w1 = b.Parameter(weight, "w1"), w2 = b.Parameter(weight, "w2");
  const Value x = b.Parameter(batch, "x"), y = b.Parameter(batch, "y");
  const auto updated = [&](Value w, Value l, Value r) {
    const Value gradient = b.Dot(l, r, {.lhs_contracting = {0}, .rhs_contracting = {0}});
    return b.Binary(Opcode::kSubtract, w, b.Transpose(gradient, {1, 0}));
  };
  b.SetResults({updated(w1, x, y), updated(w2, y, x)});
  Step step;
  step.module = *std::move(module).Finish();
  step.parameters = {{.role = ParameterRole::kState, .name = "w1", .state_result = 0},
                     {.role = ParameterRole::kState, .name = "w2", .state_result = 1},
                     {.role = ParameterRole::kBatch, .name = "x", .batch_dim = 0},
                     {.role = ParameterRole::kBatch, .name = "y", .batch_dim = 0}};
  step.results = {{ResultRole::kState, "w1"}, {ResultRole::kState, "w2"}};
  const IntraOpResult result = *PlanOn(step, *Mesh::Parse("data=4"), {.method = Method::kData});
  const std::vector<PlannedCollective> collectives = ListCollectives(step.module, result.stage);
  ASSERT_EQ(collectives.size(), 1u);
  EXPECT_EQ(collectives[0].num_values, 2);
}

// The mean and the mean square of the batch, which one rendezvous serves; what is made of them
// waits for both. A large gradient, which could meet them, does not make them wait.
TEST(PlanMesh, SmallSumsThatDoNotDependOnEachOtherAreCombined) {
  ModuleBuilder module("moments");
  ComputationBuilder b = module.Entry();
  const Value w = b.Parameter({ElementType::kF32, {32}}, "w");
  const Value x = b.Parameter({ElementType::kF32, {4096, 32}}, "x");
  const Value zero = b.Scalar(ElementType::kF32, 0);
  const auto sum = [&](Value v) { return b.Reduce(v, zero, {0}, Opcode::kAdd); };
  const Value first = sum(x), second = sum(b.Binary(Opcode::kMultiply, x, x));
  const Value scale = b.Binary(Opcode::kDivide, b.Unary(Opcode::kTanh, first), second);
  const Value scaled = b.Binary(Opcode::kMultiply, x, b.Broadcast(scale, {4096, 32}, {1}));
  const Value large = b.Parameter({ElementType::kF32, {1024, 1024}}, "large");
  const Value rows = b.Parameter({ElementType::kF32, {4096, 1024}}, "rows");
  const Value gradient = b.Dot(rows, rows, {.lhs_contracting = {0}, .rhs_contracting = {0}});
  b.SetResults(
      {b.Binary(Opcode::kSubtract, w, sum(scaled)), b.Binary(Opcode::kSubtract, large, gradient)});
  const Step step = WithStructure(
      {.module = *std::move(module).Finish(),
       .parameters = {{.role = ParameterRole::kState, .name = "w", .state_result = 0},
                      {.role = ParameterRole::kBatch, .name = "x", .batch_dim = 0},
                      {.role = ParameterRole::kState, .name = "large", .state_result = 1},
                      {.role = ParameterRole::kBatch, .name = "rows", .batch_dim = 0}},
       .results = {{ResultRole::kState, "w"}, {ResultRole::kState, "large"}}});
  const IntraOpResult result = PlanLocally(step, *Mesh::Parse("data=4"), Method::kData);
  std::vector<int> num_values;
  for (const PlannedCollective& collective : ListCollectives(step.module, result.stage)) {
    num_values.push_back(collective.num_values);
  }
  EXPECT_THAT(num_values, testing::UnorderedElementsAre(2, 1, 1));
}

TEST(PlanMesh, PinsHold) {
  const Mesh mesh = *Mesh::Parse("model=4");
  const Step step = TwoLayerStep(32, 256);
  const IntraOpResult result = *PlanOn(step, mesh, {.search = {.pins = {"params/*=[model,-]"}}});
  for (int i : {0, 1})
    EXPECT_EQ(ToString(DescribeParameters(step, result.stage)[i].sharding, mesh), "[model,-]");
  EXPECT_GT(result.objective, AllReduce(32 * 256 * 4, 4));
}

TEST(PlanMesh, PinsMayNameAxesOfOneDevice) {
  const Mesh mesh = *Mesh::Parse("data=1,model=4");
  const Step step = TwoLayerStep(32, 256);
  const Instruction& first_dot = step.module.entry_computation().instructions[3];
  ASSERT_EQ(first_dot.opcode, Opcode::kDot);
  const auto result =
      PlanOn(step, mesh,
             {.search = {.pins = {"params/*=[model,data]", first_dot.name + "=[data,model]"}}});
  ASSERT_TRUE(result.ok()) << Message(result.status());
  EXPECT_EQ(ToString(DescribeParameters(step, result->stage)[0].sharding, mesh), "[model,-]");
}

TEST(PlanMesh, PinsThatCannotWorkAreRefusedByName) {
  const Mesh mesh = *Mesh::Parse("model=4");
  const Step step = TwoLayerStep(32, 256);
  const auto message = [&](const std::string& pin) {
    return Message(PlanOn(step, mesh, {.search = {.pins = {pin}}}).status());
  };
  EXPECT_EQ(
      message("nothing/*=[model,-]"),
      "pin \"nothing/*\" names no parameter, result or operation; names look like \"params/w1\"");
  EXPECT_EQ(message("oops"), "pin \"oops\": expected GLOB=SHARDING, e.g. '*/kernel=[-,model]'");
  EXPECT_EQ(message("params/w1=[-,-]{partial: model}"),
            "pin \"params/w1=[-,-]{partial: model}\": what is pinned is complete, not partial");
  EXPECT_NE(message("params/w1=[model]").find("pin on params/w1"), std::string::npos);
}

TEST(PlanMesh, PinsThatDisagreeAreRefusedByName) {
  const Mesh mesh = *Mesh::Parse("model=4");
  const auto planned = PlanOn(TwoLayerStep(32, 256), mesh,
                              {.search = {.pins = {"params/*=[model,-]", "params/w2=[-,model]"}}});
  EXPECT_EQ(Message(planned.status()),
            "pins \"params/*=[model,-]\" and \"params/w2=[-,model]\" want params/w2 in different "
            "shardings");
}

TEST(PlanMesh, APinnedOperationIsKeptSo) {
  const Mesh mesh = *Mesh::Parse("model=4");
  const Step step = TwoLayerStep(1024, 32);
  const Computation& entry = step.module.entry_computation();
  const InstructionId first_dot = 3;
  ASSERT_EQ(entry.instructions[first_dot].opcode, Opcode::kDot);
  const IntraOpResult result = *PlanOn(
      step, mesh, {.search = {.pins = {entry.instructions[first_dot].name + "=[-,model]"}}});
  int moved = 0;
  for (InstructionId id = 0; id < entry.num_instructions(); ++id) {
    for (size_t i = 0; i < entry.instructions[id].operands.size(); ++i) {
      if (entry.instructions[id].operands[i] != Value{first_dot, 0}) continue;
      const int version = result.stage.ops[id].operand_versions[i];
      const Sharding sharding = VersionSharding(step.module, result.stage, {first_dot, 0}, version);
      moved += ToString(sharding, mesh) == "[-,model]";
    }
  }
  EXPECT_GT(moved, 0);
}

TEST(PlanMesh, EachResultOfAnOperationIsPinnedByItsNumber) {
  const Step step = *MakeStep(*ParseHloText(R"(HloModule sorted

less {
  p = f32[] parameter(0)
  q = f32[] parameter(1)
  r = s32[] parameter(2)
  s = s32[] parameter(3)
  ROOT c = pred[] compare(p, q), direction=LT
}

ENTRY main {
  keys = f32[8,64] parameter(0)
  values = s32[8,64] parameter(1)
  sorted = (f32[8,64], s32[8,64]) sort(keys, values), dimensions={1}, to_apply=less
  first = f32[8,64] get-tuple-element(sorted), index=0
  second = s32[8,64] get-tuple-element(sorted), index=1
  ROOT results = (f32[8,64], s32[8,64]) tuple(first, second)
}
)"),
                              {});
  const Mesh mesh = *Mesh::Parse("x=4");
  const Computation& entry = step.module.entry_computation();
  const auto lie = [&](std::vector<std::string> pins) {
    const auto result = PlanOn(step, mesh, {.search = {.pins = std::move(pins)}});
    MINKA_CHECK(result.ok(), "{}", Message(result.status()));
    std::vector<std::string> shardings;
    for (size_t i = 0; i < entry.results.size(); ++i) {
      shardings.push_back(ToString(VersionSharding(step.module, result->stage, entry.results[i],
                                                   result->stage.result_versions[i]),
                                   mesh));
    }
    return shardings;
  };
  using Shardings = std::vector<std::string>;
  EXPECT_EQ(lie({"sorted#0=[x,-]", "sorted#1=[-,x]"}), (Shardings{"[x,-]", "[-,x]"}));
  EXPECT_EQ(lie({"sorted#*=[-,x]"}), (Shardings{"[-,x]", "[-,x]"}));
  EXPECT_EQ(lie({"result.0=[-,x]", "result.1=[x,-]"}), (Shardings{"[-,x]", "[x,-]"}));
  EXPECT_EQ(Message(PlanOn(step, mesh, {.search = {.pins = {"sorted=[x,-]"}}}).status()),
            "pin \"sorted=[x,-]\": sorted has 2 results; pin each by its number: sorted#0");
  EXPECT_EQ(
      Message(PlanOn(step, mesh, {.search = {.pins = {"sorted#2=[x,-]"}}}).status()),
      "pin \"sorted#2\" names no parameter, result or operation; names look like \"parameter.0\"");
  EXPECT_EQ(
      Message(
          PlanOn(step, mesh, {.search = {.pins = {"sorted#1=[x,-]", "result.1=[-,x]"}}}).status()),
      "pin \"sorted#1=[x,-]\" wants sorted#1 otherwise than another pin, in [-,x]");
}

TEST(PlanMesh, LimitsKeepCollectivesOut) {
  const Mesh mesh = *Mesh::Parse("model=4");
  const Step step = TwoLayerStep(1024, 32);
  const auto kinds = [&](const IntraOpOptions& options) {
    std::set<std::string> found;
    for (const auto& collective :
         ListCollectives(step.module, PlanOn(step, mesh, options)->stage)) {
      found.insert(collective.kind);
    }
    return found;
  };
  const IntraOpOptions zero3 = {.method = Method::kZero3};
  EXPECT_EQ(kinds(zero3), (std::set<std::string>{"all-gather", "reduce-scatter"}));
  EXPECT_EQ(kinds({.method = Method::kZero3, .search = {.limits = {.no_all_gather = true}}})
                .count("all-gather"),
            0);
  EXPECT_EQ(kinds({.search = {.limits = {.no_replicated_parameters = true}}}).count("all-gather"),
            1);
  EXPECT_EQ(kinds({.search = {.limits = {.no_all_gather = true, .no_replicated_parameters = true}}})
                .count("all-gather"),
            0);
}

// Over the axis that gradients are summed over, and only there: no weight's new value is gathered
// for the sake of its optimizer state.
TEST(PlanMesh, PreferredReduceScattersMoveNoMoreBytesThanAllReduces) {
  const Mesh mesh = *Mesh::Parse("model=4");
  const auto kinds = [&](const Step& step) {
    const auto result = PlanOn(step, mesh, {.search = {.limits = {.prefer_reduce_scatter = true}}});
    std::vector<std::string> found;
    for (const auto& collective : ListCollectives(step.module, result->stage)) {
      found.push_back(collective.kind);
    }
    return found;
  };
  EXPECT_THAT(kinds(TwoLayerStep(1024, 32)),
              testing::UnorderedElementsAre("reduce-scatter", "all-gather"));
  EXPECT_THAT(kinds(TwoLayerStep(32, 256)), testing::ElementsAre("all-reduce"));
}

TEST(PlanMesh, ABatchAxisHoldsTheBatch) {
  const Mesh mesh = *Mesh::Parse("a=2,b=2");
  const Step step = TwoLayerStep(32, 256);
  const IntraOpResult result = *PlanOn(step, mesh, {.search = {.limits = {.batch_axis = "a"}}});
  EXPECT_TRUE(DescribeParameters(step, result.stage)[2].sharding.dims[0].axes().contains(0));
  EXPECT_EQ(Message(PlanOn(step, mesh, {.search = {.limits = {.batch_axis = "c"}}}).status()),
            "the batch is to lie on axis \"c\"; the mesh a=2,b=2 has no such axis");
}

// y [2 examples, 256 positions, 8] = x w: with two examples for four devices, positions are what
// can be split without sending anything.
TEST(PlanMesh, PositionsStayWholeWhereSequencesAreNotToBeSplit) {
  const Mesh mesh = *Mesh::Parse("a=4");
  ModuleBuilder module("positions");
  ComputationBuilder b = module.Entry();
  const Value w = b.Parameter({ElementType::kF32, {8, 8}}, "w");
  const Value x = b.Parameter({ElementType::kF32, {2, 256, 8}}, "x");
  const Value y = b.Dot(x, w, {.lhs_contracting = {2}, .rhs_contracting = {0}});
  b.SetResults({y});
  Step step;
  step.module = *std::move(module).Finish();
  step.parameters = {{.role = ParameterRole::kConstant, .name = "w"},
                     {.role = ParameterRole::kBatch, .name = "x", .batch_dim = 0}};
  step.results = {{ResultRole::kMetric, "y"}};
  step = WithStructure(std::move(step));
  const auto sharding_of_y = [&](const SearchLimits& limits) {
    const IntraOpResult result = *PlanOn(step, mesh, {.search = {.limits = limits}});
    return ToString(VersionSharding(step.module, result.stage, y, 0), mesh);
  };
  EXPECT_EQ(sharding_of_y({}), "[-,a,-]");
  EXPECT_EQ(sharding_of_y({.no_sequence_split = true}), "[-,-,a]");
  EXPECT_EQ(
      Message(PlanOn(step, mesh,
                     {.search = {.pins = {"x=[-,a,-]"}, .limits = {.no_sequence_split = true}}})
                  .status()),
      "pin \"x=[-,a,-]\" and --no-sequence-split disagree: the pin splits dimension 1 of x, "
      "which lies within examples; drop one of them");
}

TEST(PlanMesh, OptionsThatContradictEachOtherAreRefusedByName) {
  const Mesh mesh = *Mesh::Parse("a=2,b=2");
  const Step step = TwoLayerStep(32, 256);
  const auto message = [&](const IntraOpOptions& options) {
    return Message(PlanOn(step, mesh, options).status());
  };
  EXPECT_EQ(message({.method = Method::kData, .search = {.limits = {.batch_axis = "a"}}}),
            "method data splits the batch over all axes of the mesh a=2,b=2, --batch-axis over a "
            "alone; drop --batch-axis, or search with method shard");
  EXPECT_EQ(
      message({.method = Method::kZero2, .search = {.limits = {.no_replicated_parameters = true}}}),
      "method zero2 keeps parameters whole on every device, which --no-replicated-parameters "
      "forbids; drop the flag, or take method zero3 or shard");
  EXPECT_EQ(
      message({.method = Method::kData, .search = {.limits = {.prefer_reduce_scatter = true}}}),
      "method data keeps the optimizer's state whole, --prefer-reduce-scatter splits it; drop the "
      "flag, or take method zero2 or shard");
  EXPECT_EQ(message({.method = Method::kData, .search = {.pins = {"x=[a,-]"}}}),
            "pin \"x=[a,-]\" and method data disagree: the method splits the batch over all "
            "devices, x as [a+b,-]; drop the pin, or search with method shard");
  for (const std::string pin : {"x=[b,-]", "x=[-,a]", "x=[a+b,-]"}) {
    EXPECT_EQ(message({.search = {.pins = {pin}, .limits = {.batch_axis = "a"}}}),
              "pin \"" + pin +
                  "\" and --batch-axis a disagree: the pin does not split the dimension of x that "
                  "counts examples over that axis and no other; drop one of them");
  }
  EXPECT_EQ(message({.search = {.pins = {"x=[a,b]"}, .limits = {.batch_axis = "a"}}}), "");
  const std::string dot = step.module.entry_computation().instructions[3].name;
  EXPECT_THAT(message({.search = {.pins = {dot + "=[b,-]"}, .limits = {.batch_axis = "a"}}}),
              testing::HasSubstr("does not split the dimension of " + dot + " that counts"));
  EXPECT_EQ(message({.search = {.pins = {"params/*=[-,-]"},
                                .limits = {.no_replicated_parameters = true}}}),
            "pin \"params/*=[-,-]\" and --no-replicated-parameters disagree: the pin keeps "
            "params/w1 whole; drop one of them");
  EXPECT_EQ(
      Message(PlanOn(TwoLayerStep(33, 256), mesh, {.search = {.limits = {.batch_axis = "a"}}})
                  .status()),
      "--batch-axis a: its 2 devices do not divide dimension 0 of x f32[33,256], which counts "
      "examples; change the batch, the number of micro-batches or the mesh, or drop "
      "--batch-axis");
}

TEST(PlanMesh, NotesNameDimensionsThatAnAxisDoesNotDivide) {
  const Step step = TwoLayerStep(33, 30);
  EXPECT_THAT(
      PlanOn(step, *Mesh::Parse("a=2,b=4"))->notes,
      testing::ElementsAre(
          "dimension 0 of params/w1 f32[30,30] stays whole along b=4: 30 is not divisible; nor are "
          "4 more of that size",
          "dimension 0 of x f32[33,30] stays whole along a=2 and b=4: 33 is not divisible"));
  EXPECT_THAT(PlanOn(step, *Mesh::Parse("a=3,b=1"))->notes, testing::IsEmpty());
}

// A pin that the method would not have forces gathers on which the search puts a thousandfold
// price.
TEST(PlanMesh, PenaltiesAreNoPartOfObjectiveAndBound) {
  const Mesh mesh = *Mesh::Parse("data=4");
  const auto result = PlanOn(TwoLayerStep(1024, 32), mesh,
                             {.method = Method::kData, .search = {.pins = {"*/w1=[-,data]"}}});
  ASSERT_TRUE(result.ok()) << Message(result.status());
  double collectives = 0;
  for (const Reshard& reshard : result->stage.reshards) collectives += reshard.cost_us;
  EXPECT_NEAR(result->objective, collectives, 0.01);
  EXPECT_NEAR(result->lower_bound, result->objective, 0.01);
  EXPECT_THAT(
      result->notes,
      testing::ElementsAre(
          "pin \"*/w1=[-,data]\": params/w1 lies not as method data would have it",
          "method data avoids gathers and moves that this plan cannot do without; what the search "
          "charges for them beyond their time is in neither objective nor bound"));
}

TEST(PlanMesh, AMemoryLimitMovesStateApartAndIsKept) {
  const Mesh mesh = *Mesh::Parse("data=4");
  const Step step = TwoLayerStep(1024, 64);
  const IntraOpResult free = *PlanOn(step, mesh);
  const int64_t limit = free.stage.peak_memory_bytes * 9 / 10;
  const IntraOpResult tight = *PlanOn(step, mesh, {.search = {.memory_limit_bytes = limit}});
  EXPECT_LE(tight.stage.peak_memory_bytes, limit);
  EXPECT_GE(tight.objective, free.objective);
  EXPECT_GE(tight.objective, tight.lower_bound);
}

// The bound is one of plans that hold no more, so the free one need not keep it.
TEST(PlanMesh, APriceOfMemoryMovesStateApart) {
  const Mesh mesh = *Mesh::Parse("data=4");
  const Step step = TwoLayerStep(1024, 64);
  const IntraOpResult free = *PlanOn(step, mesh);
  IntraOpOptions options{.search = {.memory_limit_bytes = int64_t{1} << 40}};
  int64_t held = free.stage.peak_memory_bytes;
  for (const double price : {1e-6, 1e3}) {
    options.memory_price = {.us_per_byte = price};
    const auto priced = PlanOn(step, mesh, options);
    ASSERT_TRUE(priced.ok()) << Message(priced.status());
    EXPECT_LE(priced->stage.peak_memory_bytes, held);
    held = priced->stage.peak_memory_bytes;
    EXPECT_GE(priced->objective, free.objective * (1 - 1e-9));
    EXPECT_GE(priced->objective, priced->lower_bound);
    EXPECT_NEAR(priced->gap, 0, 0.01) << price;
    if (price < 1) {
      EXPECT_NEAR(priced->objective, free.objective, 1e-3 * free.objective);
    }
  }
  EXPECT_LT(held, 0.6 * static_cast<double>(free.stage.peak_memory_bytes));
}

TEST(PlanMesh, AnImpossibleLimitNamesOneThatWorks) {
  const std::string message = Message(PlanOn(TwoLayerStep(1024, 64), *Mesh::Parse("data=4"),
                                             {.search = {.memory_limit_bytes = 100}})
                                          .status());
  EXPECT_EQ(
      message.find("no plan fits into 100 bytes per device; the smallest limit known to work is "),
      0u)
      << message;
}

TEST(PlanMesh, WhatNeedsLeastIsTakenWhereAsked) {
  const Mesh mesh = *Mesh::Parse("data=4");
  const Step step = TwoLayerStep(1024, 64);
  const IntraOpResult free = *PlanOn(step, mesh);
  const auto least =
      PlanOn(step, mesh, {.search = {.memory_limit_bytes = 100}, .takes_least = true});
  ASSERT_TRUE(least.ok()) << Message(least.status());
  EXPECT_LT(least->stage.peak_memory_bytes, free.stage.peak_memory_bytes);
  EXPECT_GT(least->stage.peak_memory_bytes, 100);
  EXPECT_EQ(least->stop_reason, "least_memory");
  EXPECT_EQ(least->lower_bound, 0);
}

TEST(Formulation, WhatIsFilledIsMadeAsItIsWanted) {
  const Module module = ParseHloText(R"(HloModule m
ENTRY e {
  batch = f32[64,64] parameter(0)
  nought = f32[] constant(0)
  zeros = f32[64,64] broadcast(nought), dimensions={}
  ROOT largest = f32[64,64] maximum(batch, zeros)
}
)")
                            .value();
  const Step step = WithStructure(MakeStep(module, {}).value());
  const Mesh mesh = *Mesh::Parse("x=2,y=2");
  const std::unique_ptr<CostModel> cost = AlpaModel(mesh);
  const IntraOpOptions options;
  const StepFacts facts(step, cost->platform());
  ChoiceTables tables = *EnumerateChoices(step, mesh, cost->forbids_replicated_dots(), options);
  ReshardCosts reshards(mesh, *cost, tables.shardings);
  const Formulation formulation = Formulate(facts, tables, reshards, mesh, *cost, options);
  const Computation& entry = step.module.entry_computation();
  const auto of = [&](const std::string& name) {
    return std::ranges::find(entry.instructions, name, &Instruction::name) -
           entry.instructions.begin();
  };
  int num_forbidden = 0, num_paid = 0;
  for (const ProblemEdge& edge : formulation.problem.edges()) {
    for (const int64_t cell : formulation.problem.table(edge.table).cells) {
      if (edge.a == formulation.operations[of("zeros")]) {
        EXPECT_TRUE(cell == 0 || cell == kForbidden) << cell;
        num_forbidden += cell == kForbidden ? 1 : 0;
      }
      if (edge.a == formulation.operations[of("batch")]) num_paid += cell > 0 ? 1 : 0;
    }
  }
  EXPECT_GT(num_forbidden, 0);
  EXPECT_GT(num_paid, 0);
}

// The bound comes from the solver, on the problem that is evaluated here by other code: any other
// choice costs at least as much, and a worse one shows as a larger gap.
TEST(Formulation, PerturbingTheAnswerOnlyWidensTheGap) {
  const Mesh mesh = *Mesh::Parse("data=2,model=2");
  const Step step = TwoLayerStep(64, 64);
  const auto cost = AlpaModel(mesh);
  const StepFacts facts(step);
  const IntraOpOptions options;
  ChoiceTables tables = *EnumerateChoices(step, mesh, true, options);
  ReshardCosts reshards(mesh, *cost, tables.shardings);
  const Formulation formulation = Formulate(facts, tables, reshards, mesh, *cost, options);
  const SolveResult solved = *Solve(formulation.problem, {.gap = 0});
  ASSERT_EQ(solved.status, SolveStatus::kOptimal);
  int dearer = 0;
  for (NodeId node = 0; node < formulation.problem.num_nodes(); ++node) {
    std::vector<int32_t> choice = solved.choice;
    choice[node] = (choice[node] + 1) % formulation.problem.num_choices(node);
    const Evaluation evaluation = *Evaluate(formulation.problem, choice);
    if (evaluation.num_forbidden > 0) continue;
    EXPECT_GE(evaluation.cost, solved.lower_bound);
    dearer += evaluation.cost > solved.cost;
  }
  EXPECT_GT(dearer, 5);
}

}  // namespace
}  // namespace minka
