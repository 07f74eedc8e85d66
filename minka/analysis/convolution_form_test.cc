#include "minka/analysis/convolution_form.h"

#include "gtest/gtest.h"

namespace minka {
namespace {

using ElementType::kF32;

// Of images [batch, position, feature] and kernels [position, input feature, output feature].
ConvolutionAttributes OverLines(int64_t groups) {
  return {.window = {{.size = 3, .padding_low = 1, .padding_high = 1}},
          .input_batch = 0,
          .input_feature = 2,
          .kernel_input_feature = 1,
          .kernel_output_feature = 2,
          .output_batch = 0,
          .output_feature = 2,
          .input_spatial = {1},
          .kernel_spatial = {0},
          .output_spatial = {1},
          .feature_group_count = groups};
}

ConvolutionForm FormInGroups(int64_t groups, int64_t outputs) {
  return ConvolutionFormOf(OverLines(groups), {kF32, {4, 9, 8}}, {kF32, {3, 8 / groups, outputs}},
                           {kF32, {4, 9, outputs}});
}

TEST(ConvolutionForm, IsDepthwiseWhereEveryFeatureStandsByItself) {
  EXPECT_EQ(FormInGroups(8, 8), ConvolutionForm::kDepthwise);
  EXPECT_EQ(FormInGroups(8, 16), ConvolutionForm::kPlain);
  EXPECT_EQ(FormInGroups(4, 8), ConvolutionForm::kPlain);
  EXPECT_EQ(FormInGroups(1, 8), ConvolutionForm::kPlain);
}

TEST(ConvolutionForm, AreThatOfADevicesPart) {
  const Shape operands[] = {{kF32, {4, 9, 8}}, {kF32, {3, 1, 8}}};
  const Shape halves[] = {{kF32, {4, 9, 4}}, {kF32, {3, 1, 4}}};
  const ConvolutionAttributes half = LocalConvolution(OverLines(8), operands, halves);
  EXPECT_EQ(half.feature_group_count, 4);
  EXPECT_EQ(ConvolutionFormOf(half, halves[0], halves[1], halves[0]), ConvolutionForm::kDepthwise);
  const Shape eighths[] = {{kF32, {4, 9, 1}}, {kF32, {3, 1, 1}}};
  EXPECT_EQ(ConvolutionFormOf(LocalConvolution(OverLines(8), operands, eighths), eighths[0],
                              eighths[1], eighths[0]),
            ConvolutionForm::kPlain);
}

}  // namespace
}  // namespace minka
