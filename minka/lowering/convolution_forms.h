// Convolutions in forms for which XLA's CPU compiler has fast code.
#pragma once

#include "minka/ir/module.h"

namespace minka {

// Written anew (analysis/convolution_form.h says which), because they run as scalar loops otherwise
// (docs/design/0004):
// - depthwise convolutions, every feature by itself, as a sum over the window's elements of
//   products with slices of the padded input; the gradients of their kernels as one sum of products
//   for each element of the kernel. What is narrower than f32 is computed in f32.
// - convolutions whose window is larger than the input, as the gradients of kernels of transposed
//   ones: input and kernel change places, both reversed by operations. The compiler exchanges them,
//   too, but reverses the window, for which the matrix library has no code.
Module ConvolutionForms(const Module& module);

}  // namespace minka
