#include "minka/analysis/convolution_form.h"

#include <algorithm>

namespace minka {
namespace {

bool HasReversal(const ConvolutionAttributes& convolution) {
  return std::ranges::any_of(convolution.window, &WindowDim::reversal);
}

bool IsDepthwise(const ConvolutionAttributes& convolution, const Shape& input,
                 const Shape& result) {
  const int64_t features = input.dims[convolution.input_feature];
  return convolution.batch_group_count == 1 && features > 1 &&
         convolution.feature_group_count == features &&
         result.dims[convolution.output_feature] == features;
}

bool IsDepthwiseKernelGradient(const ConvolutionAttributes& convolution, const Shape& input,
                               const Shape& result) {
  const int64_t batch = input.dims[convolution.input_batch];
  return convolution.feature_group_count == 1 && batch > 1 &&
         convolution.batch_group_count == batch &&
         result.dims[convolution.output_feature] == batch && !HasReversal(convolution);
}

// Would XLA exchange input and kernel (AlgebraicSimplifier's SwapConvOperands)?
bool IsWindowLargerThanInput(const ConvolutionAttributes& convolution, const Shape& input) {
  if (convolution.feature_group_count != 1 || convolution.batch_group_count != 1 ||
      HasReversal(convolution)) {
    return false;
  }
  int64_t window_elements = 1, input_elements = 1;
  for (size_t i = 0; i < convolution.window.size(); ++i) {
    const WindowDim& window = convolution.window[i];
    const int64_t input_size = input.dims[convolution.input_spatial[i]];
    const bool is_bare =
        window.padding_low == 0 && window.padding_high == 0 && window.window_dilation == 1;
    const bool is_contraction =
        is_bare && window.size == input_size && window.base_dilation == 1 && window.stride == 1;
    const bool is_group =
        is_bare && window.base_dilation == window.size && window.stride == window.size - 1;
    if (is_contraction || is_group) return false;
    window_elements *= window.size;
    const bool stays_small = input_size == 1 && window.stride == 1;
    input_elements *= stays_small ? window.size : input_size;
  }
  return window_elements > input_elements;
}

}  // namespace

ConvolutionForm ConvolutionFormOf(const ConvolutionAttributes& convolution, const Shape& input,
                                  const Shape& kernel, const Shape& result) {
  const bool is_empty =
      input.num_elements() == 0 || kernel.num_elements() == 0 || result.num_elements() == 0;
  if (is_empty || !IsFloat(result.type)) return ConvolutionForm::kPlain;
  if (IsDepthwise(convolution, input, result)) return ConvolutionForm::kDepthwise;
  if (IsDepthwiseKernelGradient(convolution, input, result))
    return ConvolutionForm::kDepthwiseKernelGradient;
  if (IsWindowLargerThanInput(convolution, input)) return ConvolutionForm::kExchanged;
  return ConvolutionForm::kPlain;
}

ConvolutionAttributes LocalConvolution(const ConvolutionAttributes& whole,
                                       std::span<const Shape> operands,
                                       std::span<const Shape> local_operands) {
  ConvolutionAttributes local = whole;
  const auto share_of = [&](int64_t count, int operand, int64_t dim) {
    const int64_t size = operands[operand].dims[dim];
    return size == 0 ? count : count / (size / local_operands[operand].dims[dim]);
  };
  if (whole.feature_group_count > 1) {
    local.feature_group_count = share_of(whole.feature_group_count, 0, whole.input_feature);
  }
  if (whole.batch_group_count > 1) {
    local.batch_group_count = share_of(whole.batch_group_count, 0, whole.input_batch);
  }
  for (size_t i = 0; i < local.window.size(); ++i) {
    local.window[i].size = local_operands[1].dims[whole.kernel_spatial[i]];
  }
  return local;
}

}  // namespace minka
