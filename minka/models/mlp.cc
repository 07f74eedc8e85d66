#include "minka/models/mlp.h"

#include "fmt/format.h"
#include "minka/frontend/nn.h"

namespace minka {
namespace {

ModelOutput Forward(const MlpConfig& config, const Scope& scope, Tensor x, Tensor target) {
  x = Convert(x, scope.compute_type());
  for (int64_t i = 0; i < config.num_layers; ++i) {
    x = (scope / fmt::format("layer_{}", i)).Block(x, [&](const Scope& layer, Tensor in) {
      const Tensor out = Dense(layer, in, {.features = {config.hidden}});
      return i + 1 < config.num_layers ? Relu(out) : out;
    });
  }
  const ScopeName name(scope.graph(), "loss");
  return {.loss = MeanSquaredError(Convert(x, ElementType::kF32), target), .outputs = {{"y", x}}};
}

}  // namespace

Model Mlp(const MlpConfig& config) {
  const Shape shape{ElementType::kF32, {config.batch, config.hidden}};
  return {.name = "mlp",
          .inputs = {{"x", shape}, {"y", shape}},
          .forward = [config](const Scope& scope, std::span<const Tensor> inputs) {
            return Forward(config, scope, inputs[0], inputs[1]);
          }};
}

}  // namespace minka
