// Wide residual networks of bottleneck blocks (Zagoruyko and Komodakis 2016, arXiv:1605.07146; He
// et al. 2016, arXiv:1512.03385) with batch normalisation, in the form that Alpa (OSDI'22)
// benchmarks.
#pragma once

#include <cstdint>
#include <vector>

#include "minka/frontend/trace.h"

namespace minka {

struct WideResNetConfig {
  int64_t batch = 32;
  int64_t image_size = 224;
  int64_t channels = 3;
  int64_t num_classes = 1024;
  int64_t width = 160;       // features of the first stage; each further stage has twice as many
  int64_t width_factor = 2;  // features inside a block, over those of its stage
  std::vector<int64_t> blocks_per_stage = {3, 4, 6, 3};
  bool small_images = false;  // stem of 3x3 without strides and pooling, not 7x7 and pooling
};

// Inputs images f32[batch, size, size, channels] and labels s32[batch]; the loss is the mean cross
// entropy, "accuracy" a metric; the evaluation also returns "logits". A block of stage s, with f =
// width 2^s: 1x1 to f, 3x3 to f width_factor (by stride 2 in the first block of a stage but the
// first), 1x1 to 4 f, plus the input, which the first block of a stage projects; normalised after
// each convolution, in evaluation with averages of the statistics.
Model WideResNet(const WideResNetConfig& config);

}  // namespace minka
