#include "minka/frontend/optimizer.h"

#include <cmath>

namespace minka {
namespace {

Tensor Spread(Tensor scalar, Tensor like) { return Broadcast(scalar, like.dims(), {}); }

// 1 / (1 - beta^count), by expm1 because 1 - 0.999 keeps four digits in f32.
Tensor Correction(double beta, Tensor count) {
  return -1.0 / Unary(Opcode::kExponentialMinusOne, count * std::log(beta));
}

// Numbers of one step: bias corrections of both moments, and the learning rate while it warms up.
std::vector<Tensor> AdamScalars(const AdamOptions& options, Graph& graph, Tensor count) {
  std::vector<Tensor> scalars = {Correction(options.beta1, count),
                                 Correction(options.beta2, count)};
  if (options.warmup_updates > 0) {
    const double step = options.learning_rate / static_cast<double>(options.warmup_updates);
    scalars.push_back(Min(count * step, graph.Scalar(count.type(), options.learning_rate)));
  }
  return scalars;
}

ParameterUpdate UpdateByAdam(const AdamOptions& options, const ParameterSpec& spec,
                             Tensor parameter, Tensor gradient, std::span<const Tensor> slots,
                             std::span<const Tensor> scalars) {
  const Tensor m = slots[0] * options.beta1 + gradient * (1 - options.beta1);
  const Tensor v = slots[1] * options.beta2 + gradient * gradient * (1 - options.beta2);
  const Tensor mean = m * Spread(scalars[0], m);
  const Tensor deviation = Sqrt(v * Spread(scalars[1], v)) + options.epsilon;
  Tensor direction = mean / deviation;
  if (spec.decays && options.weight_decay != 0) {
    direction = direction + parameter * options.weight_decay;
  }
  const Tensor change = scalars.size() > 2 ? direction * Spread(scalars[2], direction)
                                           : direction * options.learning_rate;
  return {parameter - change, {m, v}};
}

}  // namespace

Optimizer Sgd(const SgdOptions& options) {
  Optimizer sgd{.name = "sgd"};
  if (options.momentum != 0) sgd.slots = {"momentum"};
  sgd.prepare = [](Graph&, Tensor) { return std::vector<Tensor>(); };
  sgd.update = [options](const ParameterSpec&, Tensor parameter, Tensor gradient,
                         std::span<const Tensor> slots, std::span<const Tensor>) {
    if (slots.empty()) return ParameterUpdate{parameter - gradient * options.learning_rate, {}};
    const Tensor trace = gradient + slots[0] * options.momentum;
    return ParameterUpdate{parameter - trace * options.learning_rate, {trace}};
  };
  return sgd;
}

Optimizer Adam(const AdamOptions& options) {
  Optimizer adam{.name = "adam", .slots = {"m", "v"}, .counts_updates = true};
  adam.prepare = [options](Graph& graph, Tensor count) {
    return AdamScalars(options, graph, count);
  };
  adam.update = [options](const ParameterSpec& spec, Tensor parameter, Tensor gradient,
                          std::span<const Tensor> slots, std::span<const Tensor> scalars) {
    return UpdateByAdam(options, spec, parameter, gradient, slots, scalars);
  };
  return adam;
}

Optimizer AdamW(const AdamOptions& options) {
  Optimizer adamw = Adam(options);
  adamw.name = "adamw";
  return adamw;
}

}  // namespace minka
