// What happens to the gradients of a step between differentiation and the optimizer: the scale of
// the loss is taken off again, and their global norm is limited.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "minka/frontend/tensor.h"

namespace minka {

// The loss is multiplied by a scale before it is differentiated, so that gradients in f16 do not
// underflow. An update whose gradients are not all finite is skipped: all state stays. The scale
// is then multiplied by `backoff`, and by `growth` after `growth_interval` finite updates in a row
// (Micikevicius et al. 2018, arXiv:1710.03740).
struct LossScale {
  double initial = 65536;
  double growth = 2;
  double backoff = 0.5;
  int64_t growth_interval = 2000;  // 0: the scale stays
  bool is_dynamic() const { return growth_interval > 0; }
};

struct GradientScaling {
  std::optional<LossScale> loss_scale;
  // Gradients are scaled so that the root of the sum of all their squares is at most this.
  std::optional<double> clip_norm;
};

struct ReadyGradients {
  std::vector<Tensor> gradients;
  Tensor norm;    // before clipping, f32[]; invalid if neither option is given
  Tensor finite;  // pred[]: the sum of all squares is; invalid without a loss scale
};

// `scale`, f32[], is that of the loss; invalid for 1.
ReadyGradients ScaleGradients(Graph& graph, std::span<const Tensor> gradients, Tensor scale,
                              const GradientScaling& options);

// The state of a dynamic scale.
struct LossScaleState {
  Tensor scale;         // f32[]
  Tensor good_updates;  // s32[]: finite ones since the scale changed
};
LossScaleState NextLossScale(const LossScale& options, const LossScaleState& state, Tensor finite);

}  // namespace minka
