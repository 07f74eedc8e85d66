#include "minka/analysis/flops.h"

#include "gtest/gtest.h"
#include "minka/analysis/trip_count.h"
#include "minka/base/status.h"
#include "minka/ir/builder.h"

namespace minka {
namespace {

using ElementType::kF32;
using ElementType::kS32;
using Direction = CompareAttributes::Direction;

TEST(WorkOf, DotCountsMultiplicationsAndAdditions) {
  ModuleBuilder builder("m");
  ComputationBuilder b = builder.Entry();
  const Value x = b.Parameter({kF32, {2, 3, 5}}, "x");
  const Value y = b.Parameter({kF32, {2, 5, 7}}, "y");
  const Value dot = b.Dot(x, y, {{2}, {1}, {0}, {0}});
  b.SetResults({dot});
  const Module module = *std::move(builder).Finish();
  const InstructionWork work = WorkOf(module, module.entry_computation(), dot.instruction);
  EXPECT_EQ(work.flops, 2.0 * 2 * 3 * 5 * 7);
  EXPECT_EQ(work.elementwise, 0);
  EXPECT_EQ(work.bytes, 4 * (30 + 70 + 42));
}

TEST(WorkOf, ConvolutionsCountProductsWithElementsOnly) {
  ModuleBuilder builder("m");
  ComputationBuilder b = builder.Entry();
  const Value x = b.Parameter({kF32, {2, 4, 3}}, "x");
  const Value w = b.Parameter({kF32, {3, 3, 5}}, "w");
  ConvolutionAttributes a{.window = {{.size = 3, .padding_low = 1, .padding_high = 1}},
                          .input_batch = 0,
                          .input_feature = 2,
                          .kernel_input_feature = 1,
                          .kernel_output_feature = 2,
                          .output_batch = 0,
                          .output_feature = 2,
                          .input_spatial = {1},
                          .kernel_spatial = {0},
                          .output_spatial = {1}};
  const Value same = b.Convolution(x, w, a);
  a.window[0].base_dilation = 2;  // 7 positions, every second element a hole
  const Value spread = b.Convolution(x, w, a);
  const Value pooled =
      b.ReduceWindow(x, b.Scalar(kF32, 0), {{}, {.size = 2, .stride = 2}, {}}, Opcode::kAdd);
  b.SetResults({same, spread, pooled});
  const Module module = *std::move(builder).Finish();
  const auto work = [&](Value value) {
    return WorkOf(module, module.entry_computation(), value.instruction);
  };
  // Of 4 positions the outer two have 2 taps, the inner two 3.
  EXPECT_EQ(work(same).flops, 2.0 * 2 * 3 * 5 * 10);
  EXPECT_EQ(work(spread).flops, 2.0 * 2 * 3 * 5 * 10);
  EXPECT_EQ(work(pooled).elementwise, 2 * 4 * 3);
}

TEST(WorkOf, ElementwiseReductionsAndMovement) {
  ModuleBuilder builder("m");
  ComputationBuilder b = builder.Entry();
  const Value x = b.Parameter({kF32, {10, 100}}, "x");
  const Value tanh = b.Unary(Opcode::kTanh, x);
  const Value sum = b.Reduce(tanh, b.Scalar(kF32, 0), {1}, Opcode::kAdd);
  const Value row =
      b.DynamicSlice(x, std::vector<Value>{b.Scalar(kS32, 1), b.Scalar(kS32, 0)}, {1, 100});
  const Value flat = b.Reshape(row, {100});
  b.SetResults({sum, flat});
  const Module module = *std::move(builder).Finish();
  const auto work = [&](Value value) {
    return WorkOf(module, module.entry_computation(), value.instruction);
  };
  EXPECT_EQ(work(tanh).elementwise, 12 * 1000);
  EXPECT_EQ(work(tanh).transcendentals, 1000);
  EXPECT_EQ(work(sum).elementwise, 1000);
  EXPECT_EQ(work(sum).bytes, 4 * (1000 + 1 + 10));
  EXPECT_EQ(work(row).bytes, 2 * 400 + 8);  // not the whole table
  EXPECT_EQ(work(flat).bytes, 0);
}

struct LoopOptions {
  double start = 0, step = 1, bound = 10;
  Direction direction = Direction::kLt;
  Opcode opcode = Opcode::kAdd;
  bool carries_bound = false;
  bool swaps_comparison = false;
};

struct Loop {
  Module module;
  InstructionId id = -1;
};

// for (i = start; i ? bound; i += step) x = tanh(x), x of 100 elements.
Loop MakeLoop(const LoopOptions& options) {
  ModuleBuilder builder("m");
  const Shape scalar = {kS32, {}};
  ComputationBuilder body = builder.AddComputation("body");
  const Value i = body.Parameter(scalar, "i");
  const Value limit = body.Parameter(scalar, "limit");
  const Value x = body.Parameter({kF32, {100}}, "x");
  body.SetResults({body.Binary(options.opcode, i, body.Scalar(kS32, options.step)), limit,
                   body.Unary(Opcode::kTanh, x)});
  ComputationBuilder condition = builder.AddComputation("condition");
  const Value j = condition.Parameter(scalar, "i");
  Value bound = condition.Parameter(scalar, "limit");
  condition.Parameter({kF32, {100}}, "x");
  if (!options.carries_bound) bound = condition.Scalar(kS32, options.bound);
  condition.SetResults({options.swaps_comparison ? condition.Compare(options.direction, bound, j)
                                                 : condition.Compare(options.direction, j, bound)});
  ComputationBuilder b = builder.Entry();
  const Value data = b.Parameter({kF32, {100}}, "x");
  const Value loop =
      b.Append({.opcode = Opcode::kWhile,
                .operands = {b.Scalar(kS32, options.start), b.Scalar(kS32, options.bound), data},
                .called = {builder.id(body), builder.id(condition)}});
  b.SetResults({{loop.instruction, 2}});
  return {*std::move(builder).Finish(), loop.instruction};
}

std::optional<int64_t> Trips(const LoopOptions& options) {
  const Loop loop = MakeLoop(options);
  return TripCount(loop.module, loop.module.entry_computation(), loop.id);
}

TEST(TripCount, CounterPatterns) {
  EXPECT_EQ(Trips({}), 10);
  EXPECT_EQ(Trips({.start = 1, .step = 3}), 3);  // 1 4 7
  EXPECT_EQ(Trips({.direction = Direction::kLe}), 11);
  EXPECT_EQ(
      Trips({.start = 10, .bound = 0, .direction = Direction::kGt, .opcode = Opcode::kSubtract}),
      10);
  EXPECT_EQ(Trips({.start = 9, .step = -2, .bound = 0, .direction = Direction::kGe}), 5);
  EXPECT_EQ(Trips({.step = 2, .direction = Direction::kNe}), 5);
  EXPECT_EQ(Trips({.carries_bound = true}), 10);
  EXPECT_EQ(Trips({.direction = Direction::kGt, .swaps_comparison = true}), 10);
  EXPECT_EQ(Trips({.start = 20}), 0);
}

TEST(TripCount, UnknownOrEndlessLoopsHaveNone) {
  EXPECT_EQ(Trips({.step = -1}), std::nullopt);
  EXPECT_EQ(Trips({.step = 3, .direction = Direction::kNe}), std::nullopt);
  EXPECT_EQ(Trips({.opcode = Opcode::kMultiply}), std::nullopt);
}

TEST(WorkOf, LoopsCountByTripCount) {
  const Loop loop = MakeLoop({.bound = 7});
  const InstructionWork work = WorkOf(loop.module, loop.module.entry_computation(), loop.id);
  EXPECT_EQ(work.transcendentals, 700);
  EXPECT_EQ(work.elementwise, 7 * (12 * 100 + 1 + 1));  // tanh, the counter, the comparison
}

}  // namespace
}  // namespace minka
