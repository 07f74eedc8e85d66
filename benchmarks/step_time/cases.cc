#include "benchmarks/step_time/cases.h"

#include <optional>
#include <utility>

#include "benchmarks/support/flax_modules.h"
#include "fmt/ranges.h"
#include "minka/base/status.h"
#include "minka/driver/inputs.h"
#include "minka/frontend/optimizer.h"
#include "minka/frontend/trace.h"
#include "minka/models/gpt.h"
#include "minka/models/wresnet.h"

namespace minka {
namespace {

constexpr uint64_t kSeed = 1;

absl::StatusOr<CaseStep> TraceCase(const Model& model, const Optimizer& optimizer) {
  ASSIGN_OR_RETURN(TracedStep traced, Trace(model, optimizer));
  ASSIGN_OR_RETURN(const std::vector<ParameterSpec> parameters, ParametersOf(model));
  CaseStep result{.inputs = InitialValues(traced.step, traced.initializers, kSeed),
                  .num_parameters = NumElements(parameters)};
  for (size_t i = 0; i < result.inputs.size(); ++i) {
    if (result.inputs[i].bytes) continue;
    ASSIGN_OR_RETURN(result.inputs[i], RandomInput(traced.step, static_cast<int>(i), kSeed));
  }
  result.step = std::move(traced.step);
  return result;
}

absl::StatusOr<CaseStep> LoadFlaxCase(const std::string& name, const std::string& module_folder) {
  ASSIGN_OR_RETURN(Step step, LoadFlaxModule(name, module_folder));
  ASSIGN_OR_RETURN(ParameterValues inputs, RandomInputs(step, kSeed));
  return CaseStep{.step = std::move(step), .inputs = std::move(inputs)};
}

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
  return {experts ? "moe" : "gpt", fmt::format("{}x{}", num_layers, hidden),
          [config] { return TraceCase(Gpt(config), AdamW()); }, std::move(arguments)};
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
          [config] {
            return TraceCase(WideResNet(config),
                             Sgd({.learning_rate = 0.02, .momentum = 0.9, .nesterov = true}));
          },
          std::move(arguments)};
}

}  // namespace

absl::StatusOr<std::vector<Case>> AllCases(const std::string& module_folder) {
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
  std::vector<Case> cases = {GptCase(2, 256, std::nullopt), GptCase(4, 384, std::nullopt),
                             GptCase(4, 512, std::nullopt), GptCase(2, 256, experts),
                             GptCase(4, 384, experts),      WideResNetCase(small_images),
                             WideResNetCase(large_images)};
  ASSIGN_OR_RETURN(const std::vector<std::string> names, FlaxModuleNames(module_folder));
  for (const std::string& name : names) {
    cases.push_back({.model = "flax",
                     .size = name,
                     .load = [name, module_folder] { return LoadFlaxCase(name, module_folder); },
                     .jax_arguments = {name},
                     .takes_inputs = true});
  }
  return cases;
}

}  // namespace minka
