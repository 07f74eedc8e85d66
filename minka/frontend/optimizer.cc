#include "minka/frontend/optimizer.h"

#include <cmath>
#include <utility>

#include "minka/frontend/update_terms.h"

namespace minka {
namespace {

// 1 / (1 - beta^count), by expm1 because 1 - 0.999 keeps four digits in f32.
Tensor Correction(double beta, Tensor count) {
  return -1.0 / Unary(Opcode::kExponentialMinusOne, count * std::log(beta));
}

struct Moments {
  double beta1 = 0, beta2 = 0, epsilon = 0;
};

// What Adam and its descendants move the parameter by, before decay, rate and sign.
struct AdamDirection {
  Tensor direction;
  std::vector<Tensor> slots;
};

AdamDirection DirectionOf(const Moments& options, const UpdateInputs& inputs) {
  const Tensor g = inputs.gradient;
  const Tensor m = inputs.slots[0] * options.beta1 + g * (1 - options.beta1);
  const Tensor v = inputs.slots[1] * options.beta2 + g * g * (1 - options.beta2);
  const Tensor mean = m * Spread(inputs.scalars.own[0], m);
  const Tensor deviation = Sqrt(v * Spread(inputs.scalars.own[1], v)) + options.epsilon;
  return {mean / deviation, {m, v}};
}

Optimizer WithMoments(std::string name, const Moments& moments, const LearningRate& learning_rate) {
  Optimizer optimizer{.name = std::move(name),
                      .slots = {{"m", {}}, {"v", {}}},
                      .learning_rate = learning_rate,
                      .counts_updates = true};
  optimizer.prepare = [moments](Tensor count) {
    return std::vector<Tensor>{Correction(moments.beta1, count), Correction(moments.beta2, count)};
  };
  return optimizer;
}

Tensor WithDecay(Tensor direction, double weight_decay, const UpdateInputs& inputs) {
  if (!inputs.spec.decays || weight_decay == 0) return direction;
  return direction + inputs.parameter * weight_decay;
}

// |p| / |direction|, 1 where one of them is zero.
Tensor TrustRatio(Tensor parameter, Tensor direction) {
  const Tensor p = Sqrt(Sum(parameter * parameter));
  const Tensor d = Sqrt(Sum(direction * direction));
  const Tensor both = And(Compare(Comparison::kGt, p, 0.0), Compare(Comparison::kGt, d, 0.0));
  return Where(both, p / d, 1.0);
}

}  // namespace

Optimizer Sgd(const SgdOptions& options) {
  Optimizer sgd{.name = "sgd", .slots = {}, .learning_rate = options.learning_rate};
  if (options.momentum != 0) sgd.slots = {{"momentum", {}}};
  sgd.update = [options](const UpdateInputs& inputs) -> ParameterUpdate {
    const Tensor g = inputs.gradient;
    if (inputs.slots.empty()) return {Moved(inputs, g), {}};
    const Tensor trace = g + inputs.slots[0] * options.momentum;
    const Tensor direction = options.nesterov ? g + trace * options.momentum : trace;
    return {Moved(inputs, direction), {trace}};
  };
  return sgd;
}

Optimizer Adam(const AdamOptions& options) {
  const Moments moments{options.beta1, options.beta2, options.epsilon};
  Optimizer adam = WithMoments("adam", moments, options.learning_rate);
  adam.update = [moments, decay = options.weight_decay](const UpdateInputs& inputs) {
    AdamDirection adam = DirectionOf(moments, inputs);
    return ParameterUpdate{Moved(inputs, WithDecay(adam.direction, decay, inputs)),
                           std::move(adam.slots)};
  };
  return adam;
}

Optimizer AdamW(const AdamOptions& options) {
  Optimizer adamw = Adam(options);
  adamw.name = "adamw";
  return adamw;
}

Optimizer Lion(const LionOptions& options) {
  Optimizer lion{.name = "lion", .slots = {{"m", {}}}, .learning_rate = options.learning_rate};
  lion.update = [options](const UpdateInputs& inputs) -> ParameterUpdate {
    const Tensor g = inputs.gradient, m = inputs.slots[0];
    const Tensor direction = Sign(m * options.beta1 + g * (1 - options.beta1));
    return {Moved(inputs, WithDecay(direction, options.weight_decay, inputs)),
            {m * options.beta2 + g * (1 - options.beta2)}};
  };
  return lion;
}

Optimizer Lamb(const LambOptions& options) {
  const Moments moments{options.beta1, options.beta2, options.epsilon};
  Optimizer lamb = WithMoments("lamb", moments, options.learning_rate);
  lamb.update = [moments, decay = options.weight_decay](const UpdateInputs& inputs) {
    AdamDirection adam = DirectionOf(moments, inputs);
    const Tensor direction = WithDecay(adam.direction, decay, inputs);
    const Tensor ratio = TrustRatio(inputs.parameter, direction);
    return ParameterUpdate{Moved(inputs, direction * Spread(ratio, direction)),
                           std::move(adam.slots)};
  };
  return lamb;
}

}  // namespace minka
