#include "minka/planner/intra_op/op_costs.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/ir/builder.h"

namespace minka {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

using ElementType::kF32, ElementType::kS32;
constexpr double kLaunch = 1e6, kCollective = 1e9;

// Bytes, and what tells launches and collectives from them.
class CountingCosts : public CostModel {
 public:
  explicit CountingCosts(double cache_bytes = 0, Platform platform = Platform::kCpu)
      : cache_bytes_(cache_bytes), platform_(platform) {}
  Platform platform() const override { return platform_; }
  std::string name() const override { return "counting"; }
  double Collective(const StepWork& work, ElementType) const override {
    return kCollective + static_cast<double>(work.local_bytes);
  }
  double Latency(ReshardKind, AxisSet) const override { return kCollective; }
  double Operation(const LocalWork& work) const override {
    const double bytes = static_cast<double>(work.bytes);
    return (work.launches ? kLaunch : 0) + (1 - work.cached_part) * bytes;
  }
  double cache_bytes() const override { return cache_bytes_; }
  bool shares_latency() const override { return true; }
  bool forbids_replicated_dots() const override { return false; }

 private:
  const double cache_bytes_;  // bytes in the caches count nothing
  const Platform platform_;
};

// The price of an operation of the entry computation, unsplit unless `use` splits it over all
// devices.
double PriceOf(const Module& module, InstructionId id, AxisUse use = {},
               const CountingCosts& cost = CountingCosts()) {
  const Mesh mesh = *Mesh::Parse("x=4");
  const PricedComputation entry(module, module.entry_computation(), cost);
  const OpRule rule = RuleFor(module, entry.computation, id);
  const std::vector<CalledPlan> called = PlanCalledBy(module, module.entry_computation(), id, rule,
                                                      {{use}}, mesh, cost.called_prices());
  return OperationPrices(module, mesh, cost).Price(entry, id, rule, {{use}}, called);
}

// A module of a loop and nothing else, whose result it is.
Module OnlyLoop(ModuleBuilder& module, const ComputationBuilder& body,
                const ComputationBuilder& condition, ComputationBuilder& entry,
                std::vector<Value> carried, int result) {
  Instruction loop;
  loop.opcode = Opcode::kWhile;
  loop.name = "scan";
  loop.operands = std::move(carried);
  loop.called = {module.id(body), module.id(condition)};
  entry.SetResults({{entry.Append(loop).instruction, result}});
  return *std::move(module).Finish();
}

// for i in [0, trips): out[i] = 2 table[i]
Module ScanOverRows(std::optional<int64_t> trips) {
  ModuleBuilder module("scan");
  ComputationBuilder b = module.Entry();
  const Shape table{kF32, {10, 64}}, count{kS32, {}};
  ComputationBuilder body = module.AddComputation("body");
  const Value i = body.Parameter(count, "i");
  const Value rows = body.Parameter(table, "table");
  const Value out = body.Parameter(table, "out");
  const Value limit = body.Parameter(count, "limit");
  const Value starts[] = {i, body.Scalar(kS32, 0)};
  const Value row = body.DynamicSlice(rows, starts, {1, 64});
  body.SetResults({body.Binary(Opcode::kAdd, i, body.Scalar(kS32, 1)), rows,
                   body.DynamicUpdateSlice(out, body.Binary(Opcode::kAdd, row, row), starts),
                   limit});
  ComputationBuilder condition = module.AddComputation("condition");
  const Value j = condition.Parameter(count, "i");
  condition.Parameter(table, "table");
  condition.Parameter(table, "out");
  const Value last = condition.Parameter(count, "limit");
  condition.SetResults({condition.Compare(CompareAttributes::Direction::kLt, j, last)});
  std::vector<Value> carried = {
      b.Scalar(kS32, 0), b.Parameter(table, "table"), b.Parameter(table, "out"),
      trips ? b.Scalar(kS32, static_cast<double>(*trips)) : b.Parameter(count, "n")};
  return OnlyLoop(module, body, condition, b, std::move(carried), 2);
}

InstructionId LoopOf(const Module& module) {
  const Computation& entry = module.entry_computation();
  for (InstructionId id = 0; id < entry.num_instructions(); ++id) {
    if (entry.instructions[id].opcode == Opcode::kWhile) return id;
  }
  return -1;
}

TEST(OperationPrices, ATripReadsAndWritesARowAndLaunchesItsGroups) {
  constexpr double kRow = 64 * 4, kCount = 4, kPredicate = 1;
  // One group slices, adds and updates in place; each of two reads i. i + 1 is another one, as is
  // the comparison.
  const double turn = 3 * kLaunch + 2 * (kRow + kCount) + 2 * kCount + (2 * kCount + kPredicate);
  for (const int64_t trips : {1, 10}) {
    const Module module = ScanOverRows(trips);
    EXPECT_EQ(PriceOf(module, LoopOf(module)), static_cast<double>(trips) * turn);
    EXPECT_THAT(NotesOnTrips(module), IsEmpty());
  }
}

// x tanh(x) in one group, for which a processor's loop reads x twice, and a tanh of it beside.
TEST(OperationPrices, AKernelReadsAValueOnceAndHidesArithmetic) {
  ModuleBuilder builder("m");
  ComputationBuilder b = builder.Entry();
  const Value x = b.Parameter({kF32, {64}}, "x");
  const Value tanh = b.Unary(Opcode::kTanh, x);
  const Value product = b.Binary(Opcode::kMultiply, x, tanh);
  b.SetResults({product});
  const Module module = *std::move(builder).Finish();
  constexpr double kBytes = 64 * 4;
  const auto price = [&](Platform platform) {
    const CountingCosts cost(0, platform);
    return PriceOf(module, tanh.instruction, {}, cost) +
           PriceOf(module, product.instruction, {}, cost);
  };
  EXPECT_EQ(price(Platform::kCpu), kLaunch + 3 * kBytes);
  EXPECT_EQ(price(Platform::kCuda), kLaunch + 2 * kBytes);
  const Mesh mesh = *Mesh::Parse("1");
  const auto gpu = MakeRooflineCostModel(Cluster::Preset("dgx-h100:1x1").value(), mesh);
  const PricedComputation priced(module, module.entry_computation(), *gpu);
  EXPECT_EQ(priced.VisibleArithmetic(tanh.instruction), 0);
  const auto cpu = MakeRooflineCostModel(Cluster::Local(1), mesh);
  EXPECT_EQ(PricedComputation(module, module.entry_computation(), *cpu)
                .VisibleArithmetic(tanh.instruction),
            1);
}

// A product that two loops read is computed in both; a GPU's kernels hide it.
TEST(OperationPrices, WhatIsRepeatedIsComputedSoOften) {
  ModuleBuilder builder("m");
  ComputationBuilder b = builder.Entry();
  const Value x = b.Parameter({kF32, {64}}, "x");
  const Value product = b.Binary(Opcode::kMultiply, x, x);
  const Value tanh = b.Unary(Opcode::kTanh, product), exp = b.Unary(Opcode::kExponential, product);
  b.SetResults({tanh, exp});
  const Module module = *std::move(builder).Finish();
  const auto priced = [&](Platform platform) {
    return PricedComputation(module, module.entry_computation(), CountingCosts(0, platform));
  };
  const PricedComputation cpu = priced(Platform::kCpu);
  EXPECT_EQ(cpu.NumCopies(product.instruction), 2);
  EXPECT_EQ(cpu.NumCopies(tanh.instruction), 1);
  EXPECT_EQ(priced(Platform::kCuda).NumCopies(product.instruction), 1);
}

// for i in [0, 10): sum += weights weights
Module ScanOfProducts() {
  ModuleBuilder module("scan");
  ComputationBuilder b = module.Entry();
  const Shape square{kF32, {64, 64}}, count{kS32, {}};
  ComputationBuilder body = module.AddComputation("body");
  const Value i = body.Parameter(count, "i");
  const Value weights = body.Parameter(square, "weights");
  const Value sum = body.Parameter(square, "sum");
  const Value product =
      body.Dot(weights, weights, {.lhs_contracting = {1}, .rhs_contracting = {0}});
  body.SetResults({body.Binary(Opcode::kAdd, i, body.Scalar(kS32, 1)), weights,
                   body.Binary(Opcode::kAdd, sum, product)});
  ComputationBuilder condition = module.AddComputation("condition");
  const Value j = condition.Parameter(count, "i");
  condition.Parameter(square, "weights");
  condition.Parameter(square, "sum");
  condition.SetResults(
      {condition.Compare(CompareAttributes::Direction::kLt, j, condition.Scalar(kS32, 10))});
  std::vector<Value> carried = {b.Scalar(kS32, 0), b.Parameter(square, "weights"),
                                b.Parameter(square, "sum")};
  return OnlyLoop(module, body, condition, b, std::move(carried), 2);
}

// A turn touches the weights, which it reads twice, their product, and the sum, which it reads and
// writes.
TEST(OperationPrices, TurnsThatFitInTheCachesFindTheirBytesThere) {
  constexpr double kSquare = 64 * 64 * 4, kCount = 4, kTouched = 3 * kSquare + kCount;
  constexpr double kTrips = 10, kRead = 6 * kSquare + 2 * kCount, kLaunches = 3 * kLaunch;
  constexpr double kCondition = kLaunch + kCount + 1;  // always in the caches
  const Module module = ScanOfProducts();
  const auto price = [&](double cache_bytes) {
    return PriceOf(module, LoopOf(module), {}, CountingCosts(cache_bytes));
  };
  EXPECT_EQ(price(0), kTrips * (kLaunches + kRead + kCondition));
  EXPECT_EQ(price(kTouched), kTrips * (kLaunches + kLaunch));
  EXPECT_EQ(price(kTouched / 2), kTrips * (kLaunches + kRead + kLaunch));
  const double between = price(kTouched / std::sqrt(2));
  EXPECT_NEAR(between, kTrips * (kLaunches + kRead / 2 + kLaunch), 1e-3);
}

// Rows of what is given and written, not all of it.
TEST(OperationPrices, TurnsTouchRowsOfTables) {
  constexpr double kRow = 64 * 4, kCount = 4, kTouched = 2 * kRow + kCount;
  const Module module = ScanOverRows(10);
  const auto price = [&](double cache_bytes) {
    return PriceOf(module, LoopOf(module), {}, CountingCosts(cache_bytes));
  };
  EXPECT_EQ(price(kTouched), 30 * kLaunch);
  EXPECT_EQ(price(kTouched / 2), 30 * kLaunch + 10 * (2 * (kRow + kCount) + 2 * kCount));
}

TEST(OperationPrices, ALoopOfUnknownTripsCostsOneTurnAndANote) {
  const Module unknown = ScanOverRows(std::nullopt);
  const Module once = ScanOverRows(1);
  EXPECT_EQ(PriceOf(unknown, LoopOf(unknown)), PriceOf(once, LoopOf(once)));
  EXPECT_THAT(NotesOnTrips(unknown),
              ElementsAre(HasSubstr("scan runs is not known; its time is that of one turn")));
}

// Costs are the bytes that are transposed, and a launch more where another dimension is put last.
class TransposedBytes : public CountingCosts {
 public:
  double Operation(const LocalWork& work) const override {
    return static_cast<double>(work.transposed_bytes) + (work.puts_other_dim_last ? kLaunch : 0);
  }
};

TEST(OperationPrices, TranspositionsSayHowMuchTheyMoveAndWhichWay) {
  const auto transposed = [](const std::vector<int64_t>& dims,
                             const std::vector<int64_t>& permutation) {
    ModuleBuilder module("transpose");
    ComputationBuilder b = module.Entry();
    const Value result = b.Transpose(b.Parameter({kF32, dims}, "x"), permutation);
    b.SetResults({result});
    return PriceOf(*std::move(module).Finish(), result.instruction, {}, TransposedBytes());
  };
  EXPECT_EQ(transposed({8, 4, 16}, {1, 0, 2}), 8 * 4 * 16 * 4);
  EXPECT_EQ(transposed({8, 16}, {1, 0}), 8 * 16 * 4 + kLaunch);
  EXPECT_EQ(transposed({1, 4, 16}, {1, 0, 2}), 0);
  EXPECT_EQ(transposed({1, 4, 16}, {1, 2, 0}), 0);
}

TEST(OperationPrices, DotsTransposeOperandsThatAreNoMatrices) {
  ModuleBuilder module("dot");
  ComputationBuilder b = module.Entry();
  // Heads between positions and features, as attention has them; and a matrix for each head.
  const Value queries = b.Parameter({kF32, {10, 3, 8}}, "queries");
  const Value keys = b.Parameter({kF32, {3, 10, 8}}, "keys");
  const Value scores =
      b.Dot(queries, keys,
            {.lhs_contracting = {2}, .rhs_contracting = {2}, .lhs_batch = {1}, .rhs_batch = {0}});
  b.SetResults({scores});
  EXPECT_EQ(PriceOf(*std::move(module).Finish(), scores.instruction, {}, TransposedBytes()),
            10 * 3 * 8 * 4);
}

TEST(OperationPrices, ScattersAndLookUpsTouchRowsOfATable) {
  ModuleBuilder module("look_up");
  ComputationBuilder b = module.Entry();
  const Value table = b.Parameter({kF32, {1000, 64}}, "table");
  const Value starts[] = {b.Parameter({kS32, {}}, "i"), b.Parameter({kS32, {}}, "j")};
  const Value rows = b.DynamicSlice(table, starts, {8, 64});
  const Value dense = b.Dot(rows, b.Parameter({kF32, {64, 64}}, "w"),
                            {.lhs_contracting = {1}, .rhs_contracting = {0}});
  b.SetResults({b.DynamicUpdateSlice(table, dense, starts)});
  const Module built = *std::move(module).Finish();
  constexpr double kRows = 8 * 64 * 4, kWeights = 64 * 64 * 4, kStarts = 8;
  EXPECT_EQ(PriceOf(built, rows.instruction), kLaunch + 2 * kRows + kStarts);
  EXPECT_EQ(PriceOf(built, dense.instruction), kLaunch + 2 * kRows + kWeights);
  EXPECT_EQ(PriceOf(built, built.entry_computation().results[0].instruction),
            kLaunch + 2 * kRows + kStarts);
}

// Remembers what it was asked for last.
class RememberingCosts final : public CountingCosts {
 public:
  double Operation(const LocalWork& work) const override {
    last = work;
    return 0;
  }
  mutable LocalWork last;
};

// What one of four devices does of a convolution of 16 inputs and outputs, whole groups each.
LocalWork WorkOfConvolution(int64_t groups) {
  ModuleBuilder module("convolution");
  ComputationBuilder b = module.Entry();
  const Value x = b.Parameter({kF32, {2, 10, 16}}, "x");
  const Value kernel = b.Parameter({kF32, {3, 16 / groups, 16}}, "kernel");
  const Value y = b.Convolution(x, kernel,
                                {.window = {{.size = 3, .padding_low = 1, .padding_high = 1}},
                                 .input_feature = 2,
                                 .kernel_input_feature = 1,
                                 .kernel_output_feature = 2,
                                 .output_feature = 2,
                                 .input_spatial = {1},
                                 .kernel_spatial = {0},
                                 .output_spatial = {1},
                                 .feature_group_count = groups});
  b.SetResults({y});
  const Module built = *std::move(module).Finish();
  const OpRule rule = RuleFor(built, built.entry_computation(), y.instruction);
  const auto group = std::ranges::find(rule.factors, "group", &Factor::name);
  const RememberingCosts cost;
  PriceOf(built, y.instruction,
          {.kind = AxisUse::Kind::kFactor, .index = static_cast<int>(group - rule.factors.begin())},
          cost);
  return cost.last;
}

TEST(OperationPrices, WhatViewsShowIsWrittenOnce) {
  ModuleBuilder module("views");
  ComputationBuilder b = module.Entry();
  const Value x = b.Parameter({kF32, {8, 8}}, "x");
  const Value scaled = b.Unary(Opcode::kTanh, x);
  const Value rows = b.Reshape(scaled, {4, 16}), columns = b.Reshape(scaled, {16, 4});
  const Value of_x = b.Reshape(x, {16, 4});
  b.SetResults({b.Dot(rows, columns, {{1}, {0}}), b.Dot(of_x, rows, {{1}, {0}})});
  const Module built = *std::move(module).Finish();
  EXPECT_EQ(PriceOf(built, scaled.instruction), kLaunch + 2 * 256);
  for (const Value view : {rows, columns, of_x}) EXPECT_EQ(PriceOf(built, view.instruction), 0);
}

// The loop of micro-batches reads a term and what was summed before, and writes the sum.
TEST(OperationPrices, ASumOverMicroBatchesIsReadAndWritten) {
  ModuleBuilder module("sum");
  ComputationBuilder b = module.Entry();
  const Value term = b.Parameter({kF32, {64}}, "term");
  const Value copy = b.Unary(Opcode::kCopy, term);
  b.SetPart({.loop = LoopRole::kSum});
  const Value sum = b.Unary(Opcode::kCopy, term);
  b.SetResults({copy, sum});
  const Module built = *std::move(module).Finish();
  EXPECT_EQ(PriceOf(built, copy.instruction), kLaunch + 2 * 256);
  EXPECT_EQ(PriceOf(built, sum.instruction), kLaunch + 3 * 256);
}

// Arithmetic takes the place of an operand that nobody reads behind it, or of the parameter that it
// is returned for; what a program is given, and what is read again, stays.
TEST(OperationPrices, ResultsTakeThePlaceOfWhatIsReadForTheLastTime) {
  ModuleBuilder module("m");
  ComputationBuilder b = module.Entry();
  const Value given = b.Parameter({kF32, {64}}, "given");
  const Value state = b.Parameter({kF32, {64}}, "state");
  const Value dot = b.Dot(b.Reshape(given, {8, 8}), b.Reshape(given, {8, 8}), {{1}, {0}});
  const Value first = b.Unary(Opcode::kTanh, dot);
  const Value product = b.Dot(first, first, {{1}, {0}});
  const Value second = b.Unary(Opcode::kTanh, dot);
  const Value third = b.Unary(Opcode::kTanh, product);
  const Value of_given = b.Unary(Opcode::kTanh, given);
  const Value new_state = b.Unary(Opcode::kTanh, state);
  const Value of_result = b.Unary(Opcode::kExponential, third);
  const Value turned = b.Transpose(b.Dot(first, first, {{1}, {0}}), std::vector<int64_t>{1, 0});
  const Value of_turned = b.Unary(Opcode::kTanh, turned);
  b.SetResults({second, third, of_given, new_state, of_result, of_turned});
  module.AddAlias({.result = 3, .parameter = 1});
  const Module built = *std::move(module).Finish();
  const auto fresh_bytes = [&](Value value) {
    const RememberingCosts cost;
    PriceOf(built, value.instruction, {}, cost);
    return cost.last.fresh_bytes;
  };
  EXPECT_EQ(fresh_bytes(dot), 256);
  EXPECT_EQ(fresh_bytes(first), 256) << "the second one reads it again";
  EXPECT_EQ(fresh_bytes(second), 0);
  EXPECT_EQ(fresh_bytes(third), 0);
  EXPECT_EQ(fresh_bytes(of_given), 256);
  EXPECT_EQ(fresh_bytes(new_state), 0);
  EXPECT_EQ(fresh_bytes(of_result), 256) << "what it reads is returned, too";
  EXPECT_EQ(fresh_bytes(of_turned), 256) << "elements are read where others are written";
}

TEST(OperationPrices, OnlyConvolutionsThatRunDepthwiseArePricedSo) {
  const LocalWork depthwise = WorkOfConvolution(16);
  EXPECT_TRUE(depthwise.is_depthwise);
  EXPECT_THAT(depthwise.dot_sizes, ElementsAre(4, 20, 1, 3));
  const LocalWork grouped = WorkOfConvolution(8);
  EXPECT_FALSE(grouped.is_depthwise);
  // Of the window's three positions, the padded ones are not counted: 28 of 30.
  EXPECT_THAT(grouped.dot_sizes, ElementsAre(2, 20, 2, 5));
}

}  // namespace
}  // namespace minka
