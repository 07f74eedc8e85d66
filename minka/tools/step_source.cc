#include "minka/tools/step_source.h"

#include <algorithm>
#include <filesystem>

#include "fmt/ranges.h"
#include "minka/base/file.h"
#include "minka/base/json.h"
#include "minka/base/status.h"
#include "minka/driver/prepare.h"
#include "minka/ir/hlo_proto.h"
#include "nlohmann/json.hpp"

namespace minka {
namespace {

std::vector<std::string> SplitList(const std::string& text) {
  std::vector<std::string> items;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    if (end > begin) items.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return items;
}

absl::Status RefuseFlag(bool given, const char* flag, const std::string& model, const char* why) {
  if (!given) return absl::OkStatus();
  return InvalidArgument("{} {}; {} is {}", flag, why, model,
                         IsModuleFile(model) ? "a file" : "a named model");
}

// The flags of named models with a value, the one list of them.
template <typename Source, typename Visit>
void VisitModelFlags(Source& source, Visit visit) {
  auto& update = source.update;
  visit("global-batch", source.global_batch, "Examples per step");
  visit("sequence", source.sequence, "Tokens per example");
  visit("layers", source.layers, "Number of layers");
  visit("dtype", source.dtype, "Type to compute in: f32, bf16 or f16; state stays f32");
  visit("dropout", source.dropout, "Rate of dropout");
  visit(
      "optimizer", update.optimizer,
      "sgd (momentum 0.9), nesterov (the same by Nesterov), adam, adamw, adafactor, lion or lamb");
  visit("learning-rate", update.learning_rate, "Learning rate of the optimizer, its peak");
  visit("weight-decay", update.weight_decay, "Weight decay of adamw, lion and lamb");
  visit("decay", update.schedule,
        "What the learning rate does after the warm-up: constant, linear or cosine (to zero at "
        "--decay-steps), inverse-sqrt");
  visit("warmup", update.warmup_updates, "Steps over which the learning rate rises to its peak");
  visit("decay-steps", update.decay_updates,
        "Steps, those of the warm-up included, after which linear and cosine are at zero");
  visit("clip-norm", update.clip_norm,
        "Scale gradients down where the norm of all of them together is above this");
  visit(
      "loss-scale", update.loss_scale,
      "Multiply the loss by so much before it is differentiated, for f16: a number, dynamic (from "
      "65536; halved, and the step skipped, where gradients overflow; doubled after 2000 steps) "
      "or none");
}

// What VisitModelFlags' values are where nothing is given.
std::string DefaultOf(std::string_view flag) {
  if (flag == "decay") return "constant";
  if (flag == "warmup") return "0";
  if (flag == "decay-steps") return "what --steps says, where there is such a flag";
  if (flag == "clip-norm") return "no limit";
  if (flag == "loss-scale") return "none";
  if (flag == "weight-decay") return "the optimizer's";
  return "the model's";
}

absl::Status CheckModuleFlags(const StepSource& source) {
  constexpr const char* kWhy = "changes a named model";
  absl::Status status;
  VisitModelFlags(source, [&](const std::string& flag, const auto& value, const char*) {
    const std::string name = "--" + flag;
    if (status.ok()) status = RefuseFlag(value.has_value(), name.c_str(), source.model, kWhy);
  });
  return status;
}

absl::StatusOr<Module> ReadModule(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path));
  auto module = bytes.starts_with("HloModule") ? ParseHloText(bytes) : ImportHlo(bytes);
  if (!module.ok()) return WithContext(module.status(), path == "-" ? "standard input" : path);
  return module;
}

absl::StatusOr<SourceStep> LoadModuleFile(const StepSource& source) {
  RETURN_IF_ERROR(CheckModuleFlags(source));
  ASSIGN_OR_RETURN(Module module, ReadModule(source.model));
  SourceStep loaded;
  auto step =
      MakeStep(std::move(module),
               {.batch_inputs = source.batch_inputs, .states = source.states, .loss = source.loss},
               &loaded.inferred);
  if (!step.ok()) return WithContext(step.status(), source.model);
  loaded.step = *std::move(step);
  return loaded;
}

template <typename T>
void Put(std::map<std::string, std::string>& options, const char* flag,
         const std::optional<T>& value) {
  if (value) options[flag] = fmt::format("{}", *value);
}

absl::Status Take(const std::string& text, const std::string& flag, std::optional<int64_t>& out) {
  int64_t value = 0;
  if (!CLI::detail::lexical_cast(text, value)) {
    return InvalidArgument("{} is no number: \"{}\"", flag, text);
  }
  out = value;
  return absl::OkStatus();
}

absl::Status Take(const std::string& text, const std::string&, std::optional<std::string>& out) {
  out = text;
  return absl::OkStatus();
}

absl::Status Take(const std::string& text, const std::string& flag, std::optional<double>& out) {
  double value = 0;
  if (!CLI::detail::lexical_cast(text, value)) {
    return InvalidArgument("{} is no number: \"{}\"", flag, text);
  }
  out = value;
  return absl::OkStatus();
}

// The options of a plan.json, of which nothing else is read.
absl::StatusOr<std::map<std::string, std::string>> OptionsOfPlan(const std::string& json) {
  ASSIGN_OR_RETURN(const nlohmann::ordered_json document, ParseJson(json));
  if (!document.is_object() || !document.contains("options") || !document["options"].is_object()) {
    return InvalidArgument("this is no plan.json: a JSON object with the field 'options' is meant");
  }
  std::map<std::string, std::string> options;
  for (const auto& [flag, value] : document["options"].items()) {
    if (value.is_string()) options[flag] = value.get<std::string>();
  }
  return options;
}

}  // namespace

void AddModelFlags(CLI::App& command, StepSource& source) {
  const char* const group = "Named models";
  VisitModelFlags(source, [&](const std::string& flag, auto& value, const char* description) {
    command
        .add_option("--" + flag, value,
                    fmt::format("{}. Default: {}", description, DefaultOf(flag)))
        ->group(group);
  });
}

void AddModuleFlags(CLI::App& command, StepSource& source) {
  const char* const group = "Module files";
  command
      .add_option("--batch-input", source.batch_inputs,
                  "PARAM[:DIM]: the parameter is a batch input, its dimension DIM (0) counts "
                  "examples; PARAM is a number or a glob on names. Repeatable. Default: what the "
                  "module says")
      ->allow_extra_args(false)
      ->group(group);
  command
      .add_option("--state", source.states,
                  "PARAM:RESULT: the result is the parameter's new value. Repeatable. Default: "
                  "what the module says, and donated parameters")
      ->allow_extra_args(false)
      ->group(group);
  command
      .add_option("--loss", source.loss,
                  "RESULT: the number of the result that is the loss; tells the forward pass from "
                  "the backward pass, which rematerialisation needs. Default: what the module says")
      ->group(group);
}

bool IsModuleFile(const std::string& model) {
  const std::vector<std::string> names = ModelNames();
  if (std::ranges::find(names, model) != names.end()) return false;
  std::error_code ignored;
  return model == "-" || model.find('/') != std::string::npos || model.ends_with(".pb") ||
         model.ends_with(".txt") || model.ends_with(".hlo") ||
         std::filesystem::exists(model, ignored);
}

absl::StatusOr<ModelOptions> ModelOptionsOf(const StepSource& source) {
  ModelOptions options{.global_batch = source.global_batch,
                       .sequence = source.sequence,
                       .num_layers = source.layers,
                       .dropout = source.dropout,
                       .update = source.update};
  if (source.dtype) {
    options.dtype = ParseType(*source.dtype);
    if (!options.dtype) {
      return InvalidArgument("--dtype {} is no type; there are f32, bf16 and f16", *source.dtype);
    }
  }
  return options;
}

absl::StatusOr<SourceStep> LoadStep(const StepSource& source) {
  if (IsModuleFile(source.model)) return LoadModuleFile(source);
  constexpr const char* kWhy = "describes a module file";
  RETURN_IF_ERROR(RefuseFlag(!source.batch_inputs.empty(), "--batch-input", source.model, kWhy));
  RETURN_IF_ERROR(RefuseFlag(!source.states.empty(), "--state", source.model, kWhy));
  RETURN_IF_ERROR(RefuseFlag(source.loss.has_value(), "--loss", source.model, kWhy));
  ASSIGN_OR_RETURN(const ModelOptions options, ModelOptionsOf(source));
  ASSIGN_OR_RETURN(TracedStep traced, TraceModel(source.model, options));
  return SourceStep{.step = std::move(traced.step), .initializers = std::move(traced.initializers)};
}

std::map<std::string, std::string> ToOptions(const StepSource& source) {
  std::map<std::string, std::string> options = {{"model", source.model}};
  VisitModelFlags(
      source, [&](const char* flag, const auto& value, const char*) { Put(options, flag, value); });
  if (!source.batch_inputs.empty()) {
    options["batch-input"] = fmt::format("{}", fmt::join(source.batch_inputs, " "));
  }
  Put(options, "loss", source.loss);
  if (!source.states.empty()) {
    options["state"] = fmt::format("{}", fmt::join(source.states, " "));
  }
  return options;
}

absl::StatusOr<StepSource> FromOptions(const std::map<std::string, std::string>& options) {
  StepSource source;
  for (const auto& [flag, value] : options) {
    if (flag == "model") source.model = value;
    if (flag == "loss") RETURN_IF_ERROR(Take(value, flag, source.loss));
    if (flag == "batch-input") source.batch_inputs = SplitList(value);
    if (flag == "state") source.states = SplitList(value);
    absl::Status status;
    VisitModelFlags(source, [&](const std::string& name, auto& field, const char*) {
      if (status.ok() && name == flag) status = Take(value, flag, field);
    });
    RETURN_IF_ERROR(status);
  }
  return source;
}

absl::StatusOr<PlanFile> ReadPlanFile(const std::string& path, const std::string& module) {
  ASSIGN_OR_RETURN(const std::string json, ReadFile(path));
  auto options = OptionsOfPlan(json);
  if (!options.ok()) return WithContext(options.status(), path);
  auto source = FromOptions(*options);
  if (!source.ok()) return WithContext(source.status(), path);
  if (!module.empty()) source->model = module;
  if (source->model.empty() || source->model == "-") {
    return InvalidArgument("{} does not say which module it is of; name it with --module", path);
  }
  auto loaded = LoadStep(*source);
  if (!loaded.ok()) {
    return WithContext(loaded.status(),
                       fmt::format("the module of {} (--module names another)", path));
  }
  ASSIGN_OR_RETURN(const PlannedPreparation how, PlannedPreparationOf(json));
  if (!how.stage_of_layer.empty()) {
    auto pipeline = LoadPipeline(loaded->step, json);
    if (!pipeline.ok()) return WithContext(pipeline.status(), path);
    return PipelineOfStep{.step = std::move(loaded->step), .planned = *std::move(pipeline)};
  }
  PlanOfStep result;
  result.step = std::move(loaded->step);
  ASSIGN_OR_RETURN(const Preparation planned, PreparationOfJson(json));
  ASSIGN_OR_RETURN(result.prepared, Prepare(result.step, planned));
  auto plan = PlanFromJson(json, result.prepared.module);
  if (!plan.ok()) return WithContext(plan.status(), path);
  result.plan = *std::move(plan);
  return result;
}

}  // namespace minka
