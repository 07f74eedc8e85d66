// A multi-layer perceptron: Dense with relu between the layers, mean squared error against a
// target.
#pragma once

#include "minka/frontend/trace.h"

namespace minka {

struct MlpConfig {
  int64_t batch = 256;
  int64_t hidden = 1024;  // also the size of input and output
  int64_t num_layers = 6;
};

// Inputs x and y, [batch, hidden]. Parameters layer_i/{kernel,bias}.
Model Mlp(const MlpConfig& config);

}  // namespace minka
