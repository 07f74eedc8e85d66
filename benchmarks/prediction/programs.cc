#include "benchmarks/prediction/programs.h"

#include "benchmarks/support/flax_modules.h"
#include "fmt/format.h"
#include "minka/base/status.h"
#include "minka/models/registry.h"

namespace minka {
namespace {

constexpr char kFlax[] = "flax ";

struct PlannedStep {
  const char* name;
  // Besides data, zero3 and shard on 8 devices and shard on 2x4.
  bool on_three_axes = false;
};

constexpr PlannedStep kSteps[] = {
    {"flax transformer", true},
    {"flax transformer_small", true},
    {"flax transformer_wide"},
    {"flax transformer_bf16"},
    {"flax transformer_dropout"},
    {"flax transformer_checkpointed"},
    {"flax transformer_scanned", true},
    {"flax transformer_scanned_bf16"},
    {"flax transformer_scanned_checkpointed"},
    {"flax resnet", true},
    {"flax resnet_small"},
    {"flax convolutions", true},
    {"flax convolutions_bf16"},
    {"flax convolutions_small"},
    {"flax separable_convolutions"},
    {"flax autoencoder"},
    {"flax vision_transformer"},
    {"flax mixer"},
    {"flax lstm", true},
    {"flax lstm_wide"},
    {"flax gru"},
    {"flax moe", true},
    {"flax mlp", true},
    {"flax embedding"},
    {"mlp f32"},
    {"gpt-tiny f32", true},
    {"gpt-tiny bf16"},
    {"bert-tiny f32"},
    {"moe-tiny f32"},
    {"wresnet-tiny f32"},
    {"unet-tiny f32"},
};

}  // namespace

std::string PredictionProgram::name() const {
  return fmt::format("{}: {} on {}", step, MethodName(method), mesh);
}

std::vector<PredictionProgram> AllPrograms() {
  std::vector<PredictionProgram> programs;
  for (const PlannedStep& step : kSteps) {
    programs.push_back({step.name, Method::kData, "8"});
    programs.push_back({step.name, Method::kZero3, "8"});
    programs.push_back({step.name, Method::kShard, "8"});
    programs.push_back({step.name, Method::kShard, "2x4"});
    if (step.on_three_axes) programs.push_back({step.name, Method::kShard, "2x2x2"});
  }
  return programs;
}

absl::StatusOr<Step> LoadProgram(const PredictionProgram& program,
                                 const std::string& module_folder) {
  if (program.step.starts_with(kFlax)) {
    return LoadFlaxModule(program.step.substr(std::size(kFlax) - 1), module_folder);
  }
  const size_t space = program.step.find(' ');
  const bool is_f32 = program.step.substr(space + 1) == "f32";
  ASSIGN_OR_RETURN(TracedStep traced,
                   TraceModel(program.step.substr(0, space),
                              {.dtype = is_f32 ? ElementType::kF32 : ElementType::kBF16}));
  return std::move(traced.step);
}

}  // namespace minka
