// Convolutions that are matrix multiplications, written as such.
#pragma once

#include "minka/ir/module.h"

namespace minka {

// Replaces a convolution by a call of a computation that does the same with a dot, where each
// spatial dimension is one of
//   pointwise   a window of one element, possibly with strides (the dot reads a slice) or as the
//               gradient of strides (the dot's result is padded);
//   contracted  a single position, whose window meets no padding (the gradient of a pointwise
//               kernel),
// and where dimensions need not be transposed. Dots read their operands as they lie, where
// convolutions cut patches out of them, and multiply no holes of dilation.
Module ConvolutionsAsDots(Module module);

}  // namespace minka
