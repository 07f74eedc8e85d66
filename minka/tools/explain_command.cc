// `minka explain`: what a parameter's sharding is worth, by planning again with every other one.
#include <memory>

#include "fmt/format.h"
#include "minka/base/status.h"
#include "minka/driver/explain.h"
#include "minka/driver/prepare.h"
#include "minka/tools/child_process.h"
#include "minka/tools/command.h"
#include "minka/tools/measured_costs.h"
#include "minka/tools/planning_flags.h"
#include "minka/tools/step_source.h"

namespace minka {
namespace {

struct ExplainFlags {
  std::string plan, tensor, module;
};

// The request that the plan's options record, on its own mesh.
absl::StatusOr<PlanRequest> RequestOfPlan(const Plan& plan) {
  ASSIGN_OR_RETURN(PlanningFlags flags, PlanningFromOptions(plan.options));
  flags.cost_model = plan.cost_model;
  flags.meshes = {plan.stage.mesh.ToString()};
  flags.num_devices.reset();
  flags.method = plan.method;
  // A part of what data parallelism needs was met on the compiled program, which is not at hand.
  if (flags.memory_limit.ends_with('%')) flags.memory_limit.clear();
  ASSIGN_OR_RETURN(PlanRequest request, RequestOf(flags));
  request.micro_batches = PreparationOf(plan).micro_batches;
  request.remat = plan.remat;
  return request;
}

// Prices come from a plugin, which runs in a child: it can abort its process.
bool NeedsPlugin(const ExplainFlags& flags) {
  const absl::StatusOr<PlanOfStep> loaded = ReadPlan(flags.plan, flags.module);
  return loaded.ok() && loaded->plan.cost_model == "measured";
}

absl::Status RunExplain(const ExplainFlags& flags) {
  ASSIGN_OR_RETURN(const PlanOfStep loaded, ReadPlan(flags.plan, flags.module));
  ASSIGN_OR_RETURN(PlanRequest request, RequestOfPlan(loaded.plan));
  RETURN_IF_ERROR(AddMeasuredCosts(/*plugin_path=*/"", request));
  const absl::StatusOr<int> number = FindParameter(loaded.plan, flags.plan, flags.tensor);
  if (!number.ok()) {
    return NotFound("{}; minka inspect {} --only params lists them", Message(number.status()),
                    flags.plan);
  }
  ASSIGN_OR_RETURN(const std::string table, ExplainParameter(loaded.step, request, loaded.plan,
                                                             *number, [](const std::string& pin) {
                                                               ShowStatus("plan with " + pin);
                                                             }));
  ClearStatus();
  return Print(
      fmt::format("The best plans on mesh {} with {} pinned, by cost model {} ('*' as in "
                  "{}):\n{}",
                  loaded.plan.stage.mesh.ToString(), loaded.plan.parameters[*number].name,
                  loaded.plan.cost_model, flags.plan, table));
}

}  // namespace

void AddExplainCommand(CLI::App& app, CommandLine& line) {
  const auto flags = std::make_shared<ExplainFlags>();
  CLI::App* const command = app.add_subcommand(
      "explain",
      "Say what a parameter's sharding is worth: plans again with each one it could have");
  command->add_option("plan", flags->plan, "A plan.json")->required();
  command
      ->add_option("parameter", flags->tensor, "Glob on parameter names; the first match is taken")
      ->required();
  command->add_option(
      "--module", flags->module,
      "The module or model that the plan is of. Default: the one that the plan names");
  command->callback([flags, &line] {
    if (!IsChild() && NeedsPlugin(*flags)) {
      line.exit_code = RunInChildAndReport(line.arguments);
      return;
    }
    Finish(RunExplain(*flags), line);
  });
}

}  // namespace minka
