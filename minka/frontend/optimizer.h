// Optimizers, as functions that record the update of one parameter. Rate stands for the learning
// rate, g for the gradient, p for the parameter.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "minka/frontend/learning_rate.h"
#include "minka/frontend/parameters.h"
#include "minka/frontend/tensor.h"

namespace minka {

struct ParameterUpdate {
  Tensor parameter;
  std::vector<Tensor> slots;  // invalid where the parameter has no such slot
};

// A state tensor per parameter, zeros at first: "optimizer/<name>/<parameter>".
struct OptimizerSlot {
  std::string name;
  // Its shape, nullopt if this parameter has none; without a function the parameter's own.
  std::function<std::optional<Shape>(const ParameterSpec& spec)> shape;
};

// What all updates of one step share.
struct UpdateScalars {
  double constant_rate = 0;  // where rate is invalid
  Tensor rate;               // f32[]
  std::vector<Tensor> own;   // what Optimizer::prepare returned
};

struct UpdateInputs {
  const ParameterSpec& spec;
  Tensor parameter, gradient;
  std::span<const Tensor> slots;  // by slot; invalid where the parameter has none
  const UpdateScalars& scalars;
};

struct Optimizer {
  std::string name;
  std::vector<OptimizerSlot> slots;
  LearningRate learning_rate = 0;
  // Does it keep "optimizer/count", s32[], the number of updates made, though its rate is constant?
  bool counts_updates = false;

  // Scalars of its own; `count` (f32) includes this update. Optional.
  std::function<std::vector<Tensor>(Tensor count)> prepare;
  std::function<ParameterUpdate(const UpdateInputs& inputs)> update;
};

// Is there an "optimizer/count"?
inline bool HasCount(const Optimizer& optimizer) {
  return optimizer.counts_updates || !optimizer.learning_rate.is_constant();
}

// trace = g + momentum * trace; p -= rate * trace, or with Nesterov's momentum (Sutskever et al.
// 2013) p -= rate * (g + momentum * trace).
struct SgdOptions {
  LearningRate learning_rate = 1e-2;
  double momentum = 0.9;  // 0: no state
  bool nesterov = false;
};
Optimizer Sgd(const SgdOptions& options = {});

// Kingma and Ba 2015 (arXiv:1412.6980), with both bias corrections.
struct AdamOptions {
  LearningRate learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;  // AdamW
};
Optimizer Adam(const AdamOptions& options = {});
// With decoupled weight decay (Loshchilov and Hutter 2019, arXiv:1711.05101) on parameters that
// decay: kernels and embeddings, not biases and scales.
Optimizer AdamW(const AdamOptions& options = {.weight_decay = 0.01});

// Chen et al. 2023 (arXiv:2302.06675): p -= rate * (sign(beta1 m + (1 - beta1) g) + decay p), then
// m = beta2 m + (1 - beta2) g. One state tensor.
struct LionOptions {
  LearningRate learning_rate = 1e-4;
  double beta1 = 0.9;
  double beta2 = 0.99;
  double weight_decay = 1e-3;  // of parameters that decay
};
Optimizer Lion(const LionOptions& options = {});

// You et al. 2020 (arXiv:1904.00962): AdamW's direction, scaled per parameter by |p| / |direction|
// (1 where one of them is zero).
struct LambOptions {
  LearningRate learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-6;
  double weight_decay = 0;  // of parameters that decay
};
Optimizer Lamb(const LambOptions& options = {});

// Shazeer and Stern 2018 (arXiv:1804.04235), without momentum: second moments of matrices are kept
// as row and column means, over the two largest dimensions ("v_row", "v_col"); other parameters
// keep a whole one ("v"). The moments decay by 1 - n^-decay_exponent, n the number of the update.
// Updates whose root mean square is above `clipping_threshold` are scaled down to it, and with
// `scales_by_parameter` all are scaled by max(root mean square of p, 1e-3).
struct AdafactorOptions {
  LearningRate learning_rate = 1e-2;
  double decay_exponent = 0.8;
  double clipping_threshold = 1;
  double epsilon = 1e-30;  // added to squares
  bool scales_by_parameter = true;
  int64_t min_factored_dim = 128;  // of the smaller one of the two dimensions
};
Optimizer Adafactor(const AdafactorOptions& options = {});

}  // namespace minka
