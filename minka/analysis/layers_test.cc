#include "minka/analysis/layers.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/analysis/phases.h"
#include "minka/ir/builder.h"
#include "minka/ir/hlo_proto.h"

namespace minka {
namespace {

const Shape kRows{ElementType::kF32, {4, 4}};

TEST(FindLayers, CutsAtForwardBoundariesAndMovesMasksToTheirReaders) {
  ModuleBuilder module("step");
  ComputationBuilder b = module.Entry();
  const Value w = b.Parameter(kRows, "w");
  const Value x = b.Parameter(kRows, "x");
  const Value wide = b.Binary(Opcode::kAdd, w, w);                // of state alone
  const Value mask = b.Unary(Opcode::kNegate, x);                 // read by layer 1 only
  const Value shared = b.Unary(Opcode::kExponential, x);          // read by both layers
  const Value first = b.Binary(Opcode::kMultiply, shared, wide);  // the boundary
  const Value second = b.Binary(Opcode::kMultiply, b.Binary(Opcode::kAdd, first, mask), shared);
  const Value loss = b.Reduce(second, b.Scalar(ElementType::kF32, 0), {0, 1}, Opcode::kAdd);
  const Value gradient = b.Binary(Opcode::kMultiply, second, second);
  b.SetResults({b.Binary(Opcode::kSubtract, w, gradient), loss});
  Step step;
  step.module = *std::move(module).Finish();
  step.parameters = {{.role = ParameterRole::kState, .name = "w", .state_result = 0},
                     {.role = ParameterRole::kBatch, .name = "x", .batch_dim = 0}};
  step.results = {{ResultRole::kState, "w"}, {ResultRole::kLoss, "loss"}};
  EXPECT_EQ(FindLayers(step, ClassifyPhases(step)).count, 0) << "there are no dots";

  // The second mark is on a backward value, as some frontends leave them.
  step.marks = {{MarkKind::kLayerBoundary, first, 3}, {MarkKind::kLayerBoundary, gradient, 5}};
  const Layers layers = FindLayers(step, ClassifyPhases(step));
  EXPECT_EQ(layers.count, 2);
  const auto layer = [&](Value value) { return layers.layer[value.instruction]; };
  EXPECT_EQ(layer(x), -1);
  EXPECT_EQ(layer(wide), -1);
  EXPECT_EQ(layer(mask), 1);
  EXPECT_EQ(layer(shared), 0);
  EXPECT_EQ(layer(first), 0);
  EXPECT_EQ(layer(second), 1);
  EXPECT_EQ(layer(loss), 1);
  EXPECT_EQ(layer(gradient), -1);
}

// x1 = x w, then twice x += tanh(x) w, the loss a sum of squares of tanh(x) w. The gradient reads
// the tanhs that it says.
Step ResidualStep(const std::vector<int>& read, std::vector<Value>& stream) {
  ModuleBuilder module("step");
  ComputationBuilder b = module.Entry();
  const Value w = b.Parameter(kRows, "w");
  const Value labels = b.Parameter(kRows, "labels");
  stream = {b.Dot(b.Parameter(kRows, "x"), w, {{1}, {0}})};
  std::vector<Value> tanhs;
  for (int i = 0; i < 3; ++i) {
    tanhs.push_back(b.Unary(Opcode::kTanh, stream.back()));
    const Value change = b.Dot(tanhs.back(), w, {{1}, {0}});
    stream.push_back(i < 2 ? b.Binary(Opcode::kAdd, stream.back(), change) : change);
  }
  const Value error = b.Binary(Opcode::kSubtract, stream.back(), labels);
  const Value loss = b.Reduce(b.Binary(Opcode::kMultiply, error, error),
                              b.Scalar(ElementType::kF32, 0), {0, 1}, Opcode::kAdd);
  Value gradient = b.Dot(error, error, {{0}, {0}});
  for (const int i : read) gradient = b.Dot(gradient, tanhs[i], {{0}, {0}});
  b.SetResults({gradient, loss});
  Step step;
  step.module = *std::move(module).Finish();
  step.parameters = {{.role = ParameterRole::kState, .name = "w", .state_result = 0}, {}, {}};
  step.results = {{ResultRole::kState, "w"}, {ResultRole::kLoss, "loss"}};
  return step;
}

// The first dot, the two sums; the tanh in front of the last dot is a cut, too, and the last one.
TEST(FindLayers, PassesOverWhatHasNoResults) {
  const absl::StatusOr<Module> module = ParseHloText(R"(
HloModule says

ENTRY main {
  w = f32[4,4] parameter(0)
  said = () custom-call(w), custom_call_target="say", custom_call_has_side_effect=true
  ROOT twice = f32[4,4] add(w, w)
})");
  ASSERT_TRUE(module.ok()) << module.status();
  const absl::StatusOr<Step> step = MakeStep(*module, {.states = {"0:0"}});
  ASSERT_TRUE(step.ok()) << step.status();
  EXPECT_EQ(FindLayers(*step, ClassifyPhases(*step)).count, 0);
}

TEST(FindLayers, FindsTheResidualStreamWhereNothingIsMarked) {
  std::vector<Value> stream;
  Step step = ResidualStep({0, 1, 2}, stream);
  const Layers layers = FindLayers(step, ClassifyPhases(step));
  EXPECT_EQ(layers.count, 4);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(layers.layer[stream[i].instruction], i) << i;
  step.results[1].role = ResultRole::kMetric;
  EXPECT_EQ(FindLayers(step, ClassifyPhases(step)).count, 0) << "nothing says what the loss is";
}

// Of the second layer the backward pass reads nothing: it is computed again with the first.
TEST(FindLayers, DoesNotCutWhatTheBackwardPassComputesAgain) {
  std::vector<Value> stream;
  const Step step = ResidualStep({0, 2}, stream);
  const Layers layers = FindLayers(step, ClassifyPhases(step));
  EXPECT_EQ(layers.count, 3);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(layers.layer[stream[i].instruction], std::vector({0, 1, 1, 2})[i]) << i;
  }
}

}  // namespace
}  // namespace minka
