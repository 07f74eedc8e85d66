#include "minka/models/unet.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "fmt/format.h"
#include "minka/frontend/convolution.h"
#include "minka/frontend/nn.h"

namespace minka {
namespace {

// Of the sines that a time step is turned into.
constexpr double kLongestPeriod = 10000;
constexpr int64_t kMaxTimestep = 1000;

Tensor Silu(Tensor x) { return x * Logistic(x); }

// One trace of the forward pass.
struct UnetForward {
  const UnetConfig& config;
  Tensor time;       // [batch, 4 width], after silu
  Tensor condition;  // [batch, length, features]

  int64_t Features(int64_t block) const {
    return config.width << std::min(block, std::max<int64_t>(config.num_blocks - 2, 0));
  }

  bool IsLowest(int64_t block) const { return block + 1 == config.num_blocks; }

  Tensor Norm(const Scope& scope, Tensor x) const { return GroupNorm(scope, x, config.num_groups); }

  static Tensor Conv3(const Scope& scope, Tensor x, int64_t features, int64_t stride = 1) {
    return Conv(scope, x, {.features = features, .kernel = {3, 3}, .strides = {stride, stride}});
  }
  static Tensor Conv1(const Scope& scope, Tensor x, int64_t features) {
    return Conv(scope, x, {.features = features, .kernel = {1, 1}});
  }

  Tensor Residual(const Scope& scope, Tensor x, int64_t features) const {
    const ScopeName name(scope.graph(), scope.path());
    Tensor y = Conv3(scope / "conv_1", Silu(Norm(scope / "norm_1", x)), features);
    const Tensor shift = Dense(scope / "time", time, {.features = {features}});
    y = y + Broadcast(shift, y.dims(), {0, 3});
    y = Dropout(scope / "dropout", Silu(Norm(scope / "norm_2", y)), config.dropout);
    y = Conv3(scope / "conv_2", y, features);
    return y + (x.dim(-1) == features ? x : Conv1(scope / "shortcut", x, features));
  }

  // Attention of x [batch, positions, features] to `memory`, with all heads.
  Tensor Attend(const Scope& scope, Tensor x, Tensor memory) const {
    const int64_t features = x.dim(-1);
    const DenseOptions heads{.features = {config.num_heads, features / config.num_heads},
                             .bias = false};
    const Tensor context = AttentionContext(
        scope, Dense(scope / "query", x, heads), Dense(scope / "key", memory, heads),
        Dense(scope / "value", memory, heads), /*bias=*/{}, config.dropout);
    return Dense(scope / "output", context, {.features = {features}, .num_input_dims = 2});
  }

  // A gated feed-forward network (Shazeer 2020, arXiv:2002.05202).
  static Tensor FeedForward(const Scope& scope, Tensor x) {
    const int64_t features = x.dim(-1);
    const DenseOptions up{.features = {4 * features}};
    const Tensor inner = Dense(scope / "up", x, up) * Gelu(Dense(scope / "gate", x, up));
    return Dense(scope / "down", inner, {.features = {features}});
  }

  Tensor Transformer(const Scope& scope, Tensor image) const {
    const ScopeName name(scope.graph(), scope.path());
    const std::vector<int64_t> dims = image.dims();
    Tensor x = Conv1(scope / "in", Norm(scope / "norm", image), dims[3]);
    x = Reshape(x, {dims[0], dims[1] * dims[2], dims[3]});
    const Tensor normal = LayerNorm(scope / "norm_1", x);
    x = x + Attend(scope / "self_attention", normal, normal);
    x = x + Attend(scope / "cross_attention", LayerNorm(scope / "norm_2", x), condition);
    x = x + FeedForward(scope / "mlp", LayerNorm(scope / "norm_3", x));
    return image + Conv1(scope / "out", Reshape(x, dims), dims[3]);
  }

  // A residual block, with a transformer in all resolutions but the lowest.
  Tensor Layer(const Scope& scope, Tensor x, int64_t block) const {
    return scope.Block(x, [&](const Scope& layer, Tensor in) {
      const Tensor y = Residual(layer / "residual", in, Features(block));
      return IsLowest(block) ? y : Transformer(layer / "transformer", y);
    });
  }

  // Every layer's output is a skip, and the input of the lowest block.
  Tensor Down(const Scope& scope, Tensor x, std::vector<Tensor>& skips) const {
    for (int64_t block = 0; block < config.num_blocks; ++block) {
      const Scope down = scope / fmt::format("down_{}", block);
      if (IsLowest(block)) skips.push_back(x);
      for (int64_t layer = 0; layer < config.layers_per_block; ++layer) {
        x = Layer(down / fmt::format("layer_{}", layer), x, block);
        skips.push_back(x);
      }
      if (!IsLowest(block)) x = Conv3(down / "downsample", x, Features(block), /*stride=*/2);
    }
    return x;
  }

  Tensor Middle(const Scope& scope, Tensor x) const {
    const int64_t features = Features(config.num_blocks - 1);
    return scope.Block(x, [&](const Scope& middle, Tensor in) {
      Tensor y = Residual(middle / "residual_1", in, features);
      y = Transformer(middle / "transformer", y);
      return Residual(middle / "residual_2", y, features);
    });
  }

  Tensor Up(const Scope& scope, Tensor x, std::vector<Tensor>& skips) const {
    for (int64_t block = config.num_blocks - 1; block >= 0; --block) {
      const Scope up = scope / fmt::format("up_{}", block);
      const int64_t num_layers = config.layers_per_block + (IsLowest(block) ? 1 : 0);
      for (int64_t layer = 0; layer < num_layers; ++layer) {
        x = Concatenate(std::array{x, skips.back()}, 3);
        skips.pop_back();
        x = Layer(up / fmt::format("layer_{}", layer), x, block);
      }
      if (block == 0) continue;
      x = Conv3(up / "upsample", Upsample(x, 2), Features(block));
    }
    return x;
  }

  Tensor Predict(const Scope& scope, Tensor images) const {
    std::vector<Tensor> skips;
    Tensor x = Down(scope, Conv3(scope / "in", images, config.width), skips);
    x = Middle(scope / "middle", x);
    x = Up(scope, x, skips);
    return Conv3(scope / "out", Silu(Norm(scope / "out_norm", x)), config.target_channels);
  }
};

// [batch, width]: sines and cosines of the time step with periods from 2 pi to kLongestPeriod times
// that (Vaswani et al. 2017, arXiv:1706.03762).
Tensor TimeFeatures(Tensor timesteps, int64_t width) {
  const int64_t num_rates = width / 2;
  const std::vector<int64_t> dims = {timesteps.dim(0), num_rates};
  Graph& graph = timesteps.graph();
  const Tensor index = graph.Iota({ElementType::kF32, dims}, 1);
  const Tensor rate = Exp(index * (-std::log(kLongestPeriod) / static_cast<double>(num_rates)));
  const Tensor phase = rate * Broadcast(Convert(timesteps, ElementType::kF32), dims, {0});
  return Concatenate(std::array{Sine(phase), Cosine(phase)}, 1);
}

Tensor EmbedTime(const UnetConfig& config, const Scope& scope, Tensor timesteps) {
  const ScopeName name(scope.graph(), scope.path());
  const Tensor features = Convert(TimeFeatures(timesteps, config.width), scope.compute_type());
  const DenseOptions dense{.features = {4 * config.width}};
  return Silu(Dense(scope / "dense_2", Silu(Dense(scope / "dense_1", features, dense)), dense));
}

}  // namespace

int64_t ConditionLength(const UnetConfig& config) {
  const int64_t size = config.image_size >> (config.num_blocks - 1);
  return size * size;
}

int64_t ConditionFeatures(const UnetConfig& config) {
  return (config.width << (config.num_blocks - 1)) / 2;
}

Model Unet(const UnetConfig& config) {
  const int64_t batch = config.batch, size = config.image_size;
  return {
      .name = "unet",
      .inputs = {{"images", {ElementType::kF32, {batch, size, size, config.channels}}},
                 {"timesteps", {ElementType::kS32, {batch}}, kMaxTimestep},
                 {"condition",
                  {ElementType::kF32, {batch, ConditionLength(config), ConditionFeatures(config)}}},
                 {"targets", {ElementType::kF32, {batch, size, size, config.target_channels}}}},
      .forward = [config](const Scope& scope, std::span<const Tensor> inputs) {
        const ElementType type = scope.compute_type();
        const UnetForward forward{.config = config,
                                  .time = EmbedTime(config, scope / "time", inputs[1]),
                                  .condition = Convert(inputs[2], type)};
        const Tensor prediction =
            Convert(forward.Predict(scope, Convert(inputs[0], type)), ElementType::kF32);
        return ModelOutput{.loss = MeanSquaredError(prediction, inputs[3]),
                           .metrics = {},
                           .outputs = {{"prediction", prediction}}};
      }};
}

}  // namespace minka
