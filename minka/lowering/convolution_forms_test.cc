#include "minka/lowering/convolution_forms.h"

#include <algorithm>
#include <vector>

#include "gtest/gtest.h"
#include "minka/ir/builder.h"
#include "minka/ir/testing/evaluator.h"
#include "minka/ir/verifier.h"

namespace minka {
namespace {

using ElementType::kF32;

Module OneConvolution(const Shape& input, const Shape& kernel, ConvolutionAttributes attributes) {
  ModuleBuilder module("m");
  ComputationBuilder b = module.Entry();
  const Value x = b.Parameter(input, "x"), k = b.Parameter(kernel, "k");
  b.SetResults({b.Convolution(x, k, std::move(attributes))});
  return *std::move(module).Finish();
}

int CountOf(const Module& module, Opcode opcode) {
  return static_cast<int>(
      std::ranges::count(module.entry_computation().instructions, opcode, &Instruction::opcode));
}

void ExpectSame(const Module& source, const Module& written) {
  ASSERT_TRUE(Verify(written).ok()) << Verify(written);
  const Computation& entry = source.entry_computation();
  const std::vector<testing::Array> parameters = {
      testing::SmallWholeNumbers(entry.shape({0, 0}), 1),
      testing::SmallWholeNumbers(entry.shape({1, 0}), 2)};
  EXPECT_EQ(testing::Evaluate(source, parameters)[0].elements,
            testing::Evaluate(written, parameters)[0].elements);
}

ConvolutionAttributes ImagesLast(std::vector<WindowDim> window) {
  return {.window = std::move(window),
          .input_feature = 3,
          .kernel_input_feature = 2,
          .kernel_output_feature = 3,
          .output_feature = 3,
          .input_spatial = {1, 2},
          .kernel_spatial = {0, 1},
          .output_spatial = {1, 2}};
}

TEST(ConvolutionForms, DepthwiseOnesAreSumsOverTheWindow) {
  const WindowDim plain = {.size = 3, .padding_low = 1, .padding_high = 1};
  const WindowDim strided = {.size = 3, .stride = 2, .padding_high = 1};
  // The gradient of a strided one's input, and one with everything else.
  const WindowDim holes = {.size = 3, .padding_low = 2, .padding_high = 1, .base_dilation = 2};
  const WindowDim odd = {.size = 2, .padding_low = -1, .window_dilation = 2, .reversal = true};
  for (const std::vector<WindowDim>& window : std::vector<std::vector<WindowDim>>{
           {plain, plain}, {strided, plain}, {holes, holes}, {odd, strided}}) {
    ConvolutionAttributes attributes = ImagesLast(window);
    attributes.feature_group_count = 4;
    const Module source = OneConvolution(
        {kF32, {2, 6, 5, 4}}, {kF32, {window[0].size, window[1].size, 1, 4}}, attributes);
    const Module written = ConvolutionForms(source);
    EXPECT_EQ(CountOf(written, Opcode::kConvolution), 0);
    // The padded input and the sum are written once, whoever reads them.
    EXPECT_EQ(CountOf(written, Opcode::kOptBarrier), 2);
    ExpectSame(source, written);
  }
}

TEST(ConvolutionForms, DepthwiseOnesInAnyOrderOfDimensions) {
  ConvolutionAttributes attributes = {
      .window = {{.size = 3, .padding_low = 1, .padding_high = 1}, {.size = 2}},
      .input_batch = 1,
      .input_feature = 0,
      .kernel_input_feature = 1,
      .kernel_output_feature = 0,
      .output_batch = 2,
      .output_feature = 3,
      .input_spatial = {3, 2},
      .kernel_spatial = {2, 3},
      .output_spatial = {0, 1},
      .feature_group_count = 3};
  const Module source = OneConvolution({kF32, {3, 2, 4, 5}}, {kF32, {3, 1, 3, 2}}, attributes);
  const Module written = ConvolutionForms(source);
  EXPECT_EQ(CountOf(written, Opcode::kConvolution), 0);
  ExpectSame(source, written);
}

TEST(ConvolutionForms, DepthwiseKernelGradientsAreOneSumForEachElement) {
  // Of a plain convolution of 6 x 5 by 3 x 3, and of one with strides of 2.
  const WindowDim rows = {.size = 6, .padding_low = 1, .padding_high = 1};
  const WindowDim columns = {.size = 5, .padding_low = 1, .padding_high = 1};
  const WindowDim strided_rows = {.size = 3, .padding_high = 1, .window_dilation = 2};
  for (const WindowDim& first : {rows, strided_rows}) {
    ConvolutionAttributes attributes = {.window = {first, columns},
                                        .input_batch = 3,
                                        .input_feature = 0,
                                        .kernel_input_feature = 0,
                                        .kernel_output_feature = 3,
                                        .output_batch = 2,
                                        .output_feature = 3,
                                        .input_spatial = {1, 2},
                                        .kernel_spatial = {1, 2},
                                        .output_spatial = {0, 1},
                                        .batch_group_count = 4};
    const Module source =
        OneConvolution({kF32, {2, 6, 5, 4}}, {kF32, {2, first.size, 5, 4}}, attributes);
    const Module written = ConvolutionForms(source);
    EXPECT_EQ(CountOf(written, Opcode::kConvolution), 0);
    EXPECT_EQ(CountOf(written, Opcode::kReduce), 9);
    ExpectSame(source, written);
  }
}

// As the gradient of a transposed convolution's kernel: the window is the larger image.
TEST(ConvolutionForms, WindowsLargerThanTheInputChangePlacesWithIt) {
  const WindowDim dim = {.size = 7, .padding_low = 2, .padding_high = 1, .base_dilation = 2};
  const WindowDim other = {.size = 7, .stride = 2, .padding_low = 3, .padding_high = 2};
  for (const std::vector<WindowDim>& window :
       std::vector<std::vector<WindowDim>>{{dim, dim}, {dim, other}}) {
    ConvolutionAttributes attributes = ImagesLast(window);
    const Module source = OneConvolution({kF32, {3, 4, 4, 2}}, {kF32, {7, 7, 2, 5}}, attributes);
    const Module written = ConvolutionForms(source);
    ExpectSame(source, written);
    ASSERT_EQ(CountOf(written, Opcode::kReverse), 2);
    for (const Instruction& instruction : written.entry_computation().instructions) {
      if (instruction.opcode != Opcode::kConvolution) continue;
      EXPECT_EQ(instruction.As<ConvolutionAttributes>().window[0].size, 4);
    }
  }
}

TEST(ConvolutionForms, OthersStayAsTheyAre) {
  const WindowDim window = {.size = 3, .padding_low = 1, .padding_high = 1};
  ConvolutionAttributes attributes = ImagesLast({window, window});
  const Module plain = OneConvolution({kF32, {2, 6, 5, 4}}, {kF32, {3, 3, 4, 6}}, attributes);
  EXPECT_EQ(ConvolutionForms(plain).entry_computation().num_instructions(), 3);
  attributes.feature_group_count = 2;
  const Module grouped = OneConvolution({kF32, {2, 6, 5, 4}}, {kF32, {3, 3, 2, 6}}, attributes);
  EXPECT_EQ(ConvolutionForms(grouped).entry_computation().num_instructions(), 3);
}

}  // namespace
}  // namespace minka
