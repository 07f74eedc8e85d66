#include "tests/acceptance/pipeline_models.h"

#include <span>
#include <utility>

#include "minka/frontend/nn.h"

namespace minka {

Model TiedTable() {
  constexpr int64_t kRows = 256, kWidth = 16;
  return {.name = "tied_table",
          .inputs = {{"tokens", {ElementType::kS32, {8, 8}}, kRows}},
          .forward = [=](const Scope& scope, std::span<const Tensor> inputs) {
            const Tensor table =
                EmbeddingTable(scope / "table", {.num_rows = kRows, .features = kWidth});
            const Tensor x = (scope / "look_up").Block(inputs[0], [&](const Scope&, Tensor ids) {
              return EmbeddingRows(table, ids, ElementType::kF32);
            });
            const Tensor logits = Einsum("bsh,vh->bsv", x, table);
            return ModelOutput{.loss = Sum(logits, {0, 1, 2})};
          }};
}

Optimizer GivesGradients() {
  return {.name = "gradients", .update = [](const UpdateInputs& inputs) {
            return ParameterUpdate{.parameter = inputs.gradient};
          }};
}

Pipeline TwoStages(int num_micro_batches, std::vector<int> submeshes) {
  Pipeline method{.num_micro_batches = num_micro_batches};
  method.options.num_stages = 2;
  method.options.submeshes = std::move(submeshes);
  return method;
}

}  // namespace minka
