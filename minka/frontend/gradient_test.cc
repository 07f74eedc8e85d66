#include "minka/frontend/gradient.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>

#include "minka/base/status.h"
#include "minka/frontend/gradient_rules.h"
#include "minka/frontend/nn.h"
#include "minka/frontend/testing/gradient_check.h"
#include "minka/ir/testing/evaluator.h"

namespace minka {
namespace {

using testing::Array;
using testing::Evaluate;
using ::testing::HasSubstr;
using Dims = std::vector<int64_t>;
using testing::ExpectTrueGradient;
using testing::MustFinish;
using testing::Random;
using testing::Traced;
using testing::Weigh;

TEST(GradientTest, UnaryRulesEqualDifferenceQuotients) {
  struct Case {
    Opcode opcode;
    double low = -1, high = 1;
  };
  for (const Case& c : std::vector<Case>{{Opcode::kAbs, 0.2, 2},
                                         {Opcode::kAcos, -0.9, 0.9},
                                         {Opcode::kAcosh, 1.2, 3},
                                         {Opcode::kAsin, -0.9, 0.9},
                                         {Opcode::kAsinh},
                                         {Opcode::kAtanh, -0.9, 0.9},
                                         {Opcode::kCbrt, 0.2, 2},
                                         {Opcode::kCopy},
                                         {Opcode::kCosine},
                                         {Opcode::kCosh},
                                         {Opcode::kErf},
                                         {Opcode::kExponential},
                                         {Opcode::kExponentialMinusOne},
                                         {Opcode::kFloor, 0.2, 0.8},
                                         {Opcode::kLog, 0.2, 2},
                                         {Opcode::kLogPlusOne, -0.5, 2},
                                         {Opcode::kLogistic},
                                         {Opcode::kNegate},
                                         {Opcode::kRsqrt, 0.2, 2},
                                         {Opcode::kSign, 0.2, 2},
                                         {Opcode::kSine},
                                         {Opcode::kSinh},
                                         {Opcode::kSqrt, 0.2, 2},
                                         {Opcode::kTan},
                                         {Opcode::kTanh}}) {
    SCOPED_TRACE(OpcodeName(c.opcode));
    ExpectTrueGradient({{{3, 4}, c.low, c.high}},
                       [&](auto& x) { return Unary(c.opcode, x[0] * 1.0); });
  }
}

TEST(GradientTest, BinaryRulesEqualDifferenceQuotients) {
  for (Opcode opcode :
       {Opcode::kAdd, Opcode::kSubtract, Opcode::kMultiply, Opcode::kDivide, Opcode::kMaximum,
        Opcode::kMinimum, Opcode::kPower, Opcode::kAtan2, Opcode::kRemainder}) {
    SCOPED_TRACE(OpcodeName(opcode));
    ExpectTrueGradient({{{3, 4}, 0.3, 2}, {{3, 4}, 0.3, 2}},
                       [&](auto& x) { return Binary(opcode, x[0], x[1]); });
    ExpectTrueGradient({{{3, 4}, 0.3, 2}},
                       [&](auto& x) { return Binary(opcode, x[0], x[0] * x[0]); });
  }
}

TEST(GradientTest, SelectAndClampPassTheChosenOperandOn) {
  ExpectTrueGradient({{{3, 4}}, {{3, 4}}, {{3, 4}}}, [](auto& x) {
    return Where(Compare(Comparison::kGt, x[0], 0.0), x[1], x[2] * x[0]);
  });
  ExpectTrueGradient({{{}, -0.5, -0.4}, {{5, 4}}, {{}, 0.3, 0.4}},
                     [](auto& x) { return Clamp(x[0], x[1], x[2]); });
}

TEST(GradientTest, ConvertComputesTheGradientInTheOperandsType) {
  ExpectTrueGradient({{{3, 4}}}, [](auto& x) {
    return Convert(Convert(x[0], ElementType::kF32) * 2.0, ElementType::kF64);
  });
  const Module module = Traced(
      {{{3}}},
      [](auto& x) { return Convert(Convert(x[0], ElementType::kS32), ElementType::kF64) + x[0]; },
      true);
  const std::vector<Array> results =
      Evaluate(module, {{{ElementType::kF64, {3}}, {0.4L, 1.6L, 2.7L}}});
  EXPECT_NEAR(double(results[1].elements[0]), 1.3, 1e-12) << "integers pass no gradient";
}

TEST(GradientTest, DataMovingRulesEqualDifferenceQuotients) {
  ExpectTrueGradient({{{3, 4}}}, [](auto& x) { return Broadcast(x[0], {4, 2, 3}, {2, 0}); });
  ExpectTrueGradient({{{3, 1}}, {{4}}}, [](auto& x) { return x[0] * x[1]; });
  ExpectTrueGradient({{{3, 4}}}, [](auto& x) { return Reshape(x[0], {2, 6}); });
  ExpectTrueGradient({{{2, 3, 4}}}, [](auto& x) { return Transpose(x[0], {2, 0, 1}); });
  ExpectTrueGradient({{{7, 9}}}, [](auto& x) { return Slice(x[0], {1, 0}, {6, 8}, {2, 3}); });
  ExpectTrueGradient({{{2, 3}}, {{2, 1}}, {{2, 2}}},
                     [](auto& x) { return Concatenate(x, 1) * 2.0; });
  ExpectTrueGradient({{{4, 3}}, {{}}}, [](auto& x) {
    return Pad(x[0], x[1], {.low = {1, -1}, .high = {-2, 2}, .interior = {1, 2}});
  });
  ExpectTrueGradient({{{4, 3}}}, [](auto& x) {
    return x[0].graph().Record(
        x[0].graph().builder().Append({.opcode = Opcode::kReverse,
                                       .operands = {x[0].value()},
                                       .attributes = DimensionsAttributes{{1}}}),
        x);
  });
}

TEST(GradientTest, BarriersPassEachGradientOn) {
  ExpectTrueGradient({{{3}}, {{3}}}, [](auto& x) {
    const std::vector<Tensor> behind = OptBarrier(x);
    return behind[0] * behind[1] * behind[1];
  });
}

TEST(GradientTest, DotEqualsDifferenceQuotientForAnyDimensionOrder) {
  ExpectTrueGradient({{{2, 3, 4}}, {{4, 5, 3}}}, [](auto& x) {
    return Einsum("bsh,hnd->bsnd", x[0], Reshape(x[1], {4, 5, 3}));
  });
  ExpectTrueGradient({{{2, 3, 4, 5}}, {{2, 6, 4, 5}}},
                     [](auto& x) { return Einsum("bqhd,bkhd->bhqk", x[0], x[1]); });
  ExpectTrueGradient({{{2, 4, 3, 6}}, {{2, 6, 4, 5}}},
                     [](auto& x) { return Einsum("bhqk,bkhd->bqhd", x[0], x[1]); });
  ExpectTrueGradient({{{3, 4, 2}}, {{2, 5, 3}}},
                     [](auto& x) { return Einsum("abc,cda->dab", x[0], x[1]); });
  ExpectTrueGradient({{{3, 4}}}, [](auto& x) { return Einsum("ab,cb->ac", x[0], x[0]); });
}

TEST(GradientTest, ReductionsEqualDifferenceQuotients) {
  ExpectTrueGradient({{{3, 4, 2}}}, [](auto& x) { return Sum(x[0], {0, 2}); });
  ExpectTrueGradient({{{3, 4, 2}}}, [](auto& x) { return Mean(x[0], {1}); });
  ExpectTrueGradient({{{3, 4, 2}}}, [](auto& x) { return ReduceMax(x[0], {1, 2}); });
  ExpectTrueGradient({{{3, 4, 2}}},
                     [](auto& x) { return Reduce(Opcode::kMinimum, x[0], 1e9, {0}); });
}

TEST(GradientTest, TiedMaximaShareTheGradient) {
  const Module module = Traced({{{2, 2}}}, [](auto& x) { return ReduceMax(x[0], {0, 1}); }, true);
  const std::vector<Array> results =
      Evaluate(module, {{{ElementType::kF64, {2, 2}}, {1.0L, 3.0L, 3.0L, 2.0L}}});
  EXPECT_THAT(results[1].elements, ::testing::ElementsAre(0, 0.5L, 0.5L, 0));
}

TEST(GradientTest, LookUpsAndTheirGradientsAreEachOthersGradients) {
  const auto indices = [](Graph& graph) {
    return Convert(graph.Iota({ElementType::kF64, {2, 3}}, 0) * 2.0 +
                       graph.Iota({ElementType::kF64, {2, 3}}, 1),
                   ElementType::kS32);
  };
  ExpectTrueGradient({{{5, 3}}}, [&](auto& x) { return Take(x[0], indices(x[0].graph())); });
  ExpectTrueGradient({{{5, 4}}, {{2, 3, 4}}}, [&](auto& x) {
    return Scatter(x[0], indices(x[0].graph()), x[1],
                   {.update_window_dims = {2},
                    .inserted_window_dims = {0},
                    .scatter_dims_to_operand_dims = {0},
                    .index_vector_dim = 2},
                   Opcode::kAdd);
  });
  ExpectTrueGradient({{{6, 5}}}, [](auto& x) {
    Graph& graph = x[0].graph();
    const std::vector<Tensor> starts = {graph.Scalar(ElementType::kS32, 2),
                                        graph.Scalar(ElementType::kS32, 9)};
    return DynamicSlice(x[0], starts, {3, 2});
  });
  ExpectTrueGradient({{{6, 5}}, {{3, 2}}}, [](auto& x) {
    Graph& graph = x[0].graph();
    const std::vector<Tensor> starts = {graph.Scalar(ElementType::kS32, 2),
                                        graph.Scalar(ElementType::kS32, 9)};
    return DynamicUpdateSlice(x[0], x[1], starts);
  });
}

TEST(GradientTest, LayersEqualDifferenceQuotients) {
  ExpectTrueGradient({{{3, 5}}}, [](auto& x) { return Gelu(x[0]); });
  ExpectTrueGradient({{{3, 5}}}, [](auto& x) { return GeluTanh(x[0]); });
}

TEST(GradientTest, StopGradientCutsOneUseOnly) {
  const Module module = Traced(
      {{{}}}, [](auto& x) { return x[0] * StopGradient(x[0]) + StopGradient(x[0] * x[0]); }, true);
  const std::vector<Array> results = Evaluate(module, {{{ElementType::kF64, {}}, {3.0L}}});
  EXPECT_EQ(results[1].elements.front(), 3);
}

TEST(GradientTest, AnInputWithoutAPathHasAZeroGradient) {
  const Module module = Traced({{{2}}, {{2}}}, [](auto& x) { return x[0]; }, true);
  const std::vector<Array> results = Evaluate(
      module, {{{ElementType::kF64, {2}}, {1.0L, 2.0L}}, {{ElementType::kF64, {2}}, {1.0L, 2.0L}}});
  EXPECT_THAT(results[2].elements, ::testing::ElementsAre(0, 0));
}

TEST(GradientTest, ReductionByMultiplicationIsRefusedByName) {
  Graph graph("test");
  const Tensor x = graph.Parameter({ElementType::kF32, {4}}, "x");
  const ScopeName name(graph, "layer_0");
  const Tensor loss = Reduce(Opcode::kMultiply, x, 1, {0});
  EXPECT_EQ(Message(Gradients(graph, loss, std::vector{x}).status()),
            "layer_0: gradient: a reduce by \"multiply\" has no gradient rule; add, maximum and "
            "minimum have");
}

TEST(GradientTest, AVectorIsNoLoss) {
  Graph graph("test");
  const Tensor x = graph.Parameter({ElementType::kF32, {4}}, "x");
  EXPECT_EQ(Message(Gradients(graph, x, std::vector{x}).status()),
            "the loss must be a floating-point scalar, not f32[4]; reduce it first");
}

TEST(GradientTest, EveryOpcodeHasARuleOrAReason) {
  for (Opcode opcode : {
#define MINKA_OPCODE(Name, text, family) Opcode::k##Name,
#include "minka/ir/opcode.def"
#undef MINKA_OPCODE
       }) {
    const GradientRule rule = GradientRuleFor(opcode);
    EXPECT_EQ(rule.kind == GradientKind::kRule, rule.apply != nullptr) << OpcodeName(opcode);
    EXPECT_EQ(rule.kind == GradientKind::kRefused, !rule.reason.empty()) << OpcodeName(opcode);
  }
}

}  // namespace
}  // namespace minka
