// The multi-layer perceptron of the acceptance rows.
#pragma once

#include <span>
#include <string>

#include "fmt/format.h"
#include "minka/frontend/nn.h"
#include "minka/frontend/trace.h"

namespace minka {

// Dense layers in blocks, as many in each, and the mean squared error.
inline Model DenseLayers(int64_t batch, int64_t width, int num_blocks, int layers_per_block) {
  const Shape shape{ElementType::kF32, {batch, width}};
  return {.name = "dense_layers",
          .inputs = {{"x", shape}, {"y", shape}},
          .forward = [=](const Scope& scope, std::span<const Tensor> inputs) {
            Tensor x = inputs[0];
            for (int i = 0; i < num_blocks; ++i) {
              x = (scope / fmt::format("block_{}", i)).Block(x, [&](const Scope& block, Tensor in) {
                for (int j = 0; j < layers_per_block; ++j) {
                  in = Dense(block / fmt::format("dense_{}", j), in, {.features = {width}});
                }
                return in;
              });
            }
            const Tensor difference = x - inputs[1];
            return ModelOutput{.loss = Mean(difference * difference, {0, 1}),
                               .outputs = {{"y", x}}};
          }};
}

}  // namespace minka
