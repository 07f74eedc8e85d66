// From a model, an optimizer and the shapes of a batch to a step: one training step of one device.
//
//   ASSIGN_OR_RETURN(TracedStep traced, Trace(model, AdamW()));
//
// Parameters of the step, in this order: "params/<path>" of every parameter in order of first use,
// "optimizer/<slot>/<path>" per slot, "optimizer/count", "loss_scale/{scale,good_updates}",
// "state/<path>" of every state of the model that is no parameter (averages of statistics), the
// batch inputs, "key" (u32[2], another one for every step; only if the model draws random masks).
// Results: the new state in the same order (each may reuse its parameter's memory), "loss", the
// model's metrics, "gradient_norm" where gradients are scaled. Instructions: forward in the order
// of the model, backward in reverse, then all updates. Marked are the loss, the gradient of each
// parameter as the optimizer reads it, and as layer boundaries what enters each block and leaves
// the last one.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/frontend/gradient_scaling.h"
#include "minka/frontend/optimizer.h"
#include "minka/frontend/parameters.h"
#include "minka/ir/step.h"

namespace minka {

// An input of the model. Its first dimension counts examples.
struct BatchInput {
  std::string name;
  Shape shape;
  // Integers: valid values are [0, num_values). Floats: 0.
  int64_t num_values = 0;
  bool operator==(const BatchInput&) const = default;
};

struct NamedTensor {
  std::string name;
  Tensor value;
};

struct ModelOutput {
  Tensor loss;                       // a scalar
  std::vector<NamedTensor> metrics;  // results of the step
  std::vector<NamedTensor> outputs;  // results of an evaluation only, e.g. logits
};

struct Model {
  std::string name;
  std::vector<BatchInput> inputs;
  // Records the forward pass; must be the same each time. `inputs` in the order of the above.
  std::function<ModelOutput(const Scope& scope, std::span<const Tensor> inputs)> forward;
};

struct TraceOptions {
  DtypePolicy dtype;
  GradientScaling scaling;
};

struct TracedStep {
  Step step;
  // By parameter number; none for batch inputs and key.
  std::vector<std::optional<Initializer>> initializers;
  std::vector<BatchInput> inputs;
};

// The training step.
absl::StatusOr<TracedStep> Trace(const Model& model, const Optimizer& optimizer,
                                 const TraceOptions& options = {});
// Loss, metrics and outputs without an update and without dropout. Parameters: "params/<path>" and
// "state/<path>" as constants, in the same order as in the training step, then the batch inputs.
absl::StatusOr<TracedStep> TraceEvaluation(const Model& model, const TraceOptions& options = {});
// What Trace declares as "params/...".
absl::StatusOr<std::vector<ParameterSpec>> ParametersOf(const Model& model,
                                                        const DtypePolicy& dtype = {});

int64_t NumElements(std::span<const ParameterSpec> parameters);

}  // namespace minka
