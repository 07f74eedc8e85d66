#include "minka/analysis/phases.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/base/status.h"
#include "minka/ir/builder.h"

namespace minka {
namespace {

using ElementType::kF32;

// loss = sum((x w)^2), SGD on w, a step counter, and a metric sum(x w). The counter scales the
// rate.
struct Training {
  Step step;
  Value w, x, count, product, squared, loss, product_gradient, gradient, rate, update, new_w,
      new_count, metric;

  Training() {
    ModuleBuilder builder("step");
    ComputationBuilder b = builder.Entry();
    w = b.Parameter({kF32, {4, 4}}, "w");
    x = b.Parameter({kF32, {8, 4}}, "x");
    count = b.Parameter({kF32, {}}, "count");
    product = b.Dot(x, w, {{1}, {0}});
    squared = b.Binary(Opcode::kMultiply, product, product);
    const Value zero = b.Scalar(kF32, 0);
    loss = b.Reduce(squared, zero, {0, 1}, Opcode::kAdd);
    product_gradient = b.Binary(Opcode::kMultiply, product, b.FullLike(product, 2));
    gradient = b.Dot(x, product_gradient, {{0}, {0}});
    rate = b.Unary(Opcode::kRsqrt, count);
    update = b.Binary(Opcode::kMultiply, gradient, b.Broadcast(rate, {4, 4}, {}));
    new_w = b.Binary(Opcode::kSubtract, w, update);
    new_count = b.Binary(Opcode::kAdd, count, b.Scalar(kF32, 1));
    metric = b.Reduce(product, zero, {0, 1}, Opcode::kAdd);
    b.SetResults({new_w, new_count, loss, metric});
    step.module = *std::move(builder).Finish();
    step.parameters = {{.role = ParameterRole::kState, .name = "w", .state_result = 0},
                       {.role = ParameterRole::kBatch, .name = "x", .batch_dim = 0},
                       {.role = ParameterRole::kState, .name = "count", .state_result = 1}};
    step.results = {{ResultRole::kState, "w"},
                    {ResultRole::kState, "count"},
                    {ResultRole::kLoss, "loss"},
                    {ResultRole::kMetric, "metric"}};
  }
};

void ExpectTrainingPhases(const Training& t, const std::vector<Phase>& phases) {
  const auto phase = [&](Value value) { return phases[value.instruction]; };
  for (const Value value : {t.w, t.x, t.product, t.squared, t.loss, t.metric}) {
    EXPECT_EQ(phase(value), Phase::kForward) << value.instruction;
  }
  for (const Value value : {t.product_gradient, t.gradient}) {
    EXPECT_EQ(phase(value), Phase::kBackward) << value.instruction;
  }
  for (const Value value : {t.count, t.rate, t.update, t.new_w, t.new_count}) {
    EXPECT_EQ(phase(value), Phase::kApply) << value.instruction;
  }
}

TEST(ClassifyPhases, AGradientThatLeadsToAnotherIsBackwardUpToThatOne) {
  Training t;
  t.step.marks = {{MarkKind::kGradient, t.product_gradient, 2},
                  {MarkKind::kGradient, t.gradient, 0}};
  ExpectTrainingPhases(t, ClassifyPhases(t.step));
}

TEST(ClassifyPhases, ByMarks) {
  Training training;
  training.step.marks = {{MarkKind::kLoss, training.loss, 0},
                         {MarkKind::kGradient, training.gradient, 0}};
  ExpectTrainingPhases(training, ClassifyPhases(training.step));
}

TEST(ClassifyPhases, WithoutMarksTheOptimiserIsTheElementwiseTail) {
  const Training training;
  ExpectTrainingPhases(training, ClassifyPhases(training.step));
}

TEST(ClassifyPhases, WithoutALossForwardStandsForBoth) {
  Training training;
  training.step.results[2].role = ResultRole::kMetric;
  const std::vector<Phase> phases = ClassifyPhases(training.step);
  EXPECT_EQ(phases[training.gradient.instruction], Phase::kForward);
  EXPECT_EQ(phases[training.new_w.instruction], Phase::kApply);
}

TEST(ClassifyPhases, InferenceIsForward) {
  ModuleBuilder builder("inference");
  ComputationBuilder b = builder.Entry();
  const Value x = b.Parameter({kF32, {8}}, "x");
  b.SetResults({b.Unary(Opcode::kTanh, x)});
  Step step;
  step.module = *std::move(builder).Finish();
  step.parameters = {{.role = ParameterRole::kBatch, .name = "x", .batch_dim = 0}};
  step.results = {{ResultRole::kMetric, "y"}};
  EXPECT_THAT(ClassifyPhases(step), testing::Each(Phase::kForward));
}

// A gradient clipped by the global norm: the reduction to a scalar belongs to the optimiser, a bias
// gradient's reduction to the backward pass.
TEST(ClassifyPhases, GlobalNormIsAppliedBiasReductionIsNot) {
  ModuleBuilder builder("step");
  ComputationBuilder b = builder.Entry();
  const Value bias = b.Parameter({kF32, {4}}, "bias");
  const Value x = b.Parameter({kF32, {8, 4}}, "x");
  const Value zero = b.Scalar(kF32, 0);
  const Value activation = b.Binary(Opcode::kAdd, x, b.Broadcast(bias, {8, 4}, {1}));
  const Value gradient = b.Reduce(activation, zero, {0}, Opcode::kAdd);
  const Value norm =
      b.Reduce(b.Binary(Opcode::kMultiply, gradient, gradient), zero, {0}, Opcode::kAdd);
  const Value clipped = b.Binary(Opcode::kDivide, gradient, b.Broadcast(norm, {4}, {}));
  b.SetResults({b.Binary(Opcode::kSubtract, bias, clipped)});
  Step step;
  step.module = *std::move(builder).Finish();
  step.parameters = {{.role = ParameterRole::kState, .name = "bias", .state_result = 0},
                     {.role = ParameterRole::kBatch, .name = "x", .batch_dim = 0}};
  step.results = {{ResultRole::kState, "bias"}};
  const std::vector<Phase> phases = ClassifyPhases(step);
  EXPECT_EQ(phases[gradient.instruction], Phase::kForward);
  EXPECT_EQ(phases[norm.instruction], Phase::kApply);
  EXPECT_EQ(phases[clipped.instruction], Phase::kApply);
}

// As Adafactor does it: the update reads the gradient itself and the means of its squares' rows.
TEST(ClassifyPhases, MeansOfAGradientAreApplied) {
  ModuleBuilder builder("step");
  ComputationBuilder b = builder.Entry();
  const Value w = b.Parameter({kF32, {4, 4}}, "w");
  const Value rows = b.Parameter({kF32, {4}}, "rows");
  const Value x = b.Parameter({kF32, {8, 4}}, "x");
  const Value zero = b.Scalar(kF32, 0);
  const Value gradient = b.Dot(x, b.Dot(x, w, {{1}, {0}}), {{0}, {0}});
  const Value squares = b.Binary(Opcode::kMultiply, gradient, gradient);
  const Value new_rows = b.Binary(Opcode::kAdd, rows, b.Reduce(squares, zero, {1}, Opcode::kAdd));
  const Value spread = b.Broadcast(new_rows, {4, 4}, {0});
  const Value update = b.Binary(Opcode::kDivide, gradient, spread);
  b.SetResults({b.Binary(Opcode::kSubtract, w, update), new_rows});
  Step step;
  step.module = *std::move(builder).Finish();
  step.parameters = {{.role = ParameterRole::kState, .name = "w", .state_result = 0},
                     {.role = ParameterRole::kState, .name = "rows", .state_result = 1},
                     {.role = ParameterRole::kBatch, .name = "x", .batch_dim = 0}};
  step.results = {{ResultRole::kState, "w"}, {ResultRole::kState, "rows"}};
  const std::vector<Phase> phases = ClassifyPhases(step);
  EXPECT_EQ(phases[gradient.instruction], Phase::kForward);
  EXPECT_EQ(phases[squares.instruction], Phase::kApply);
  EXPECT_EQ(phases[update.instruction], Phase::kApply);
}

}  // namespace
}  // namespace minka
