#include "minka/analysis/structure.h"

#include <optional>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/ir/builder.h"

namespace minka {
namespace {

const Shape kSquare{ElementType::kF32, {4, 4}};

// x1 = x w0, x2 = x1 + tanh(x1) w1, the loss a sum of squares of x2 w0 (tied); both weights move
// along their gradients, by a common factor.
class Structure : public testing::Test {
 protected:
  Structure() {
    ModuleBuilder module("step");
    b_ = module.Entry();
    w0 = b_->Parameter(kSquare, "w0");
    w1 = b_->Parameter(kSquare, "w1");
    trace = b_->Parameter(kSquare, "trace");
    x = b_->Parameter(kSquare, "x");
    const Value one = b_->Scalar(ElementType::kF32, 1);
    wide = b_->Unary(Opcode::kNegate, w1);
    x1 = Dot(x, w0, 1, 0);
    tanh = b_->Unary(Opcode::kTanh, x1);
    change = Dot(tanh, wide, 1, 0);
    x2 = b_->Binary(Opcode::kAdd, x1, change);
    scores = Dot(x2, w0, 1, 0);
    loss = b_->Reduce(b_->Binary(Opcode::kMultiply, scores, scores),
                      b_->Scalar(ElementType::kF32, 0), {0, 1}, Opcode::kAdd);
    d_scores = b_->Binary(Opcode::kAdd, scores, scores);
    d_x2 = Dot(d_scores, w0, 1, 1);
    d_w1 = Dot(tanh, d_x2, 0, 0);
    d_tanh = Dot(d_x2, wide, 1, 1);
    const Value slope = b_->Binary(Opcode::kSubtract, b_->Broadcast(one, {4, 4}, {}),
                                   b_->Binary(Opcode::kMultiply, tanh, tanh));
    d_change = b_->Binary(Opcode::kMultiply, d_tanh, slope);
    d_x1 = b_->Binary(Opcode::kAdd, d_x2, d_change);
    d_w0 = b_->Binary(Opcode::kAdd, Dot(x, d_x1, 0, 0), Dot(x2, d_scores, 0, 0));
    norm = b_->Reduce(b_->Binary(Opcode::kMultiply, d_w0, d_w1), one, {0, 1}, Opcode::kAdd);
    const Value rate = b_->Broadcast(norm, {4, 4}, {});
    new_trace = b_->Binary(Opcode::kAdd, trace, d_w1);
    new_w0 = b_->Binary(Opcode::kSubtract, w0, b_->Binary(Opcode::kMultiply, d_w0, rate));
    new_w1 = b_->Binary(Opcode::kSubtract, w1, b_->Binary(Opcode::kMultiply, new_trace, rate));
    b_->SetResults({new_w0, new_w1, new_trace, loss});
    step.module = *std::move(module).Finish();
    step.parameters = {{.role = ParameterRole::kState, .name = "w0", .state_result = 0},
                       {.role = ParameterRole::kState, .name = "w1", .state_result = 1},
                       {.role = ParameterRole::kState, .name = "trace", .state_result = 2},
                       {.role = ParameterRole::kBatch, .name = "x", .batch_dim = 0}};
    step.results = {{ResultRole::kState, "w0"},
                    {ResultRole::kState, "w1"},
                    {ResultRole::kState, "trace"},
                    {ResultRole::kLoss, "loss"}};
    step.marks = {{MarkKind::kGradient, d_w0, 0}, {MarkKind::kGradient, d_w1, 1}};
    b_.reset();
  }

  Value Dot(Value lhs, Value rhs, int lhs_dim, int rhs_dim) {
    return b_->Dot(lhs, rhs, {{lhs_dim}, {rhs_dim}});
  }

  std::optional<ComputationBuilder> b_;
  Value w0, w1, trace, x, wide, x1, tanh, change, x2, scores, loss;
  Value d_scores, d_x2, d_w1, d_tanh, d_change, d_x1, d_w0, norm, new_trace, new_w0, new_w1;
  Step step;
};

TEST_F(Structure, EveryOperationStandsWhereItSendsLeast) {
  const Step found = WithStructure(step);
  EXPECT_EQ(found.num_layers, 3);
  const auto part = [&](Value value) {
    return found.module.entry_computation().instruction(value).part;
  };
  const auto is = [](Phase phase, int layer) { return testing::Eq(StepPart{phase, layer}); };
  EXPECT_THAT(part(x1), is(Phase::kForward, 0));
  EXPECT_THAT(part(change), is(Phase::kForward, 1));
  EXPECT_THAT(part(scores), is(Phase::kForward, 2));
  EXPECT_THAT(part(wide), is(Phase::kForward, 1)) << "where its reader stands";
  EXPECT_THAT(part(x), is(Phase::kForward, 0));
  EXPECT_THAT(part(w0), is(Phase::kForward, -1)) << "two layers read it";
  EXPECT_THAT(part(d_scores), is(Phase::kBackward, 2));
  EXPECT_THAT(part(d_x2), is(Phase::kBackward, 1)) << "as many bytes as d_scores";
  EXPECT_THAT(part(d_w1), is(Phase::kBackward, 1)) << "tanh and w1 are there";
  EXPECT_THAT(part(d_tanh), is(Phase::kBackward, 1));
  EXPECT_THAT(part(d_change), is(Phase::kBackward, 1));
  EXPECT_THAT(part(new_trace), is(Phase::kApply, 1));
  EXPECT_THAT(part(new_w1), is(Phase::kApply, 1));
  EXPECT_THAT(part(trace), is(Phase::kApply, 1)) << "state of the optimiser of w1";
  EXPECT_THAT(part(new_w0), is(Phase::kApply, -1));
  EXPECT_THAT(part(norm), is(Phase::kApply, -1)) << "of both weights";
}

TEST_F(Structure, WhereNothingIsSaidOfParametersNoLayersAreFound) {
  step.parameters.clear();
  EXPECT_EQ(WithStructure(step).num_layers, 0);
}

TEST_F(Structure, WithoutBoundariesNothingHasALayer) {
  step.results.back().role = ResultRole::kMetric;  // no loss
  const Step found = WithStructure(step);
  EXPECT_EQ(found.num_layers, 0);
  for (const Instruction& instruction : found.module.entry_computation().instructions) {
    EXPECT_EQ(instruction.part.layer, -1);
  }
}

}  // namespace
}  // namespace minka
