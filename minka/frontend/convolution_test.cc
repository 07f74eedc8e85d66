#include "minka/frontend/convolution.h"

#include <gtest/gtest.h>

#include <random>

#include "minka/base/status.h"
#include "minka/frontend/testing/gradient_check.h"
#include "minka/frontend/trace.h"
#include "minka/ir/testing/evaluator.h"

namespace minka {
namespace {

using testing::Array;
using testing::Evaluate;
using testing::ExpectTrueGradient;
using Dims = std::vector<int64_t>;
using Numbers = std::vector<long double>;

// What a layer makes of an input, with parameters as they start.
Array Apply(const Array& input, const std::function<Tensor(const Scope&, Tensor)>& layer) {
  Graph graph("test");
  ParameterStore store(graph, {ElementType::kF32, ElementType::kF32}, /*training=*/true);
  const Tensor y = layer(Scope(store, ""), graph.Parameter(input.shape, "x"));
  EXPECT_TRUE(graph.status().ok()) << Message(graph.status());
  std::vector<Array> inputs = {input};
  for (const ParameterSpec& spec : store.specs()) {
    inputs.push_back(
        testing::FromLiteral(InitialValue(spec.initializer, spec.shape, spec.name, 1)));
  }
  return Evaluate(testing::MustFinish(graph, {y.value()}), inputs)[0];
}

Array Counting(const Dims& dims) {
  Array array{{ElementType::kF32, dims}, {}};
  for (int64_t i = 0; i < array.shape.num_elements(); ++i) {
    array.elements.push_back(static_cast<long double>(i));
  }
  return array;
}

TEST(Conv, SizesFollowPaddingStrideAndDilation) {
  const auto dims = [](const ConvOptions& options) {
    return Apply(Counting({1, 7, 8, 4}),
                 [&](const Scope& scope, Tensor x) { return Conv(scope, x, options); })
        .shape.dims;
  };
  EXPECT_EQ(dims({.features = 2, .kernel = {3, 3}}), (Dims{1, 7, 8, 2}));
  EXPECT_EQ(dims({.features = 2, .kernel = {3, 3}, .strides = {2, 2}}), (Dims{1, 4, 4, 2}));
  EXPECT_EQ(dims({.features = 2, .kernel = {3, 2}, .padding = Padding::kValid}),
            (Dims{1, 5, 7, 2}));
  EXPECT_EQ(dims({.features = 8, .kernel = {3, 3}, .dilations = {2, 1}, .groups = 4}),
            (Dims{1, 7, 8, 8}));
}

TEST(ConvTranspose, StridesMultiplySizes) {
  const auto dims = [](const ConvOptions& options) {
    return Apply(Counting({1, 3, 2}),
                 [&](const Scope& scope, Tensor x) { return ConvTranspose(scope, x, options); })
        .shape.dims;
  };
  EXPECT_EQ(dims({.features = 2, .kernel = {4}, .strides = {2}}), (Dims{1, 6, 2}));
  EXPECT_EQ(dims({.features = 2, .kernel = {3}, .strides = {2}, .padding = Padding::kValid}),
            (Dims{1, 7, 2}));
  EXPECT_EQ(dims({.features = 2, .kernel = {2}, .strides = {3}}), (Dims{1, 9, 2}));
}

TEST(Conv, WrongWindowsAreNamed) {
  Graph graph("test");
  ParameterStore store(graph, {}, true);
  const Tensor x = graph.Parameter({ElementType::kF32, {1, 4, 4, 2}}, "x");
  EXPECT_FALSE(Conv(Scope(store, "stem"), x, {.features = 2, .kernel = {3}}).valid());
  EXPECT_EQ(Message(graph.status()),
            "stem: convolution: a window of 1 sizes, 1 strides and 1 dilations on f32[1,4,4,2]");
}

TEST(Pooling, MaximumAndAverage) {
  const Array x = Counting({1, 2, 4, 1});
  EXPECT_EQ(
      Apply(x, [](const Scope&, Tensor t) { return MaxPool(t, {.window = {2, 2}}); }).elements,
      (Numbers{5, 7}));
  EXPECT_EQ(
      Apply(x, [](const Scope&, Tensor t) { return AveragePool(t, {.window = {2, 2}}); }).elements,
      (Numbers{2.5, 4.5}));
  EXPECT_EQ(Apply(x,
                  [](const Scope&, Tensor t) {
                    return MaxPool(
                        t, {.window = {3, 3}, .strides = {2, 2}, .padding = Padding::kSame});
                  })
                .elements,
            (Numbers{6, 7}));
}

TEST(CumulativeSum, FromEitherEnd) {
  const Array x = Counting({2, 3});
  EXPECT_EQ(Apply(x, [](const Scope&, Tensor t) { return CumulativeSum(t, 1); }).elements,
            (Numbers{0, 1, 3, 3, 7, 12}));
  EXPECT_EQ(Apply(x, [](const Scope&, Tensor t) { return CumulativeSum(t, 1, true); }).elements,
            (Numbers{3, 3, 2, 12, 9, 5}));
}

TEST(Upsample, RepeatsEveryElement) {
  EXPECT_EQ(
      Apply(Counting({1, 1, 2, 1}), [](const Scope&, Tensor t) { return Upsample(t, 2); }).elements,
      (Numbers{0, 0, 1, 1, 0, 0, 1, 1}));
}

TEST(BatchNorm, NormalisesEachFeatureOverTheBatch) {
  const Array y = Apply(Counting({4, 1, 2}), [](const Scope& scope, Tensor t) {
    return BatchNorm(scope, t, {.epsilon = 0, .momentum = std::nullopt});
  });
  // 0, 2, 4, 6: mean 3, variance 5.
  for (int i = 0; i < 4; ++i) {
    EXPECT_NEAR(double(y.elements[2 * i]), (2 * i - 3) / std::sqrt(5.0), 1e-6);
    EXPECT_NEAR(double(y.elements[2 * i + 1]), (2 * i - 3) / std::sqrt(5.0), 1e-6);
  }
}

Model NormModel() {
  return {.name = "norm",
          .inputs = {{.name = "x", .shape = {ElementType::kF32, {4, 2}}}},
          .forward = [](const Scope& scope, std::span<const Tensor> inputs) -> ModelOutput {
            const Tensor y = BatchNorm(scope / "norm", inputs[0], {.epsilon = 0, .momentum = 0.75});
            return {.loss = Mean(y * y), .outputs = {{"y", y}}};
          }};
}

TEST(BatchNorm, AveragesAreStateThatEvaluationReads) {
  const auto step = Trace(NormModel(), Sgd({.momentum = 0}));
  ASSERT_TRUE(step.ok()) << step.status();
  std::vector<std::string> names;
  for (const ParameterInfo& parameter : step->step.parameters) names.push_back(parameter.name);
  EXPECT_EQ(names, (std::vector<std::string>{"params/norm/scale", "params/norm/bias",
                                             "state/norm/mean", "state/norm/variance", "x"}));
  const Array x = Counting({4, 2});
  const auto vector = [](Numbers numbers) { return Array{{ElementType::kF32, {2}}, numbers}; };
  const std::vector<Array> after = Evaluate(
      step->step.module, {vector({1, 1}), vector({0, 0}), vector({0, 4}), vector({1, 1}), x});
  EXPECT_EQ(after[2].elements, (Numbers{0.75L, 4})) << "means 3 and 4";
  EXPECT_EQ(after[3].elements, (Numbers{2, 2})) << "variance 5";
  EXPECT_EQ(step->step.parameters[2].state_result, 2);
  const auto evaluation = TraceEvaluation(NormModel());
  ASSERT_TRUE(evaluation.ok()) << evaluation.status();
  const std::vector<Array> results = Evaluate(
      evaluation->step.module, {vector({2, 2}), vector({1, 1}), vector({3, 4}), vector({1, 4}), x});
  EXPECT_EQ(results[1].elements, (Numbers{-5, -2, -1, 0, 3, 2, 7, 4}));
}

TEST(BatchNorm, TwoOfOneScopeAreRefused) {
  Graph graph("test");
  ParameterStore store(graph, {}, true);
  const Tensor x = graph.Parameter({ElementType::kF32, {4, 2}}, "x");
  const Scope scope(store, "norm");
  BatchNorm(scope, BatchNorm(scope, x));
  EXPECT_EQ(Message(graph.status()),
            "norm: state norm/mean is set twice in a step; give each its own scope");
}

TEST(GroupNorm, NormalisesEachGroupOfAnExample) {
  const Array y = Apply(Counting({2, 1, 4}),
                        [](const Scope& scope, Tensor t) { return GroupNorm(scope, t, 2, 0); });
  for (int i = 0; i < 8; ++i) EXPECT_NEAR(double(y.elements[i]), i % 2 == 0 ? -1 : 1, 1e-6);
}

}  // namespace
}  // namespace minka
