#include "minka/sharding/example_dims.h"

#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/ir/builder.h"

namespace minka {
namespace {

using ::testing::IsEmpty;

constexpr ElementType kF32 = ElementType::kF32;

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
