// `minka explain`: what a parameter's sharding is worth, by planning again with every other one.
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "fmt/format.h"
#include "minka/base/status.h"
#include "minka/driver/explain.h"
#include "minka/driver/explain_pipeline.h"
#include "minka/driver/prepare.h"
#include "minka/tools/child_process.h"
#include "minka/tools/command.h"
#include "minka/tools/local_cluster.h"
#include "minka/tools/planning_flags.h"
#include "minka/tools/step_source.h"

namespace minka {
namespace {

struct ExplainFlags {
  std::string plan, module;
  ExplainQuestion question;
};

// The flags that the plan's options record, without what its plan says: its meshes.
absl::StatusOr<PlanningFlags> FlagsOf(const std::map<std::string, std::string>& options,
                                      const std::string& cost_model) {
  ASSIGN_OR_RETURN(PlanningFlags flags, PlanningFromOptions(options));
  flags.cost_model = cost_model;
  flags.meshes.clear();
  // A part of what data parallelism needs was met on the compiled program, which is not at hand.
  if (flags.memory_limit.ends_with('%')) flags.memory_limit.clear();
  return flags;
}

// The request that the plan's options record, on its own mesh.
absl::StatusOr<PlanRequest> RequestOfPlan(const Plan& plan) {
  ASSIGN_OR_RETURN(PlanningFlags flags, FlagsOf(plan.options, plan.cost_model));
  flags.meshes = {plan.stage.mesh.ToString()};
  flags.num_devices.reset();
  flags.method = plan.method;
  ASSIGN_OR_RETURN(PlanRequest request, RequestOf(flags));
  request.micro_batches = PreparationOf(plan).micro_batches;
  request.remat = plan.remat;
  return request;
}

// The same of a pipeline, whose meshes and stages the plan has.
absl::StatusOr<PlanRequest> RequestOfPipeline(const PlannedPipeline& planned) {
  ASSIGN_OR_RETURN(PlanningFlags flags, FlagsOf(planned.plan.options, planned.plan.cost_model));
  const PlanningFlags defaults;
  flags.method = kPipelineMethod;
  flags.stages = defaults.stages;
  flags.submeshes.clear();
  flags.dp = flags.op = flags.pp = std::nullopt;
  const bool was_searched =
      flags.num_devices || !flags.submesh_choices.empty() || !flags.stage_shares.empty();
  if (!was_searched) {
    for (const Mesh& mesh : planned.meshes()) flags.meshes.push_back(mesh.ToString());
  }
  ASSIGN_OR_RETURN(PlanRequest request, RequestOf(flags));
  request.micro_batches = MicroBatchesOf(planned.plan);
  request.micro_batches.per_micro_batch = flags.per_micro_batch;  // also where the plan has one
  return request;
}

// Prices come from a plugin, which runs in a child: it can abort its process.
bool NeedsPlugin(const ExplainFlags& flags) {
  const absl::StatusOr<PlanFile> file = ReadPlanFile(flags.plan, flags.module);
  if (!file.ok()) return false;
  const auto* const pipeline = std::get_if<PipelineOfStep>(&*file);
  const auto& options =
      pipeline ? pipeline->planned.plan.options : std::get<PlanOfStep>(*file).plan.options;
  const auto cluster = options.find("cluster");
  return NeedsLocalDevices({.cluster = cluster == options.end() ? kLocalCluster : cluster->second,
                            .cost_model = pipeline ? pipeline->planned.plan.cost_model
                                                   : std::get<PlanOfStep>(*file).plan.cost_model});
}

absl::StatusOr<std::string> ExplanationOf(const ExplainFlags& flags) {
  ASSIGN_OR_RETURN(const PlanFile file, ReadPlanFile(flags.plan, flags.module));
  const OnExplained show = [](const std::string& what) { ShowStatus(what); };
  if (const auto* const loaded = std::get_if<PipelineOfStep>(&file)) {
    ASSIGN_OR_RETURN(PlanRequest request, RequestOfPipeline(loaded->planned));
    RETURN_IF_ERROR(AddLocalDevices(/*plugin_path=*/"", request));
    return ExplainPipeline({.step = loaded->step, .planned = loaded->planned, .name = flags.plan},
                           request, flags.question, show);
  }
  const auto& loaded = std::get<PlanOfStep>(file);
  ASSIGN_OR_RETURN(PlanRequest request, RequestOfPlan(loaded.plan));
  RETURN_IF_ERROR(AddLocalDevices(/*plugin_path=*/"", request));
  return Explain(
      {.step = loaded.step, .prepared = loaded.prepared, .plan = loaded.plan, .name = flags.plan},
      request, flags.question, show);
}

absl::Status RunExplain(const ExplainFlags& flags) {
  if (!flags.question.tensor.empty() && !flags.question.operation.empty()) {
    return InvalidArgument("--tensor and --operation ask two things; give one of them");
  }
  const absl::StatusOr<std::string> text = ExplanationOf(flags);
  ClearStatus();
  if (absl::IsNotFound(text.status())) {
    return NotFound("{}; minka inspect {} lists them", Message(text.status()), flags.plan);
  }
  RETURN_IF_ERROR(text.status());
  return Print(*text);
}

}  // namespace

void AddExplainCommand(CLI::App& app, CommandLine& line) {
  const auto flags = std::make_shared<ExplainFlags>();
  CLI::App* const command = app.add_subcommand(
      "explain",
      "Say why a plan is as it is: what its parts cost, and what the plans next to it would");
  command->add_option("plan", flags->plan, "A plan.json")->required();
  command->add_option("parameter,--tensor", flags->question.tensor,
                      "Glob on parameter names, of which the first match is taken: plans with each "
                      "sharding that it could have. Default: the plan as a whole");
  command->add_option("--operation", flags->question.operation,
                      "The same of an operation, by its name or its name in the model");
  command->add_option("--stage", flags->question.stage,
                      "Of a pipeline: why this stage is as it is; with --tensor or --operation: of "
                      "this stage. Default: all stages");
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
