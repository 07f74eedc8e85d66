#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "minka/base/status.h"
#include "minka/ir/builder.h"

namespace minka {
namespace {

using Dims = std::vector<int64_t>;
using ElementType::kF32;
constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();

// The shape of what `build` makes, or the error.
std::string Built(const std::function<Value(ComputationBuilder&)>& build) {
  ModuleBuilder module("test");
  ComputationBuilder b = module.Entry();
  const Value value = build(b);
  if (!module.status().ok()) return Message(module.status());
  return ToString(b.shape(value));
}

// Images [batch, height, width, features] and kernels [height, width, in, out].
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

std::string Convolved(const Dims& input, const Dims& kernel, const ConvolutionAttributes& a) {
  return Built([&](ComputationBuilder& b) {
    return b.Convolution(b.Parameter({kF32, input}, "x"), b.Parameter({kF32, kernel}, "w"), a);
  });
}

TEST(InferConvolution, StridesPaddingsAndGroups) {
  const WindowDim same{.size = 3, .padding_low = 1, .padding_high = 1};
  const WindowDim half{.size = 3, .stride = 2, .padding_low = 1, .padding_high = 1};
  EXPECT_EQ(Convolved({8, 16, 16, 4}, {3, 3, 4, 6}, Images({same, half})), "f32[8,16,8,6]");
  ConvolutionAttributes grouped = Images({same, same});
  grouped.feature_group_count = 2;
  EXPECT_EQ(Convolved({8, 16, 16, 4}, {3, 3, 2, 6}, grouped), "f32[8,16,16,6]");
  ConvolutionAttributes batches = Images({same, same});
  batches.batch_group_count = 2;
  EXPECT_EQ(Convolved({8, 16, 16, 4}, {3, 3, 4, 6}, batches), "f32[4,16,16,6]");
}

TEST(InferConvolution, MisfitsAreNamed) {
  const ConvolutionAttributes a = Images({{.size = 3}, {.size = 3}});
  EXPECT_EQ(Convolved({8, 16, 16, 4}, {3, 3, 5, 6}, a),
            "in 'main': convolution: 4 input features in 1 groups for a kernel of 5");
  EXPECT_EQ(Convolved({8, 16, 16, 4}, {3, 2, 4, 6}, a),
            "in 'main': convolution: spatial dimension 1 of the kernel has size 2, the window 3");
  ConvolutionAttributes twice = a;
  twice.input_feature = 2;
  EXPECT_EQ(Convolved({8, 16, 16, 4}, {3, 3, 4, 6}, twice),
            "in 'main': convolution: input [0,2,1,2]: 2 twice");
  ConvolutionAttributes missing = a;
  missing.output_spatial = {1};
  EXPECT_EQ(Convolved({8, 16, 16, 4}, {3, 3, 4, 6}, missing),
            "in 'main': convolution: output of rank 4 has 1 spatial dimensions, the window 2");
  ConvolutionAttributes groups = a;
  groups.feature_group_count = groups.batch_group_count = 2;
  EXPECT_EQ(Convolved({8, 16, 16, 4}, {3, 3, 2, 6}, groups),
            "in 'main': convolution: has 2 feature and 2 batch groups; one of them must be 1");
  ConvolutionAttributes odd = a;
  odd.batch_group_count = 3;
  EXPECT_EQ(Convolved({8, 16, 16, 4}, {3, 3, 4, 6}, odd),
            "in 'main': convolution: 6 output features and a batch of 8 do not form 3 groups");
}

TEST(InferConvolution, HugeNumbersAreRefused) {
  ConvolutionAttributes a =
      Images({{.size = 3, .padding_low = kHuge, .padding_high = kHuge}, {.size = 3}});
  EXPECT_EQ(Convolved({8, 16, 16, 4}, {3, 3, 4, 6}, a),
            "in 'main': convolution: a window of size 3 stride 1 padding 9223372036854775807_"
            "9223372036854775807 dilations 1 and 1 is not possible along dimension 1 of size 16");
}

TEST(InferReduceWindow, PositionsOfTheWindow) {
  const auto pooled = [](std::vector<WindowDim> window) {
    return Built([&](ComputationBuilder& b) {
      return b.ReduceWindow(b.Parameter({kF32, {8, 16}}, "x"), b.Scalar(kF32, 0), window,
                            Opcode::kMaximum);
    });
  };
  EXPECT_EQ(pooled({{}, {.size = 2, .stride = 2}}), "f32[8,8]");
  EXPECT_EQ(pooled({{}}), "in 'main': reduce-window: a window of 1 dimensions on f32[8,16]");
  EXPECT_EQ(pooled({{}, {.size = 0}}),
            "in 'main': reduce-window: a window of size 0 stride 1 padding 0_0 dilations 1 and 1 "
            "is not possible along dimension 1 of size 16");
}

TEST(InferSelectAndScatter, SourceHasOneElementPerPosition) {
  const auto scattered = [](const Dims& source) {
    return Built([&](ComputationBuilder& b) {
      const Value x = b.Parameter({kF32, {8, 16}}, "x");
      return b.SelectAndScatterAdd(x, b.Parameter({kF32, source}, "g"), b.Scalar(kF32, 0),
                                   {{}, {.size = 2, .stride = 2}},
                                   CompareAttributes::Direction::kGe);
    });
  };
  EXPECT_EQ(scattered({8, 8}), "f32[8,16]");
  EXPECT_EQ(scattered({8, 16}),
            "in 'main': select-and-scatter: source f32[8,16] for windows [8,8] of f32[8,16]");
}

std::string Normalised(Opcode opcode, const std::vector<Dims>& operands, int64_t feature,
                       float epsilon = 0.001F) {
  return Built([&](ComputationBuilder& b) {
    Instruction instruction{.opcode = opcode, .attributes = BatchNormAttributes{epsilon, feature}};
    for (const Dims& dims : operands) {
      instruction.operands.push_back(b.Parameter({kF32, dims}, "p"));
    }
    return b.Append(std::move(instruction));
  });
}

TEST(InferBatchNorm, OneNumberPerFeature) {
  const Dims x = {2, 3, 4}, f = {4};
  EXPECT_EQ(Normalised(Opcode::kBatchNormTraining, {x, f, f}, 2), "f32[2,3,4]");
  EXPECT_EQ(Normalised(Opcode::kBatchNormInference, {x, f, f, f, f}, 2), "f32[2,3,4]");
  EXPECT_EQ(Normalised(Opcode::kBatchNormGrad, {x, f, f, f, x}, 2), "f32[2,3,4]");
  EXPECT_EQ(Normalised(Opcode::kBatchNormTraining, {x, f, {3}}, 2),
            "in 'main': batch-norm-training: operand 2 is f32[3], not one number per feature of "
            "f32[2,3,4]");
  EXPECT_EQ(Normalised(Opcode::kBatchNormGrad, {x, f, f, f, f}, 2),
            "in 'main': batch-norm-grad: gradient f32[4] for f32[2,3,4]");
  EXPECT_EQ(Normalised(Opcode::kBatchNormTraining, {x, f, f}, 3),
            "in 'main': batch-norm-training: feature dimension [3]: 3 is not a dimension of rank "
            "3");
  EXPECT_EQ(Normalised(Opcode::kBatchNormTraining, {x, f, f}, 2, std::nanf("")),
            "in 'main': batch-norm-training: epsilon is nan");
}

TEST(InferPad, HugePaddingIsRefused) {
  EXPECT_EQ(Built([](ComputationBuilder& b) {
              return b.Pad(b.Parameter({kF32, {8}}, "x"), b.Scalar(kF32, 0),
                           {{kHuge}, {kHuge}, {kHuge}});
            }),
            "in 'main': pad: dimension 0 of f32[8] padded by 9223372036854775807, "
            "9223372036854775807 and 9223372036854775807 inside");
}

}  // namespace
}  // namespace minka
