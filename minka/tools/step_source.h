// The MODEL or module file that a command line names, and the flags that say what it is.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "minka/driver/pipeline.h"
#include "minka/driver/plan_step.h"
#include "minka/driver/train.h"
#include "minka/ir/step.h"

namespace minka {

// As on the command line.
struct StepSource {
  std::string model;  // a name of the registry, a file, or "-"
  std::vector<std::string> batch_inputs, states;
  std::optional<int64_t> loss;
  std::optional<int64_t> global_batch, sequence, layers;
  std::optional<std::string> dtype;
  std::optional<double> dropout;
  UpdateOptions update;
};

void AddModelFlags(CLI::App& command, StepSource& source);
void AddModuleFlags(CLI::App& command, StepSource& source);

struct SourceStep {
  Step step;
  std::vector<std::optional<Initializer>> initializers;  // empty for a module file
  std::vector<std::string> inferred;  // what a module file did not say but was concluded
};

// Is it a module file rather than the name of a model?
bool IsModuleFile(const std::string& model);
absl::StatusOr<ModelOptions> ModelOptionsOf(const StepSource& source);
absl::StatusOr<SourceStep> LoadStep(const StepSource& source);

// The way into a plan's options and back, so that a plan.json says what module it is of.
std::map<std::string, std::string> ToOptions(const StepSource& source);
absl::StatusOr<StepSource> FromOptions(const std::map<std::string, std::string>& options);

// A plan with the module that it is of, as it is and prepared. The module is the one named by the
// plan's options unless `module` (a file or model, empty: not given) says another.
struct PlanOfStep {
  Step step, prepared;
  Plan plan;
};

// The same of a pipeline.
struct PipelineOfStep {
  Step step;
  PlannedPipeline planned;
};
using PlanFile = std::variant<PlanOfStep, PipelineOfStep>;
absl::StatusOr<PlanFile> ReadPlanFile(const std::string& path, const std::string& module);

}  // namespace minka
