// What the updates of several optimizers are made of.
#pragma once

#include "minka/frontend/optimizer.h"

namespace minka {

// A scalar, repeated over the dims of another tensor.
inline Tensor Spread(Tensor scalar, Tensor like) { return Broadcast(scalar, like.dims(), {}); }

// x times the learning rate.
inline Tensor TimesRate(const UpdateInputs& inputs, Tensor x) {
  const UpdateScalars& scalars = inputs.scalars;
  return scalars.rate.valid() ? x * Spread(scalars.rate, x) : x * scalars.constant_rate;
}

// The parameter, moved against the direction by the learning rate.
inline Tensor Moved(const UpdateInputs& inputs, Tensor direction) {
  return inputs.parameter - TimesRate(inputs, direction);
}

}  // namespace minka
