#include <gtest/gtest.h>

#include <algorithm>

#include "minka/base/status.h"
#include "minka/frontend/convolution.h"
#include "minka/frontend/testing/gradient_check.h"
#include "minka/ir/convolutions_as_dots.h"
#include "minka/ir/expand_batch_norm.h"
#include "minka/ir/simplify.h"
#include "minka/ir/verifier.h"

namespace minka {
namespace {

using testing::ExpectTrueGradient;
using Dims = std::vector<int64_t>;

// Images [batch, height, width, features], kernels [height, width, inputs, outputs].
ConvolutionAttributes Images(std::vector<WindowDim> window) {
  return {.window = std::move(window),
          .input_batch = 0,
          .input_feature = 3,
          .kernel_input_feature = 2,
          .kernel_output_feature = 3,
          .output_batch = 0,
          .output_feature = 3,
          .input_spatial = {1, 2},
          .kernel_spatial = {0, 1},
          .output_spatial = {1, 2}};
}

void ExpectConvolutionGradient(const Dims& input, const Dims& kernel,
                               const ConvolutionAttributes& a) {
  ExpectTrueGradient({{input}, {kernel}}, [&](auto& x) { return Convolution(x[0], x[1], a); });
}

TEST(ConvolutionGradient, StridesPaddingsAndDilations) {
  const WindowDim same{.size = 3, .padding_low = 1, .padding_high = 1};
  ExpectConvolutionGradient({2, 5, 6, 3}, {3, 3, 3, 4}, Images({same, same}));
  ExpectConvolutionGradient({2, 5, 6, 3}, {3, 2, 3, 2},
                            Images({{.size = 3, .stride = 2, .padding_low = 1},
                                    {.size = 2, .stride = 3, .padding_high = 2}}));
  ExpectConvolutionGradient(
      {2, 7, 6, 2}, {3, 2, 2, 2},
      Images({{.size = 3, .window_dilation = 2}, {.size = 2, .stride = 2, .base_dilation = 3}}));
  ExpectConvolutionGradient({1, 4, 5, 1}, {2, 3, 1, 2},
                            Images({{.size = 2, .stride = 2, .padding_high = -1, .reversal = true},
                                    {.size = 3,
                                     .padding_low = 2,
                                     .padding_high = 1,
                                     .window_dilation = 2,
                                     .base_dilation = 2,
                                     .reversal = true}}));
}

TEST(ConvolutionGradient, GroupsOfFeaturesAndBatches) {
  const WindowDim same{.size = 3, .padding_low = 1, .padding_high = 1};
  const WindowDim half{.size = 2, .stride = 2};
  ConvolutionAttributes features = Images({same, half});
  features.feature_group_count = 2;
  ExpectConvolutionGradient({2, 3, 4, 6}, {3, 2, 3, 4}, features);
  ConvolutionAttributes depthwise = Images({same, half});
  depthwise.feature_group_count = 4;
  ExpectConvolutionGradient({2, 3, 4, 4}, {3, 2, 1, 8}, depthwise);
  ConvolutionAttributes batches = Images({same, half});
  batches.batch_group_count = 2;
  ExpectConvolutionGradient({4, 3, 4, 3}, {3, 2, 3, 6}, batches);
}

TEST(ConvolutionGradient, AnyOrderOfDimensions) {
  ConvolutionAttributes a{.window = {{.size = 2, .padding_low = 1}},
                          .input_batch = 2,
                          .input_feature = 0,
                          .kernel_input_feature = 1,
                          .kernel_output_feature = 0,
                          .output_batch = 1,
                          .output_feature = 2,
                          .input_spatial = {1},
                          .kernel_spatial = {2},
                          .output_spatial = {0},
                          .feature_group_count = 2};
  ExpectConvolutionGradient({4, 5, 3}, {6, 2, 2}, a);
  a.feature_group_count = 1;
  a.batch_group_count = 3;
  ExpectConvolutionGradient({2, 5, 3}, {6, 2, 2}, a);
}

TEST(ReduceWindowGradient, SumsAndExtremes) {
  const std::vector<WindowDim> window = {
      {.size = 3, .stride = 2, .padding_low = 1, .padding_high = 1}, {}, {.size = 2}};
  ExpectTrueGradient({{{5, 2, 6}}},
                     [&](auto& x) { return ReduceWindow(Opcode::kAdd, x[0], 0, window); });
  ExpectTrueGradient({{{5, 2, 6}}},
                     [&](auto& x) { return ReduceWindow(Opcode::kMaximum, x[0], -9, window); });
  ExpectTrueGradient({{{5, 2, 6}}},
                     [&](auto& x) { return ReduceWindow(Opcode::kMinimum, x[0], 9, window); });
  ExpectTrueGradient({{{5, 7}}}, [&](auto& x) {
    return ReduceWindow(Opcode::kAdd, x[0], 0,
                        {{.size = 2, .padding_low = 2, .window_dilation = 2, .base_dilation = 3},
                         {.size = 3, .stride = 2, .padding_high = -1}});
  });
  ExpectTrueGradient({{{3, 5}}}, [](auto& x) { return CumulativeSum(x[0], 1); });
  ExpectTrueGradient({{{3, 5}}}, [](auto& x) { return CumulativeSum(x[0], -2, true); });
}

TEST(ReduceWindowGradient, ProductsAreRefusedByName) {
  Graph graph("test");
  const Tensor x = graph.Parameter({ElementType::kF32, {4}}, "x");
  const Tensor loss = Sum(ReduceWindow(Opcode::kMultiply, x, 1, {{.size = 2}}));
  EXPECT_EQ(Message(Gradients(graph, loss, std::vector{x}).status()),
            "gradient: a windowed reduction by \"multiply\" has no gradient rule; add, and maximum "
            "and minimum without dilation have");
}

Tensor AppendBatchNorm(Opcode opcode, const std::vector<Tensor>& operands) {
  Graph& graph = operands.front().graph();
  Instruction instruction{.opcode = opcode, .attributes = BatchNormAttributes{0.01F, 1}};
  for (const Tensor& operand : operands) instruction.operands.push_back(operand.value());
  return graph.Record(graph.builder().Append(std::move(instruction)), operands);
}

TEST(BatchNormGradient, TrainingAndInference) {
  ExpectTrueGradient({{{4, 3, 2}}, {{3}}, {{3}}},
                     [](auto& x) { return AppendBatchNorm(Opcode::kBatchNormTraining, x); });
  ExpectTrueGradient({{{4, 3, 2}}, {{3}}, {{3}}, {{3}}, {{3}, 0.5, 2}},
                     [](auto& x) { return AppendBatchNorm(Opcode::kBatchNormInference, x); });
}

void ExpectEqualResults(const Module& want, const Module& got,
                        const std::vector<testing::Input>& inputs) {
  std::mt19937_64 random(3);
  std::vector<testing::Array> x;
  for (const testing::Input& input : inputs) x.push_back(testing::Random(input, random));
  const auto expected = testing::Evaluate(want, x), results = testing::Evaluate(got, x);
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(results[i].shape, expected[i].shape);
    for (size_t j = 0; j < expected[i].elements.size(); ++j) {
      EXPECT_NEAR(double(results[i].elements[j]), double(expected[i].elements[j]), 1e-12);
    }
  }
}

// Gradients too: the expansion of batch-norm-grad.
TEST(ExpandBatchNorm, ComputesTheSameAsTheOperations) {
  for (const Opcode opcode : {Opcode::kBatchNormTraining, Opcode::kBatchNormInference}) {
    std::vector<testing::Input> inputs = {{{4, 3, 2}}, {{3}}, {{3}}};
    if (opcode == Opcode::kBatchNormInference) {
      inputs.push_back({{3}});
      inputs.push_back({{3}, 0.5, 2});
    }
    const Module module =
        testing::Traced(inputs, [&](auto& x) { return AppendBatchNorm(opcode, x); }, true);
    const Module expanded = InlineCalls(ExpandBatchNorm(module));
    EXPECT_TRUE(Verify(expanded).ok()) << Verify(expanded);
    for (const Instruction& instruction : expanded.entry_computation().instructions) {
      EXPECT_EQ(OpcodeName(instruction.opcode).find("batch-norm"), std::string_view::npos);
    }
    ExpectEqualResults(module, expanded, inputs);
  }
}

int NumConvolutions(const Module& module) {
  return static_cast<int>(
      std::ranges::count(module.entry_computation().instructions, Opcode::kConvolution,
                         [](const Instruction& instruction) { return instruction.opcode; }));
}

struct DotCase {
  const char* what;
  Dims input, kernel;
  ConvolutionAttributes attributes;
  int left;  // convolutions, of the three of result and gradients
};

TEST(ConvolutionsAsDots, ComputesTheSame) {
  const WindowDim one, strided{.stride = 2}, cropped{.padding_low = -1, .padding_high = -2};
  const WindowDim padded{.padding_low = 1, .padding_high = 2}, three{.size = 3};
  ConvolutionAttributes features_first = Images({one, one});
  features_first.input_feature = features_first.output_feature = 1;
  features_first.input_spatial = features_first.output_spatial = {2, 3};
  const DotCase cases[] = {
      {"one element", {2, 5, 4, 3}, {1, 1, 3, 2}, Images({one, one}), 0},
      {"strides", {2, 5, 4, 3}, {1, 1, 3, 2}, Images({strided, strided}), 0},
      {"strides that miss the end", {2, 6, 4, 3}, {1, 1, 3, 2}, Images({strided, one}), 0},
      {"cropped", {2, 5, 4, 3}, {1, 1, 3, 2}, Images({cropped, one}), 0},
      {"padded", {2, 5, 4, 3}, {1, 1, 3, 2}, Images({padded, one}), 1},
      {"whole images", {2, 3, 3, 4}, {3, 3, 4, 2}, Images({three, three}), 1},
      {"three elements", {2, 5, 5, 3}, {3, 3, 3, 2}, Images({three, three}), 3},
      {"features before positions", {2, 3, 5, 4}, {1, 1, 3, 2}, features_first, 2}};
  for (const DotCase& c : cases) {
    const std::vector<testing::Input> inputs = {{c.input}, {c.kernel}};
    const Module module = testing::Traced(
        inputs, [&](auto& x) { return Convolution(x[0], x[1], c.attributes); }, true);
    const Module dots = InlineCalls(ConvolutionsAsDots(module));
    EXPECT_TRUE(Verify(dots).ok()) << c.what << ": " << Verify(dots);
    EXPECT_EQ(NumConvolutions(dots), c.left) << c.what;
    ExpectEqualResults(module, dots, inputs);
  }
}

}  // namespace
}  // namespace minka
