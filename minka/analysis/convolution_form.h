// The form in which a device runs its part of a convolution: the lowering writes it, prices follow
// it.
#pragma once

#include <span>

#include "minka/ir/module.h"

namespace minka {

enum class ConvolutionForm {
  kPlain,      // as it is, in groups of several features too
  kDepthwise,  // each output feature from the input feature of its number
  // The gradient of such a one's kernel: each output feature from the batch element of its number.
  kDepthwiseKernelGradient,
  // The window is larger than the input: XLA would exchange input and kernel.
  kExchanged,
};

// Why these are faster stands in lowering/convolution_forms.h, which writes them.
ConvolutionForm ConvolutionFormOf(const ConvolutionAttributes& convolution, const Shape& input,
                                  const Shape& kernel, const Shape& result);

// A device's part of a convolution, of which each device has whole groups and whole windows of its
// part of the kernel.
ConvolutionAttributes LocalConvolution(const ConvolutionAttributes& whole,
                                       std::span<const Shape> operands,
                                       std::span<const Shape> local_operands);

}  // namespace minka
