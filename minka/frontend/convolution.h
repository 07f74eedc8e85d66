// What convolution networks add: sliding windows, pooling, and normalisation over batches and
// groups. Images are [batch, spatial..., features], kernels [spatial..., inputs / groups, outputs].
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "minka/frontend/parameters.h"
#include "minka/frontend/tensor.h"

namespace minka {

// HLO's operations.
Tensor Convolution(Tensor input, Tensor kernel, ConvolutionAttributes attributes);
// Reduces the elements under each position of a window over every dimension of x.
Tensor ReduceWindow(Opcode reducer, Tensor x, double init, std::vector<WindowDim> window);
// Per position of the window on x, the element of x that `select` prefers to all others gets the
// position's element of `source`; elements that get several get their sum.
Tensor SelectAndScatterAdd(Comparison select, Tensor x, Tensor source,
                           std::vector<WindowDim> window);
Tensor Reverse(Tensor x, std::vector<int64_t> dims);
// Element i of the dimension is the sum of elements 0 to i; from the end with `reverse`.
Tensor CumulativeSum(Tensor x, int dim, bool reverse = false);

enum class Padding {
  kSame,   // as many positions as stride times fit into the dimension, rounded up
  kValid,  // no padding
};

struct ConvOptions {
  int64_t features = 0;            // of the output
  std::vector<int64_t> kernel;     // size per spatial dimension, which it numbers
  std::vector<int64_t> strides;    // none: 1 each
  std::vector<int64_t> dilations;  // of the kernel; none: 1 each
  Padding padding = Padding::kSame;
  int64_t groups = 1;  // of features; inputs and outputs of each are their own
  bool bias = true;
  // Of the kernel; without it normal with variance 1 / inputs of an output.
  std::optional<double> stddev;
};
// x convolved with kernel, plus bias [features].
Tensor Conv(const Scope& scope, Tensor x, const ConvOptions& options);
// The transposed convolution: strides multiply the spatial sizes. Groups must be 1.
Tensor ConvTranspose(const Scope& scope, Tensor x, const ConvOptions& options);

struct PoolOptions {
  std::vector<int64_t> window;   // size per spatial dimension
  std::vector<int64_t> strides;  // none: the window's sizes
  Padding padding = Padding::kValid;
};
Tensor MaxPool(Tensor x, const PoolOptions& options);
// Padding counts as elements of value 0.
Tensor AveragePool(Tensor x, const PoolOptions& options);
// Every element repeated `factor` times along each spatial dimension.
Tensor Upsample(Tensor x, int64_t factor);

struct BatchNormOptions {
  double epsilon = 1e-5;
  // States "mean" and "variance" keep momentum times themselves plus the rest of the batch's in
  // each step, and serve in evaluation. Without: evaluation takes the batch's own.
  std::optional<double> momentum = 0.9;
  bool zero_scale = false;  // start with scale 0: the last one of a residual block
};
// (x - mean) / sqrt(variance + epsilon) * scale + bias over all dims but the last; in training with
// the statistics of the batch, in f32. The variance is E[x^2] - E[x]^2, so that one pass over x
// gives both sums.
Tensor BatchNorm(const Scope& scope, Tensor x, const BatchNormOptions& options = {});

// Normalises, per example, each group of features over group and spatial dims; statistics in f32.
Tensor GroupNorm(const Scope& scope, Tensor x, int64_t groups, double epsilon = 1e-5);

}  // namespace minka
