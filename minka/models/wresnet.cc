#include "minka/models/wresnet.h"

#include <cmath>

#include "fmt/format.h"
#include "minka/frontend/convolution.h"
#include "minka/frontend/experts.h"
#include "minka/frontend/nn.h"

namespace minka {
namespace {

constexpr int64_t kExpansion = 4;

struct ConvNorm {
  int64_t features = 0;
  int64_t kernel = 1;
  int64_t stride = 1;
  bool zero_scale = false;
};

Tensor Normalized(const Scope& scope, Tensor x, const ConvNorm& options) {
  const int64_t inputs = options.kernel * options.kernel * x.dim(-1);
  // He et al. 2015 (arXiv:1502.01852), for relu behind.
  const Tensor y = Conv(scope / "conv", x,
                        {.features = options.features,
                         .kernel = {options.kernel, options.kernel},
                         .strides = {options.stride, options.stride},
                         .bias = false,
                         .stddev = std::sqrt(2 / static_cast<double>(inputs))});
  return BatchNorm(scope / "norm", y, {.zero_scale = options.zero_scale});
}

Tensor Bottleneck(const Scope& scope, Tensor x, int64_t features, int64_t width_factor,
                  int64_t stride) {
  const ScopeName name(scope.graph(), scope.path());
  Tensor y = Relu(Normalized(scope / "reduce", x, {.features = features}));
  y = Relu(Normalized(scope / "middle", y,
                      {.features = features * width_factor, .kernel = 3, .stride = stride}));
  y = Normalized(scope / "expand", y, {.features = features * kExpansion, .zero_scale = true});
  if (x.dims() != y.dims()) {
    x = Normalized(scope / "projection", x, {.features = features * kExpansion, .stride = stride});
  }
  return Relu(x + y);
}

Tensor Stem(const WideResNetConfig& config, const Scope& scope, Tensor x) {
  if (config.small_images) {
    return Relu(Normalized(scope, x, {.features = config.width, .kernel = 3}));
  }
  x = Relu(Normalized(scope, x, {.features = config.width, .kernel = 7, .stride = 2}));
  return MaxPool(x, {.window = {3, 3}, .strides = {2, 2}, .padding = Padding::kSame});
}

// The share of rows whose largest logit is the label's.
Tensor Accuracy(Tensor logits, Tensor labels) {
  const Tensor f32 = Convert(logits, ElementType::kF32);
  return Sum(FirstLargest(f32) * OneHot(labels, logits.dim(-1), f32.type())) *
         (1 / static_cast<double>(logits.dim(0)));
}

ModelOutput Forward(const WideResNetConfig& config, const Scope& scope, Tensor images,
                    Tensor labels) {
  Tensor x = Stem(config, scope / "stem", Convert(images, scope.compute_type()));
  for (size_t stage = 0; stage < config.blocks_per_stage.size(); ++stage) {
    const int64_t features = config.width << stage;
    for (int64_t block = 0; block < config.blocks_per_stage[stage]; ++block) {
      const int64_t stride = stage > 0 && block == 0 ? 2 : 1;
      x = (scope / fmt::format("stage_{}/block_{}", stage, block))
              .Block(x, [&](const Scope& inner, Tensor in) {
                return Bottleneck(inner, in, features, config.width_factor, stride);
              });
    }
  }
  const Tensor pooled = Mean(x, {1, 2});
  const Tensor logits = Dense(scope / "head", pooled, {.features = {config.num_classes}});
  return {.loss = MeanCrossEntropy(logits, labels),
          .metrics = {{"accuracy", Accuracy(logits, labels)}},
          .outputs = {{"logits", logits}}};
}

}  // namespace

Model WideResNet(const WideResNetConfig& config) {
  const Shape images{ElementType::kF32,
                     {config.batch, config.image_size, config.image_size, config.channels}};
  return {.name = "wresnet",
          .inputs = {{"images", images},
                     {"labels", {ElementType::kS32, {config.batch}}, config.num_classes}},
          .forward = [config](const Scope& scope, std::span<const Tensor> inputs) {
            return Forward(config, scope, inputs[0], inputs[1]);
          }};
}

}  // namespace minka
