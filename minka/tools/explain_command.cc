// `minka explain`: what a parameter's sharding is worth, by planning again with every other one.
#include <memory>
#include <set>

#include "fmt/format.h"
#include "minka/base/status.h"
#include "minka/driver/prepare.h"
#include "minka/report/format.h"
#include "minka/report/table.h"
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

// Every sharding of the shape in which each axis splits at most one dimension, replicated first.
void AddShardings(const Shape& shape, const Mesh& mesh, int axis, const Sharding& sharding,
                  std::vector<Sharding>& out) {
  if (axis == mesh.num_axes()) {
    if (Validate(sharding, shape, mesh).ok()) out.push_back(sharding);
    return;
  }
  AddShardings(shape, mesh, axis + 1, sharding, out);
  for (int dim = 0; dim < shape.rank() && mesh.size(axis) > 1; ++dim) {
    Sharding split = sharding;
    split.dims[dim].PushMinor(axis);
    AddShardings(shape, mesh, axis + 1, split, out);
  }
}

absl::StatusOr<int> FindParameter(const Plan& plan, const std::string& path,
                                  const std::string& glob) {
  int found = -1;
  for (size_t i = 0; i < plan.parameters.size(); ++i) {
    if (!MatchesGlob(glob, plan.parameters[i].name)) continue;
    // Equal layers: the first stands for all.
    if (found < 0) found = static_cast<int>(i);
  }
  if (found < 0) {
    return NotFound("no parameter of {} matches {}; minka inspect {} --only params lists them",
                    path, glob, path);
  }
  return found;
}

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

// The plan's pins on everything but the parameter: one that names others, too, is written out.
std::vector<std::string> PinsOnOthers(const Step& step, const std::string& parameter,
                                      const std::vector<std::string>& pins) {
  std::vector<std::string> others;
  for (const std::string& pin : pins) {
    const size_t cut = pin.rfind('=');
    const std::string glob = pin.substr(0, cut);
    if (!MatchesGlob(glob, parameter)) {
      others.push_back(pin);
      continue;
    }
    std::set<std::string> names;
    for (const ParameterInfo& info : step.parameters) names.insert(info.name);
    for (const ResultInfo& info : step.results) {
      if (info.role != ResultRole::kState) names.insert(info.name);
    }
    names.erase(parameter);
    for (const std::string& name : names) {
      if (MatchesGlob(glob, name)) others.push_back(name + pin.substr(cut));
    }
  }
  return others;
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
  ASSIGN_OR_RETURN(const int number, FindParameter(loaded.plan, flags.plan, flags.tensor));
  const ParameterPlan& parameter = loaded.plan.parameters[number];
  const Mesh& mesh = request.meshes.front();
  const std::vector<std::string> other_pins =
      PinsOnOthers(loaded.step, parameter.name, request.search.pins);
  std::vector<Sharding> shardings;
  AddShardings(parameter.shape, mesh, 0, Sharding::Replicated(parameter.shape.rank()), shardings);
  Table table({{""},
               {parameter.name},
               {"step time", Align::kRight},
               {"peak memory", Align::kRight},
               {"state", Align::kRight},
               {"remark"}});
  for (const Sharding& sharding : shardings) {
    const std::string text = ToString(sharding, mesh);
    ShowStatus(fmt::format("plan with {} = {}", parameter.name, text));
    request.search.pins = other_pins;
    request.search.pins.push_back(fmt::format("{}={}", parameter.name, text));
    const auto result = PlanStep(loaded.step, request);
    const std::string mark = sharding == parameter.sharding ? "*" : "";
    if (!result.ok()) {
      table.Add({mark, text, "-", "-", "-", Message(result.status())});
      continue;
    }
    const Plan& plan = result->candidates[result->best].plan;
    table.Add({mark, text, FormatTime(plan.step_time_us), FormatBytes(plan.peak_memory_bytes),
               FormatBytes(plan.state_bytes_per_device), ""});
  }
  ClearStatus();
  return Print(fmt::format(
      "The best plans on mesh {} with {} pinned, by cost model {} ('*' as in "
      "{}):\n{}",
      mesh.ToString(), parameter.name, loaded.plan.cost_model, flags.plan, table.ToString()));
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
