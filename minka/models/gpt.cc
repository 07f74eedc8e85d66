#include "minka/models/gpt.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "fmt/format.h"
#include "minka/frontend/experts.h"
#include "minka/frontend/nn.h"

namespace minka {
namespace {

// One trace of the forward pass.
struct GptForward {
  const GptConfig& config;
  double kernel_stddev = std::sqrt(2 / (5 * static_cast<double>(config.hidden)));
  double residual_stddev = kernel_stddev / std::sqrt(2 * static_cast<double>(config.num_layers));

  Tensor Embed(const Scope& scope, Tensor tokens) const {
    const Tensor words = EmbeddingTable(scope / "tokens",
                                        {.num_rows = config.vocabulary, .features = config.hidden});
    const Tensor positions = EmbeddingTable(
        scope / "positions", {.num_rows = config.sequence, .features = config.hidden});
    const ScopeName name(scope.graph(), scope.path());
    const ElementType type = scope.compute_type();
    const Tensor sum =
        EmbeddingRows(words, tokens, type, config.look_up) + Convert(positions, type);
    return Dropout(scope / "dropout", sum, config.dropout);
  }

  Tensor Mlp(const Scope& scope, Tensor x) const {
    const Tensor up =
        Dense(scope / "up", x,
              {.features = {config.mlp_factor * config.hidden}, .stddev = kernel_stddev});
    const ScopeName name(scope.graph(), scope.path());
    return Dense(scope / "down", Gelu(up),
                 {.features = {config.hidden}, .stddev = residual_stddev});
  }

  Tensor Experts(const Scope& scope, Tensor x, std::vector<Tensor>& auxiliary_losses) const {
    const GptExperts& experts = *config.experts;
    const ExpertsOutput output = MixtureOfExperts(
        scope, x,
        {.num_experts = experts.num_experts,
         .hidden = config.mlp_factor * config.hidden,
         .group_size = std::min(experts.group_size, config.batch * config.sequence),
         .up_stddev = kernel_stddev,
         .down_stddev = residual_stddev,
         .gate_stddev = kernel_stddev});
    auxiliary_losses.push_back(output.auxiliary_loss);
    return output.y;
  }

  Tensor Layer(const Scope& scope, Tensor x, const AttentionBias& bias,
               std::vector<Tensor>* auxiliary_losses) const {
    const Tensor attention =
        Attention(scope / "attention", LayerNorm(scope / "attention_norm", x), bias,
                  {.num_heads = config.num_heads,
                   .dropout = config.dropout,
                   .kernel_stddev = kernel_stddev,
                   .output_stddev = residual_stddev});
    const ScopeName name(scope.graph(), scope.path());
    x = x + Dropout(scope / "attention_dropout", attention, config.dropout);
    const Tensor normal = LayerNorm(scope / "mlp_norm", x);
    const Tensor mlp = auxiliary_losses != nullptr
                           ? Experts(scope / "experts", normal, *auxiliary_losses)
                           : Mlp(scope / "mlp", normal);
    return x + Dropout(scope / "mlp_dropout", mlp, config.dropout);
  }

  ModelOutput operator()(const Scope& scope, Tensor tokens, Tensor labels) const {
    Tensor x = Embed(scope / "embedding", tokens);
    const AttentionBias bias = CausalBias(scope.graph(), scope.compute_type(), config.sequence);
    std::vector<Tensor> auxiliary_losses;
    for (int64_t i = 0; i < config.num_layers; ++i) {
      const bool has_experts = config.experts && i % 2 == 0;
      x = (scope / fmt::format("layer_{}", i)).Block(x, [&](const Scope& layer, Tensor in) {
        return Layer(layer, in, bias, has_experts ? &auxiliary_losses : nullptr);
      });
    }
    const Tensor logits =
        Dense(scope / "head", LayerNorm(scope / "final_norm", x),
              {.features = {config.vocabulary}, .bias = false, .stddev = kernel_stddev});
    ModelOutput output{.loss = MeanCrossEntropy(logits, labels), .outputs = {{"logits", logits}}};
    if (config.experts && scope.training()) AddAuxiliaryLoss(auxiliary_losses, output);
    return output;
  }

  void AddAuxiliaryLoss(const std::vector<Tensor>& losses, ModelOutput& output) const {
    Tensor sum = losses.front();
    for (size_t i = 1; i < losses.size(); ++i) sum = sum + losses[i];
    const Tensor mean = sum * (1 / static_cast<double>(losses.size()));
    output.metrics = {{"cross_entropy", output.loss}, {"auxiliary_loss", mean}};
    output.loss = output.loss + mean * config.experts->auxiliary_weight;
  }
};

}  // namespace

Model Gpt(const GptConfig& config) {
  const Shape ids{ElementType::kS32, {config.batch, config.sequence}};
  return {.name = "gpt",
          .inputs = {{"tokens", ids, config.vocabulary}, {"labels", ids, config.vocabulary}},
          .forward = [config](const Scope& scope, std::span<const Tensor> inputs) {
            return GptForward{config}(scope, inputs[0], inputs[1]);
          }};
}

}  // namespace minka
