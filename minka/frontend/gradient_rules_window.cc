#include <algorithm>
#include <numeric>

#include "minka/base/status.h"
#include "minka/frontend/convolution.h"
#include "minka/frontend/gradient_rules.h"

namespace minka {
namespace {

using Dims = std::vector<int64_t>;

int64_t Dilated(int64_t size, int64_t dilation) {
  return size == 0 ? 0 : (size - 1) * dilation + 1;
}

// The window that leads from positions back to base elements: element b of the base sums over the
// positions whose window meets it, with the window's elements in reverse.
WindowDim TowardsBase(const WindowDim& forward, int64_t base_size, int64_t positions) {
  const int64_t laid = Dilated(forward.size, forward.window_dilation);
  const int64_t low = laid - 1 - forward.padding_low;
  return {.size = forward.size,
          .stride = forward.base_dilation,
          .padding_low = low,
          .padding_high = Dilated(base_size, forward.base_dilation) + laid - 1 -
                          Dilated(positions, forward.stride) - low,
          .window_dilation = forward.window_dilation,
          .base_dilation = forward.stride};
}

// The window of positions on the base that leads to window elements.
WindowDim TowardsWindow(const WindowDim& forward, int64_t base_size, int64_t positions) {
  return {.size = positions,
          .stride = forward.window_dilation,
          .padding_low = forward.padding_low,
          .padding_high = Dilated(positions, forward.stride) +
                          Dilated(forward.size, forward.window_dilation) - 1 -
                          Dilated(base_size, forward.base_dilation) - forward.padding_low,
          .window_dilation = forward.stride,
          .base_dilation = forward.base_dilation};
}

// Dimension `from`, of size groups * n, becomes one of size n; its groups become the major part of
// dimension `to`.
Tensor MoveGroups(Tensor x, int64_t groups, int64_t from, int64_t to) {
  if (groups == 1) return x;
  Dims split = x.dims(), merged = x.dims(), permutation(x.rank());
  split[from] /= groups;
  split.insert(split.begin() + from, groups);
  merged[from] /= groups;
  merged[to] *= groups;
  std::iota(permutation.begin(), permutation.end(), 0);
  for (int64_t& dim : permutation) dim += dim >= from ? 1 : 0;
  permutation.insert(permutation.begin() + to, from);
  return Reshape(Transpose(Reshape(x, split), permutation), merged);
}

// The kernel's spatial dimensions that the way back meets in the other order. The kernel is
// reversed by an operation of its own: XLA has fast convolutions only for windows without reversal.
Dims DimsToReverse(const ConvolutionAttributes& forward) {
  Dims dims;
  for (size_t i = 0; i < forward.window.size(); ++i) {
    if (!forward.window[i].reversal && forward.window[i].size > 1)
      dims.push_back(forward.kernel_spatial[i]);
  }
  return dims;
}

Tensor GradientOfInput(const Adjoint& a, Tensor g, Tensor kernel) {
  const auto& forward = a.instruction.As<ConvolutionAttributes>();
  const int64_t groups = std::max(forward.feature_group_count, forward.batch_group_count);
  ConvolutionAttributes back{.input_batch = forward.output_batch,
                             .input_feature = forward.output_feature,
                             .kernel_input_feature = forward.kernel_output_feature,
                             .kernel_output_feature = forward.kernel_input_feature,
                             .output_batch = forward.input_batch,
                             .output_feature = forward.input_feature,
                             .input_spatial = forward.output_spatial,
                             .kernel_spatial = forward.kernel_spatial,
                             .output_spatial = forward.input_spatial,
                             .feature_group_count = groups};
  for (size_t i = 0; i < forward.window.size(); ++i) {
    back.window.push_back(TowardsBase(forward.window[i],
                                      a.operand_shape(0).dims[forward.input_spatial[i]],
                                      g.dim(static_cast<int>(forward.output_spatial[i]))));
  }
  kernel = MoveGroups(kernel, groups, forward.kernel_output_feature, forward.kernel_input_feature);
  kernel = Reverse(kernel, DimsToReverse(forward));
  const Tensor gradient = Convolution(g, kernel, std::move(back));
  return MoveGroups(gradient, forward.batch_group_count, forward.input_feature,
                    forward.input_batch);
}

Tensor GradientOfKernel(const Adjoint& a, Tensor input, Tensor g) {
  const auto& forward = a.instruction.As<ConvolutionAttributes>();
  ConvolutionAttributes back{.input_batch = forward.input_feature,
                             .input_feature = forward.input_batch,
                             .kernel_input_feature = forward.output_batch,
                             .kernel_output_feature = forward.output_feature,
                             .output_batch = forward.kernel_input_feature,
                             .output_feature = forward.kernel_output_feature,
                             .input_spatial = forward.input_spatial,
                             .kernel_spatial = forward.output_spatial,
                             .output_spatial = forward.kernel_spatial,
                             .feature_group_count = forward.batch_group_count,
                             .batch_group_count = forward.feature_group_count};
  Dims reversed;
  for (size_t i = 0; i < forward.window.size(); ++i) {
    back.window.push_back(TowardsWindow(forward.window[i],
                                        input.dim(static_cast<int>(forward.input_spatial[i])),
                                        g.dim(static_cast<int>(forward.output_spatial[i]))));
    if (forward.window[i].reversal) reversed.push_back(forward.kernel_spatial[i]);
  }
  return Reverse(Convolution(input, g, std::move(back)), reversed);
}

// A vector of features spread over the dims of operand 0.
Tensor Spread(const Adjoint& a, Tensor vector) {
  return Broadcast(Convert(vector, a.g().type()), a.operand_shape(0).dims,
                   {a.instruction.As<BatchNormAttributes>().feature_index});
}

}  // namespace

absl::Status ConvolutionGradient(Adjoint& a) {
  const ElementType input_type = a.operand_shape(0).type, kernel_type = a.operand_shape(1).type;
  const Tensor g = Convert(a.g(), input_type);
  const auto& forward = a.instruction.As<ConvolutionAttributes>();
  for (const int64_t dim : forward.output_spatial) {
    if (g.dim(static_cast<int>(dim)) == 0) return absl::OkStatus();  // no position, no gradient
  }
  if (a.wanted[0]) a.gradients[0] = GradientOfInput(a, g, Convert(a.x(1), input_type));
  if (a.wanted[1]) {
    a.gradients[1] = Convert(GradientOfKernel(a, a.x(0), g), kernel_type);
  }
  return absl::OkStatus();
}

absl::Status ReduceWindowGradient(Adjoint& a) {
  const std::vector<WindowDim>& forward = a.instruction.As<WindowAttributes>().dims;
  if (a.instruction.operands.size() != 2) {
    return Unimplemented("a windowed reduction of several arrays has no gradient rule");
  }
  const Opcode reducer = a.called_opcode();
  if (reducer == Opcode::kAdd) {
    if (a.wanted[1]) a.gradients[1] = Sum(a.g());
    if (!a.wanted[0]) return absl::OkStatus();
    std::vector<WindowDim> back;
    for (int dim = 0; dim < a.g().rank(); ++dim) {
      back.push_back(TowardsBase(forward[dim], a.operand_shape(0).dims[dim], a.g().dim(dim)));
    }
    a.gradients[0] = ReduceWindow(Opcode::kAdd, a.g(), 0, std::move(back));
    return absl::OkStatus();
  }
  const bool dilated = std::ranges::any_of(forward, [](const WindowDim& dim) {
    return dim.base_dilation != 1 || dim.window_dilation != 1;
  });
  if ((reducer != Opcode::kMaximum && reducer != Opcode::kMinimum) || dilated) {
    return Unimplemented(
        "a{} windowed reduction by \"{}\" has no gradient rule; add, and maximum and minimum "
        "without dilation have",
        dilated ? " dilated" : "", OpcodeName(reducer));
  }
  if (a.wanted[1]) return Unimplemented("the start value of a maximum has no gradient rule");
  const Comparison select = reducer == Opcode::kMaximum ? Comparison::kGe : Comparison::kLe;
  a.gradients[0] = SelectAndScatterAdd(select, a.x(0), a.g(), forward);
  return absl::OkStatus();
}

absl::Status BatchNormTrainingGradient(Adjoint& a) {
  if (a.result_gradients[1].valid() || a.result_gradients[2].valid()) {
    return Unimplemented("the statistics of batch-norm-training have no gradient rule");
  }
  const auto statistic = [&](int32_t index) {
    return a.primal({a.result.instruction, index}).value();
  };
  const Value first = a.graph->builder().Append(
      {.opcode = Opcode::kBatchNormGrad,
       .operands = {a.x(0).value(), a.x(1).value(), statistic(1), statistic(2), a.g().value()},
       .attributes = a.instruction.As<BatchNormAttributes>()});
  for (int32_t i = 0; i < 3; ++i) {
    a.gradients[i] = a.graph->Record({first.instruction, i}, {});
  }
  return absl::OkStatus();
}

// y = (x - mean) scale r + offset with r = rsqrt(variance + epsilon).
absl::Status BatchNormInferenceGradient(Adjoint& a) {
  const auto& attributes = a.instruction.As<BatchNormAttributes>();
  Dims others;
  for (int64_t dim = 0; dim < a.g().rank(); ++dim) {
    if (dim != attributes.feature_index) others.push_back(dim);
  }
  const Tensor r = Rsqrt(a.x(4) + static_cast<double>(attributes.epsilon));
  const Tensor slope = a.x(1) * r;
  if (a.wanted[0]) a.gradients[0] = a.g() * Spread(a, slope);
  const Tensor sum = Sum(a.g(), others);
  if (a.wanted[2]) a.gradients[2] = sum;
  if (a.wanted[3]) a.gradients[3] = -(sum * slope);
  if (!a.wanted[1] && !a.wanted[4]) return absl::OkStatus();
  const Tensor moment = Sum(a.g() * (a.x(0) - Spread(a, a.x(3))), others);
  if (a.wanted[1]) a.gradients[1] = moment * r;
  if (a.wanted[4]) a.gradients[4] = moment * slope * r * r * -0.5;
  return absl::OkStatus();
}

}  // namespace minka
