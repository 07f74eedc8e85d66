#include "minka/frontend/learning_rate.h"

#include <algorithm>
#include <numbers>

#include "minka/base/status.h"

namespace minka {
namespace {

// The part of the decay that is over, in [0, 1].
Tensor Progress(const LearningRate& schedule, Tensor count) {
  const auto begin = static_cast<double>(schedule.warmup_updates);
  const auto length = static_cast<double>(schedule.decay_updates - schedule.warmup_updates);
  return Min(Max((count - begin) / length, 0.0), 1.0);
}

Tensor Decayed(const LearningRate& schedule, Tensor count) {
  const double peak = schedule.peak, rest = 1 - schedule.final_fraction;
  switch (schedule.decay) {
    case LearningRate::Decay::kConstant:
      return count.graph().Scalar(count.type(), peak);
    case LearningRate::Decay::kLinear:
      return peak - Progress(schedule, count) * (peak * rest);
    case LearningRate::Decay::kCosine: {
      const Tensor wave = Cosine(Progress(schedule, count) * std::numbers::pi) + 1.0;
      return wave * (peak * rest / 2) + peak * schedule.final_fraction;
    }
    case LearningRate::Decay::kInverseSqrt: {
      const auto begin = static_cast<double>(std::max<int64_t>(schedule.warmup_updates, 1));
      return Rsqrt(Max(count / begin, 1.0)) * peak;
    }
  }
  return Tensor();
}

}  // namespace

Tensor RateAt(const LearningRate& schedule, Tensor count) {
  if (!count.valid()) return count;
  const bool ends = schedule.decay == LearningRate::Decay::kLinear ||
                    schedule.decay == LearningRate::Decay::kCosine;
  if (ends && schedule.decay_updates <= schedule.warmup_updates) {
    return count.graph().Fail(
        InvalidArgument("a schedule that ends after {} updates has no room behind {} of warm-up",
                        schedule.decay_updates, schedule.warmup_updates));
  }
  const Tensor decayed = Decayed(schedule, count);
  if (schedule.warmup_updates == 0) return decayed;
  // Below the peak, which the decay has not left yet, only during warm-up.
  return Min(count * (schedule.peak / static_cast<double>(schedule.warmup_updates)), decayed);
}

}  // namespace minka
