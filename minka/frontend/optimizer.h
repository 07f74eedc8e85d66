// Optimizers, as functions that record the update of one parameter.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "minka/frontend/parameters.h"
#include "minka/frontend/tensor.h"

namespace minka {

struct ParameterUpdate {
  Tensor parameter;
  std::vector<Tensor> slots;
};

struct Optimizer {
  std::string name;
  // State tensors per parameter, of its shape and type, zeros at first: "optimizer/<slot>/<name>".
  std::vector<std::string> slots;
  // Does it keep "optimizer/count", s32[], the number of updates made?
  bool counts_updates = false;

  // Scalars for all updates of a step; `count` (f32) includes this update, invalid if not counted.
  std::function<std::vector<Tensor>(Graph& graph, Tensor count)> prepare;
  std::function<ParameterUpdate(const ParameterSpec& spec, Tensor parameter, Tensor gradient,
                                std::span<const Tensor> slots, std::span<const Tensor> scalars)>
      update;
};

struct SgdOptions {
  double learning_rate = 1e-2;
  double momentum = 0.9;  // 0: no state. trace = gradient + momentum * trace
};
Optimizer Sgd(const SgdOptions& options = {});

// Kingma and Ba 2015 (arXiv:1412.6980), with both bias corrections.
struct AdamOptions {
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;  // AdamW
  // The learning rate rises linearly to its value over so many updates.
  int64_t warmup_updates = 0;
};
Optimizer Adam(const AdamOptions& options = {});
// With decoupled weight decay (Loshchilov and Hutter 2019, arXiv:1711.05101) on parameters that
// decay: kernels and embeddings, not biases and scales.
Optimizer AdamW(const AdamOptions& options = {.weight_decay = 0.01});

}  // namespace minka
