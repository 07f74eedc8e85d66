#include "minka/models/registry.h"

#include <utility>
#include <variant>

#include "fmt/ranges.h"
#include "minka/base/status.h"
#include "minka/models/bert.h"
#include "minka/models/gpt.h"
#include "minka/models/mlp.h"
#include "minka/models/optimizer_choice.h"
#include "minka/models/unet.h"
#include "minka/models/wresnet.h"

namespace minka {
namespace {

struct Entry {
  std::string name;
  std::variant<MlpConfig, GptConfig, BertConfig, WideResNetConfig, UnetConfig> config;
  ElementType dtype = ElementType::kBF16;
  std::string optimizer = "adamw";
  double learning_rate = 1e-4;
};

GptConfig GptSize(int64_t hidden, int64_t num_layers, int64_t num_heads) {
  return {.hidden = hidden, .num_layers = num_layers, .num_heads = num_heads};
}

BertConfig BertSize(int64_t hidden, int64_t num_layers, int64_t num_heads) {
  return {.hidden = hidden,
          .num_layers = num_layers,
          .num_heads = num_heads,
          .look_up = LookUp::kGather};
}

// Alpa's: "moe-..."; the number of experts in every other layer, feed-forward networks eight times
// as wide as the rest.
Entry MoeSize(const std::string& name, int64_t hidden, int64_t num_layers, int64_t num_experts) {
  return {.name = name,
          .config = GptConfig{.vocabulary = 32000,
                              .hidden = hidden,
                              .num_layers = num_layers,
                              .num_heads = 16,
                              .mlp_factor = 8,
                              .experts = GptExperts{.num_experts = num_experts}},
          .optimizer = "adafactor",
          .learning_rate = 1e-2};
}

// Alpa's: "wresnet-...", trained with Nesterov momentum in f32, as "unet-...".
Entry WideResNetSize(const std::string& name, int64_t width, int64_t width_factor,
                     int64_t third_stage_blocks = 6) {
  return {.name = name,
          .config = WideResNetConfig{.width = width,
                                     .width_factor = width_factor,
                                     .blocks_per_stage = {3, 4, third_stage_blocks, 3}},
          .dtype = ElementType::kF32,
          .optimizer = "nesterov",
          .learning_rate = 0.1};
}

Entry UnetSize(const std::string& name, int64_t width) {
  return {.name = name,
          .config = UnetConfig{.width = width},
          .dtype = ElementType::kF32,
          .optimizer = "nesterov",
          .learning_rate = 0.1};
}

std::vector<Entry> Entries() {
  const GptConfig gpt_tiny = {.batch = 16,
                              .sequence = 128,
                              .vocabulary = 256,
                              .hidden = 192,
                              .num_layers = 3,
                              .num_heads = 6,
                              .dropout = 0.1};
  GptConfig moe_tiny = gpt_tiny;
  moe_tiny.hidden = 128;
  moe_tiny.num_layers = 4;
  moe_tiny.num_heads = 4;
  moe_tiny.experts = GptExperts{.num_experts = 8, .group_size = 128};
  const WideResNetConfig wresnet_tiny = {.batch = 64,
                                         .image_size = 8,
                                         .channels = 1,
                                         .num_classes = 10,
                                         .width = 16,
                                         .blocks_per_stage = {1, 1},
                                         .small_images = true};
  const UnetConfig unet_tiny = {.batch = 64,
                                .image_size = 8,
                                .channels = 1,
                                .target_channels = 1,
                                .width = 32,
                                .num_blocks = 2};
  BertConfig bert_tiny = BertSize(128, 2, 2);
  bert_tiny.batch = 16;
  bert_tiny.sequence = 128;
  bert_tiny.vocabulary = 1024;
  constexpr ElementType f32 = ElementType::kF32;
  return {{"mlp", MlpConfig{}, f32, "adam", 1e-3},
          {"gpt-tiny", gpt_tiny, f32, "adamw", 1e-3},
          {"gpt-125m", GptSize(768, 12, 12)},
          {"gpt-350m", GptSize(1024, 24, 16)},
          {"gpt-760m", GptSize(1536, 24, 16)},
          {"gpt-1.3b", GptSize(2048, 24, 32)},
          {"gpt-2.6b", GptSize(2560, 32, 32)},
          {"gpt-6.7b", GptSize(4096, 32, 32)},
          {"gpt-15b", GptSize(5120, 48, 40)},
          {"gpt-39b", GptSize(8192, 48, 64)},
          {"gpt-76b", GptSize(10240, 60, 80)},
          {"gpt-175b", GptSize(12288, 96, 96)},
          {"bert-tiny", bert_tiny, f32, "adamw", 1e-3},
          {"bert-base", BertSize(768, 12, 12)},
          {"bert-large", BertSize(1024, 24, 16)},
          {"moe-tiny", moe_tiny, f32, "adamw", 1e-3},
          MoeSize("moe-380m", 768, 8, 8),
          MoeSize("moe-690m", 768, 8, 16),
          MoeSize("moe-1.3b", 768, 16, 16),
          MoeSize("moe-2.4b", 1024, 16, 16),
          MoeSize("moe-7.1b", 1280, 16, 32),
          MoeSize("moe-10b", 1536, 16, 32),
          MoeSize("moe-27b", 2048, 16, 48),
          MoeSize("moe-70b", 2048, 32, 64),
          MoeSize("moe-140b", 2048, 32, 128),
          {"wresnet-tiny", wresnet_tiny, f32, "nesterov", 0.02},
          WideResNetSize("wresnet-250m", 160, 2),
          WideResNetSize("wresnet-500m", 224, 2),
          WideResNetSize("wresnet-1b", 320, 2),
          WideResNetSize("wresnet-2b", 448, 2),
          WideResNetSize("wresnet-4b", 640, 2),
          WideResNetSize("wresnet-6.8b", 320, 16),
          WideResNetSize("wresnet-13b", 320, 16, 23),
          {"unet-tiny", unet_tiny, f32, "adamw", 1e-3},
          UnetSize("unet-470m", 320),
          UnetSize("unet-1b", 480),
          UnetSize("unet-1.2b", 512),
          UnetSize("unet-1.8b", 640),
          UnetSize("unet-2b", 672)};
}

absl::Status CheckPositive(std::string_view option, std::optional<int64_t> value) {
  if (!value || *value > 0) return absl::OkStatus();
  return InvalidArgument("{} must be at least 1, not {}", option, *value);
}

absl::Status CheckOptions(const ModelOptions& options) {
  RETURN_IF_ERROR(CheckPositive("the global batch", options.global_batch));
  RETURN_IF_ERROR(CheckPositive("the sequence", options.sequence));
  RETURN_IF_ERROR(CheckPositive("the number of layers", options.num_layers));
  if (options.dropout && (*options.dropout < 0 || *options.dropout >= 1)) {
    return InvalidArgument("dropout must be in [0, 1), not {}", *options.dropout);
  }
  const ElementType type = options.dtype.value_or(ElementType::kF32);
  if (type != ElementType::kF32 && type != ElementType::kBF16 && type != ElementType::kF16) {
    return InvalidArgument("models compute in f32, bf16 or f16, not {}", TypeName(type));
  }
  return absl::OkStatus();
}

absl::StatusOr<Model> Configured(MlpConfig config, const ModelOptions& options) {
  if (options.sequence) return InvalidArgument("mlp has no sequence to set");
  if (options.dropout) return InvalidArgument("mlp has no dropout to set");
  if (options.look_up) return InvalidArgument("mlp looks up no tokens");
  config.batch = options.global_batch.value_or(config.batch);
  config.num_layers = options.num_layers.value_or(config.num_layers);
  return Mlp(config);
}

absl::StatusOr<Model> Configured(WideResNetConfig config, const ModelOptions& options) {
  if (options.sequence) return InvalidArgument("wresnet has no sequence to set");
  if (options.dropout) return InvalidArgument("wresnet has no dropout to set");
  if (options.look_up) return InvalidArgument("wresnet looks up no tokens");
  config.batch = options.global_batch.value_or(config.batch);
  if (options.num_layers) {
    config.blocks_per_stage.assign(config.blocks_per_stage.size(), *options.num_layers);
  }
  return WideResNet(config);
}

absl::StatusOr<Model> Configured(UnetConfig config, const ModelOptions& options) {
  if (options.sequence) return InvalidArgument("unet has no sequence to set");
  if (options.look_up) return InvalidArgument("unet looks up no tokens");
  config.batch = options.global_batch.value_or(config.batch);
  config.layers_per_block = options.num_layers.value_or(config.layers_per_block);
  config.dropout = options.dropout.value_or(config.dropout);
  return Unet(config);
}

template <typename Config>
Config WithOptions(Config config, const ModelOptions& options) {
  config.batch = options.global_batch.value_or(config.batch);
  config.sequence = options.sequence.value_or(config.sequence);
  config.num_layers = options.num_layers.value_or(config.num_layers);
  config.dropout = options.dropout.value_or(config.dropout);
  config.look_up = options.look_up.value_or(config.look_up);
  return config;
}

absl::StatusOr<Model> Configured(const GptConfig& config, const ModelOptions& options) {
  return Gpt(WithOptions(config, options));
}

absl::StatusOr<Model> Configured(const BertConfig& config, const ModelOptions& options) {
  return BertMaskedLanguageModel(WithOptions(config, options));
}

UpdateOptions WithDefaults(UpdateOptions options, const Entry& entry) {
  // The model's rate fits the model's optimizer.
  if (!options.learning_rate && options.optimizer.value_or(entry.optimizer) == entry.optimizer) {
    options.learning_rate = entry.learning_rate;
  }
  if (!options.optimizer) options.optimizer = entry.optimizer;
  return options;
}

}  // namespace

std::vector<std::string> ModelNames() {
  std::vector<std::string> names;
  for (const Entry& entry : Entries()) names.push_back(entry.name);
  return names;
}

absl::StatusOr<NamedModel> MakeModel(std::string_view name, const ModelOptions& options) {
  for (const Entry& entry : Entries()) {
    if (entry.name != name) continue;
    RETURN_IF_ERROR(CheckOptions(options));
    ASSIGN_OR_RETURN(
        Model model,
        std::visit([&](const auto& config) { return Configured(config, options); }, entry.config));
    model.name = entry.name;
    ASSIGN_OR_RETURN(Optimizer optimizer, MakeOptimizer(WithDefaults(options.update, entry)));
    ASSIGN_OR_RETURN(const GradientScaling scaling, MakeScaling(options.update));
    const DtypePolicy dtype{.compute = options.dtype.value_or(entry.dtype)};
    return NamedModel{std::move(model), std::move(optimizer), {.dtype = dtype, .scaling = scaling}};
  }
  return InvalidArgument("no model is named {}; there are {}", name, fmt::join(ModelNames(), ", "));
}

absl::StatusOr<TracedStep> TraceModel(std::string_view name, const ModelOptions& options) {
  ASSIGN_OR_RETURN(const NamedModel named, MakeModel(name, options));
  return Trace(named.model, named.optimizer, named.trace);
}

absl::StatusOr<TracedStep> TraceModelEvaluation(std::string_view name,
                                                const ModelOptions& options) {
  ASSIGN_OR_RETURN(const NamedModel named, MakeModel(name, options));
  return TraceEvaluation(named.model, named.trace);
}

}  // namespace minka
