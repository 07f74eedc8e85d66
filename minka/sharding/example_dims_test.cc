#include "minka/sharding/example_dims.h"

#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/ir/builder.h"

namespace minka {
namespace {

using ::testing::IsEmpty;

using ElementType::kF32;

// x [4 examples, 8 positions, 16] times w [16, 32], and the gradient of w.
struct Layer {
  Layer() {
    ModuleBuilder builder("m");
    ComputationBuilder entry = builder.Entry();
    x = entry.Parameter({kF32, {4, 8, 16}}, "x");
    w = entry.Parameter({kF32, {16, 32}}, "w");
    y = entry.Dot(x, w, {{2}, {0}, {}, {}});
    turned = entry.Transpose(y, {1, 0, 2});
    const Value values[] = {y, w};
    barrier = entry.OptBarrier(values);
    gradient = entry.Dot(x, y, {{0, 1}, {0, 1}, {}, {}});
    entry.SetResults({turned, barrier[0], gradient});
    step.module = std::move(builder).Finish().value();
    step.parameters = {{.role = ParameterRole::kBatch, .name = "x", .batch_dim = 0},
                       {.role = ParameterRole::kState, .name = "w"}};
  }
  ExampleDims Of(Value value) const {
    return FindExampleDims(step)[value.instruction][value.result];
  }

  Step step;
  Value x, w, y, turned, gradient;
  std::vector<Value> barrier;
};

TEST(ExampleDims, OfABatchInputAreAllButTheOneThatCounts) {
  const Layer layer;
  EXPECT_EQ(layer.Of(layer.x), (ExampleDims{.batch = 0, .within = {1, 2}}));
  EXPECT_TRUE(layer.Of(layer.w).empty());
}

TEST(ExampleDims, FollowTheFactorsOfOperations) {
  const Layer layer;
  EXPECT_EQ(layer.Of(layer.y), (ExampleDims{.batch = 0, .within = {1}}));
  EXPECT_EQ(layer.Of(layer.turned), (ExampleDims{.batch = 1, .within = {0}}));
  EXPECT_EQ(layer.Of(layer.barrier[0]), layer.Of(layer.y));
  EXPECT_TRUE(layer.Of(layer.barrier[1]).empty());
  EXPECT_EQ(layer.Of(layer.gradient), (ExampleDims{.batch = -1, .within = {0}}));
}

// Of what `build` makes of x [4 examples, 6, 8].
template <typename Build>
ExampleDims DimsOf(const Build& build) {
  ModuleBuilder builder("m");
  ComputationBuilder entry = builder.Entry();
  const Value value = build(entry, entry.Parameter({kF32, {4, 6, 8}}, "x"));
  entry.SetResults({value});
  Step step;
  step.module = std::move(builder).Finish().value();
  step.parameters = {{.role = ParameterRole::kBatch, .name = "x", .batch_dim = 0}};
  return FindExampleDims(step)[value.instruction][value.result];
}

TEST(ExampleDims, StayWhereTheyAreCutOrFilledUp) {
  const ExampleDims all = {.batch = 0, .within = {1, 2}};
  EXPECT_EQ(DimsOf([](ComputationBuilder& b, Value x) {
              return b.Slice(x, {.starts = {0, 1, 0}, .limits = {4, 6, 8}, .strides = {1, 1, 1}});
            }),
            all);
  EXPECT_EQ(DimsOf([](ComputationBuilder& b, Value x) {
              return b.Pad(x, b.Scalar(kF32, 0),
                           {.low = {0, 1, 0}, .high = {0, 1, 0}, .interior = {0, 0, 0}});
            }),
            all);
}

TEST(ExampleDims, AreFoundAgainBehindReshapes) {
  const auto reshaped = [](const std::vector<std::vector<int64_t>>& shapes) {
    return DimsOf([&](ComputationBuilder& b, Value x) {
      for (const std::vector<int64_t>& dims : shapes) x = b.Reshape(x, dims);
      return x;
    });
  };
  EXPECT_EQ(reshaped({{4, 48}}), (ExampleDims{.batch = 0, .within = {1}}));
  EXPECT_EQ(reshaped({{4, 48}, {4, 2, 24}}), (ExampleDims{.batch = 0, .within = {1, 2}}));
  EXPECT_EQ(reshaped({{24, 8}}), (ExampleDims{.batch = 0, .batch_is_merged = true, .within = {1}}));
  EXPECT_EQ(reshaped({{24, 8}, {4, 6, 8}}), (ExampleDims{.batch = 0, .within = {1, 2}}));
  EXPECT_EQ(reshaped({{2, 2, 6, 8}}), (ExampleDims{.batch = 0, .within = {2, 3}}));
  EXPECT_EQ(reshaped({{1, 4, 6, 1, 8}}), (ExampleDims{.batch = 1, .within = {2, 4}}));
}

TEST(ExampleDims, DoNotCountMicroBatches) {
  Layer layer;
  layer.step.module.num_micro_batches = 4;
  layer.step.parameters[0].batch_dim = 1;
  layer.step.module.entry_computation().instructions[layer.y.instruction].part.loop =
      LoopRole::kBody;
  EXPECT_EQ(layer.Of(layer.x), (ExampleDims{.batch = 1, .within = {2}}));
}

TEST(ExampleDims, WithinExamplesTheyEndAtTheUpdate) {
  Layer layer;
  std::vector<Instruction>& all = layer.step.module.entry_computation().instructions;
  all[layer.gradient.instruction].part.phase = Phase::kApply;
  EXPECT_THAT(layer.Of(layer.gradient).within, IsEmpty());
}

TEST(ExampleDims, OfWhatIsReceivedAreGiven) {
  Layer layer;
  layer.step.parameters[0] = {.role = ParameterRole::kBatch,
                              .name = "received/x",
                              .received = ExampleDims{.batch = 1, .within = {0}}};
  EXPECT_EQ(layer.Of(layer.y), (ExampleDims{.batch = 1, .within = {0}}));
}

}  // namespace
}  // namespace minka
