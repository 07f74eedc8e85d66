#include "minka/models/optimizer_choice.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "fmt/ranges.h"
#include "minka/base/status.h"

namespace minka {
namespace {

struct Choice {
  std::string name;
  double learning_rate;
  std::optional<double> weight_decay;  // its default; nullopt: the optimizer has none
  Optimizer (*make)(const LearningRate& learning_rate, double weight_decay);
};

std::vector<Choice> Choices() {
  return {
      {"sgd",
       1e-2,
       {},
       [](const LearningRate& rate, double) { return Sgd({.learning_rate = rate}); }},
      {"nesterov",
       1e-2,
       {},
       [](const LearningRate& rate, double) {
         return Sgd({.learning_rate = rate, .nesterov = true});
       }},
      {"adam",
       1e-3,
       {},
       [](const LearningRate& rate, double) { return Adam({.learning_rate = rate}); }},
      {"adamw", 1e-3, 0.01,
       [](const LearningRate& rate, double decay) {
         return AdamW({.learning_rate = rate, .weight_decay = decay});
       }},
      {"adafactor",
       1e-2,
       {},
       [](const LearningRate& rate, double) { return Adafactor({.learning_rate = rate}); }},
      {"lion", 1e-4, 1e-3,
       [](const LearningRate& rate, double decay) {
         return Lion({.learning_rate = rate, .weight_decay = decay});
       }},
      {"lamb", 1e-3, 0.01,
       [](const LearningRate& rate, double decay) {
         return Lamb({.learning_rate = rate, .weight_decay = decay});
       }},
  };
}

struct NamedDecay {
  std::string_view name;
  LearningRate::Decay decay;
};
constexpr NamedDecay kDecays[] = {{"constant", LearningRate::Decay::kConstant},
                                  {"linear", LearningRate::Decay::kLinear},
                                  {"cosine", LearningRate::Decay::kCosine},
                                  {"inverse-sqrt", LearningRate::Decay::kInverseSqrt}};

absl::StatusOr<LearningRate> MakeSchedule(const UpdateOptions& options, double peak) {
  if (!std::isfinite(peak) || peak < 0) {
    return InvalidArgument("the learning rate must be a number from 0 on, not {}", peak);
  }
  LearningRate schedule(peak);
  const std::string name = options.schedule.value_or("constant");
  const auto* found = std::ranges::find(kDecays, name, &NamedDecay::name);
  if (found == std::end(kDecays)) {
    return InvalidArgument(
        "no schedule is named {}; there are constant, linear, cosine and inverse-sqrt", name);
  }
  schedule.decay = found->decay;
  schedule.warmup_updates = options.warmup_updates.value_or(0);
  schedule.decay_updates = options.decay_updates.value_or(0);
  if (schedule.warmup_updates < 0) {
    return InvalidArgument("a warm-up of {} updates is less than none", schedule.warmup_updates);
  }
  const bool ends = schedule.decay == LearningRate::Decay::kLinear ||
                    schedule.decay == LearningRate::Decay::kCosine;
  if (ends && !options.decay_updates) {
    return InvalidArgument(
        "the schedule {} must know after how many updates it ends: give it the "
        "number of updates of its decay (--decay-steps)",
        name);
  }
  if (ends && schedule.decay_updates <= schedule.warmup_updates) {
    return InvalidArgument("the schedule {} ends after {} updates, within the warm-up of {}", name,
                           schedule.decay_updates, schedule.warmup_updates);
  }
  return schedule;
}

}  // namespace

std::vector<std::string> OptimizerNames() {
  std::vector<std::string> names;
  for (const Choice& choice : Choices()) names.push_back(choice.name);
  return names;
}

absl::StatusOr<Optimizer> MakeOptimizer(const UpdateOptions& options) {
  for (const Choice& choice : Choices()) {
    if (choice.name != *options.optimizer) continue;
    if (options.weight_decay && !choice.weight_decay) {
      return InvalidArgument("{} has no weight decay to set", choice.name);
    }
    const double decay = options.weight_decay.value_or(choice.weight_decay.value_or(0));
    if (!std::isfinite(decay) || decay < 0) {
      return InvalidArgument("the weight decay must be a number from 0 on, not {}", decay);
    }
    ASSIGN_OR_RETURN(const LearningRate schedule,
                     MakeSchedule(options, options.learning_rate.value_or(choice.learning_rate)));
    return choice.make(schedule, decay);
  }
  return InvalidArgument("no optimizer is named {}; there are {}", *options.optimizer,
                         fmt::join(OptimizerNames(), ", "));
}

absl::StatusOr<GradientScaling> MakeScaling(const UpdateOptions& options) {
  GradientScaling scaling{.loss_scale = {}, .clip_norm = options.clip_norm};
  if (options.clip_norm && !(*options.clip_norm > 0)) {
    return InvalidArgument("the largest norm of gradients must be above 0, not {}",
                           *options.clip_norm);
  }
  const std::string text = options.loss_scale.value_or("none");
  if (text == "none") return scaling;
  scaling.loss_scale = LossScale{};
  if (text == "dynamic") return scaling;
  double& scale = scaling.loss_scale->initial;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), scale);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(scale) ||
      scale <= 0) {
    return InvalidArgument("loss scale {} is neither none, dynamic nor a number above 0", text);
  }
  scaling.loss_scale->growth_interval = 0;
  return scaling;
}

}  // namespace minka
