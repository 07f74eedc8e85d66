#include "benchmarks/step_time/cases.h"

#include <optional>
#include <utility>

#include "fmt/ranges.h"
#include "minka/models/gpt.h"
#include "minka/models/wresnet.h"

namespace minka {
namespace {

Case GptCase(int64_t num_layers, int64_t hidden, std::optional<GptExperts> experts) {
  const GptConfig config = {.batch = 16,
                            .sequence = 128,
                            .vocabulary = 256,
                            .hidden = hidden,
                            .num_layers = num_layers,
                            .num_heads = 8,
                            .experts = experts};
  std::vector<std::string> arguments = {fmt::format("--layers={}", num_layers),
                                        fmt::format("--hidden={}", hidden)};
  if (experts) {
    arguments.push_back(fmt::format("--experts={}", experts->num_experts));
    arguments.push_back(fmt::format("--group={}", experts->group_size));
  }
  return {experts ? "moe" : "gpt", fmt::format("{}x{}", num_layers, hidden), Gpt(config), AdamW(),
          std::move(arguments)};
}

Case WideResNetCase(const WideResNetConfig& config) {
  std::vector<std::string> arguments = {fmt::format("--batch={}", config.batch),
                                        fmt::format("--image={}", config.image_size),
                                        fmt::format("--channels={}", config.channels),
                                        fmt::format("--classes={}", config.num_classes),
                                        fmt::format("--width={}", config.width),
                                        fmt::format("--width-factor={}", config.width_factor),
                                        "--blocks"};
  for (const int64_t blocks : config.blocks_per_stage) arguments.push_back(fmt::to_string(blocks));
  if (config.small_images) arguments.emplace_back("--small-images");
  return {"wresnet", fmt::format("{}x{}", fmt::join(config.blocks_per_stage, "-"), config.width),
          WideResNet(config), Sgd({.learning_rate = 0.02, .momentum = 0.9, .nesterov = true}),
          std::move(arguments)};
}

}  // namespace

std::vector<Case> AllCases() {
  const GptExperts experts = {.num_experts = 8, .group_size = 128};
  const WideResNetConfig small_images = {.batch = 64,
                                         .image_size = 16,
                                         .num_classes = 16,
                                         .width = 32,
                                         .blocks_per_stage = {1, 1, 1},
                                         .small_images = true};
  // Alpa's stem and its four stages.
  const WideResNetConfig large_images = {.batch = 32,
                                         .image_size = 64,
                                         .num_classes = 1024,
                                         .width = 32,
                                         .blocks_per_stage = {1, 1, 1, 1}};
  return {GptCase(2, 256, std::nullopt), GptCase(4, 384, std::nullopt),
          GptCase(4, 512, std::nullopt), GptCase(2, 256, experts),
          GptCase(4, 384, experts),      WideResNetCase(small_images),
          WideResNetCase(large_images)};
}

}  // namespace minka
