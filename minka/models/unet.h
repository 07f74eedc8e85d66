// A conditional U-Net that predicts the noise in images (Rombach et al. 2022, arXiv:2112.10752), in
// the form that Alpa (OSDI'22) benchmarks.
#pragma once

#include <cstdint>

#include "minka/frontend/trace.h"

namespace minka {

struct UnetConfig {
  int64_t batch = 32;
  int64_t image_size = 32;
  int64_t channels = 3;
  int64_t target_channels = 4;
  int64_t width = 320;
  // Resolutions, each half the one before. Block i has width 2^i features, the last one as many as
  // the one before it.
  int64_t num_blocks = 4;
  int64_t layers_per_block = 1;  // one more in the lowest block on the way up
  int64_t num_heads = 8;
  int64_t num_groups = 4;  // of group normalisation
  double dropout = 0;
};

// The condition: this many vectors of so many features.
int64_t ConditionLength(const UnetConfig& config);    // (image_size / 2^(num_blocks - 1))^2
int64_t ConditionFeatures(const UnetConfig& config);  // width 2^(num_blocks - 1) / 2

// Inputs images f32[batch, size, size, channels], timesteps s32[batch], condition f32[batch,
// length, features] and targets f32[batch, size, size, target_channels]; the loss is the mean
// squared error. All blocks but the lowest attend to themselves and to the condition. The
// evaluation also returns "prediction".
Model Unet(const UnetConfig& config);

}  // namespace minka
