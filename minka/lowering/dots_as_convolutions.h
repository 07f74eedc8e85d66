// Products of images and matrices in a form for which GPUs' convolution library has code.
#pragma once

#include "minka/ir/module.h"

namespace minka {

// Writes as convolutions by windows of one element, or as the gradients of their kernels, the dots
//   [batch, spatial..., features] . [features, features'] over features (either side of the matrix)
//   [batch, spatial..., features] . [batch, spatial..., features'] over all but features,
// with two or three spatial dimensions: what ir/convolutions_as_dots.h made of convolutions for
// planning, and dense layers on images. XLA:GPU makes matrix products of dots, in front of which it
// copies images into the order of a matrix; the library takes images as they lie.
Module DotsAsConvolutions(const Module& module);

}  // namespace minka
