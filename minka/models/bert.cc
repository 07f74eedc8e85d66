#include "minka/models/bert.h"

#include "fmt/format.h"

namespace minka {
namespace {

constexpr double kStddev = 0.02;

// One trace of the forward pass.
struct BertForward {
  const BertConfig& config;

  DenseOptions To(int64_t features) const { return {.features = {features}, .stddev = kStddev}; }

  // The three parts lie innermost in the fused projection, in the order query, value, key.
  Tensor Attend(const Scope& scope, Tensor x, const AttentionBias& bias) const {
    const int64_t batch = config.batch, sequence = config.sequence, hidden = config.hidden;
    const Tensor fused =
        Reshape(Dense(scope / "qvk", x, To(3 * hidden)), {batch, sequence, hidden, 3});
    const ScopeName name(scope.graph(), scope.path());
    const auto part = [&](int64_t i) {
      const Tensor cut = Slice(fused, {0, 0, 0, i}, {batch, sequence, hidden, i + 1});
      return Reshape(cut, {batch, sequence, config.num_heads, hidden / config.num_heads});
    };
    const Tensor context = AttentionContext(scope, part(0), part(2), part(1), bias, config.dropout);
    return Dense(scope / "output", Reshape(context, {batch, sequence, hidden}), To(hidden));
  }

  Tensor Layer(const Scope& scope, Tensor x, const AttentionBias& bias) const {
    const ScopeName name(scope.graph(), scope.path());
    const Tensor attention = Attend(scope / "attention", x, bias);
    x = LayerNorm(scope / "attention_norm",
                  Dropout(scope / "attention_dropout", attention, config.dropout) + x);
    const Tensor inner = Gelu(Dense(scope / "intermediate", x, To(4 * config.hidden)));
    const Tensor output = Dense(scope / "output", inner, To(config.hidden));
    return LayerNorm(scope / "output_norm",
                     Dropout(scope / "output_dropout", output, config.dropout) + x);
  }

  Tensor Layers(const Scope& scope, Tensor x, Tensor mask) const {
    const AttentionBias bias = MaskBias(mask, scope.compute_type());
    for (int64_t i = 0; i < config.num_layers; ++i) {
      x = (scope / fmt::format("layer_{}", i)).Block(x, [&](const Scope& layer, Tensor in) {
        return Layer(layer, in, bias);
      });
    }
    return x;
  }

  Tensor Table(const Scope& scope, int64_t num_rows) const {
    return EmbeddingTable(scope, {.num_rows = num_rows, .features = config.hidden});
  }

  ModelOutput LanguageModel(const Scope& scope, std::span<const Tensor> inputs) const {
    const Scope embedding = scope / "embedding";
    const Tensor words = Table(embedding / "words", config.vocabulary);
    const Tensor positions = Table(embedding / "positions", config.sequence);
    const Tensor types = Table(embedding / "types", config.num_types);
    const ElementType type = scope.compute_type();
    Tensor x = EmbeddingRows(words, inputs[0], type, config.look_up);
    x = x + EmbeddingRows(positions, inputs[3], type, config.look_up);
    x = x + EmbeddingRows(types, inputs[2], type, config.look_up);
    x = Dropout(embedding / "dropout", LayerNorm(embedding / "norm", x), config.dropout);
    x = Layers(scope, x, inputs[1]);
    x = LayerNorm(scope / "head/norm", Gelu(Dense(scope / "head", x, To(config.hidden))));
    const Scope output = scope / "output";
    const ScopeName name(scope.graph(), output.path());
    const Tensor logits = Einsum("bsh,vh->bsv", x, Convert(words, type)) +
                          output.Parameter("bias", {config.vocabulary}, {});
    return {.loss = MaskedCrossEntropy(logits, inputs[4]) * config.loss_scale,
            .outputs = {{"logits", logits}}};
  }
};

}  // namespace

Model BertMaskedLanguageModel(const BertConfig& config) {
  const Shape ids{ElementType::kS32, {config.batch, config.sequence}};
  return {.name = "bert",
          .inputs = {{"input_ids", ids, config.vocabulary},
                     {"mask", ids, 2},
                     {"type_ids", ids, config.num_types},
                     {"position_ids", ids, config.sequence},
                     {"labels", ids, config.vocabulary}},
          .forward = [config](const Scope& scope, std::span<const Tensor> inputs) {
            return BertForward{config}.LanguageModel(scope, inputs);
          }};
}

Model BertLayers(const BertConfig& config) {
  const Shape x{ElementType::kF32, {config.batch, config.sequence, config.hidden}};
  const Shape mask{ElementType::kS32, {config.batch, config.sequence}};
  return {.name = "bert_layers",
          .inputs = {{"x", x}, {"mask", mask, 2}, {"y", x}},
          .forward = [config](const Scope& scope, std::span<const Tensor> inputs) {
            const Tensor out = BertForward{config}.Layers(
                scope, Convert(inputs[0], scope.compute_type()), inputs[1]);
            return ModelOutput{.loss = MeanSquaredError(Convert(out, ElementType::kF32), inputs[2]),
                               .outputs = {{"hidden", out}}};
          }};
}

}  // namespace minka
