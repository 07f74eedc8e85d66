// Learning rates as functions of the number of updates.
#pragma once

#include <cstdint>

#include "minka/frontend/tensor.h"

namespace minka {

// With n the number of updates, this one included, the rate rises linearly to its peak,
// peak n / warmup_updates, and then follows `decay`, where t = (n - warmup_updates) /
// (decay_updates - warmup_updates) in [0, 1] and f = final_fraction:
//   kConstant     peak
//   kLinear       peak (1 - (1 - f) t)
//   kCosine       peak (f + (1 - f) (1 + cos(pi t)) / 2)     (Loshchilov and Hutter 2017,
//                                                             arXiv:1608.03983)
//   kInverseSqrt  peak sqrt(w / max(n, w)), w = max(warmup_updates, 1)
struct LearningRate {
  enum class Decay { kConstant, kLinear, kCosine, kInverseSqrt };

  // A number is a constant rate.
  LearningRate(double rate) : peak(rate) {}  // NOLINT(google-explicit-constructor)

  double peak;
  Decay decay = Decay::kConstant;
  int64_t warmup_updates = 0;
  int64_t decay_updates = 0;  // kLinear, kCosine: when the final rate is reached
  double final_fraction = 0;  // of the peak

  bool is_constant() const { return decay == Decay::kConstant && warmup_updates == 0; }
};

// The rate of the update with the number `count`, a scalar, at least 1. Fails the graph for a
// linear or cosine decay that does not end behind the warm-up.
Tensor RateAt(const LearningRate& rate, Tensor count);

}  // namespace minka
