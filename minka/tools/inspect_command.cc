// `minka inspect`: how every array and operation of a plan lies on the mesh.
#include <memory>
#include <optional>
#include <set>

#include "minka/base/status.h"
#include "minka/driver/describe_pipeline.h"
#include "minka/driver/request_in_rows.h"
#include "minka/report/pipeline_table.h"
#include "minka/report/tensors_of_plan.h"
#include "minka/tools/command.h"
#include "minka/tools/step_source.h"

namespace minka {
namespace {

struct InspectFlags {
  std::string plan, module, only, tensor = "*";
  std::optional<int> stage;
  bool ops = false, dims = false, json = false;
};

absl::StatusOr<std::vector<TensorOnMesh>> Selected(const InspectFlags& flags,
                                                   const PlanOfStep& loaded) {
  std::set<TensorKind> kinds;
  for (size_t begin = 0; begin < flags.only.size();) {
    const size_t end = std::min(flags.only.find(',', begin), flags.only.size());
    ASSIGN_OR_RETURN(const TensorKind kind, ParseTensorKind(flags.only.substr(begin, end - begin)));
    kinds.insert(kind);
    begin = end + 1;
  }
  std::vector<TensorOnMesh> tensors = TensorsOfPlan(loaded.prepared, loaded.plan);
  std::erase_if(tensors, [&](const TensorOnMesh& tensor) {
    const bool of_kind = kinds.empty() || kinds.contains(tensor.kind);
    return !of_kind ||
           !(MatchesGlob(flags.tensor, tensor.name) || MatchesGlob(flags.tensor, tensor.path));
  });
  return tensors;
}

absl::Status PrintPipeline(const PlannedPipeline& pipeline, bool json) {
  if (json) return Print(PipelinePlanToJson(pipeline.plan, pipeline.modules()));
  ASSIGN_OR_RETURN(const std::string table, DescribePipeline(pipeline));
  return Print(table + "\n" + DescribeStages(pipeline));
}

// A stage's plan is one of its step on its mesh.
absl::StatusOr<PlanOfStep> StageOf(const PlannedPipeline& pipeline, int stage) {
  const auto num_stages = static_cast<int>(pipeline.plan.stages.size());
  if (stage < 0 || stage >= num_stages) {
    return InvalidArgument("--stage {}: there are stages 0 to {}", stage, num_stages - 1);
  }
  const Step& step = pipeline.staged.stages[stage].step;
  return PlanOfStep{.step = step, .prepared = step, .plan = pipeline.plan.stages[stage].plan};
}

absl::Status RunInspect(InspectFlags flags) {
  if (flags.ops && !flags.only.empty()) {
    return InvalidArgument("--only chooses tensors and --ops lists operations; give one of them");
  }
  ASSIGN_OR_RETURN(PlanFile file, ReadPlanFile(flags.plan, flags.module));
  if (const auto* const loaded = std::get_if<PipelineOfStep>(&file)) {
    if (!flags.stage) return PrintPipeline(loaded->planned, flags.json);
    flags.tensor = GlobInRows(flags.tensor, loaded->step, loaded->planned.split.rows);
    ASSIGN_OR_RETURN(file, StageOf(loaded->planned, *flags.stage));
  } else if (flags.stage) {
    return InvalidArgument("--stage {}: {} is the plan of one mesh", *flags.stage, flags.plan);
  }
  const auto& loaded = std::get<PlanOfStep>(file);
  const Mesh& mesh = loaded.plan.stage.mesh;
  if (flags.ops) {
    const std::string text = OperationsText(loaded.prepared, loaded.plan, flags.tensor);
    if (text.empty()) return NotFound("no operation of {} matches {}", flags.plan, flags.tensor);
    return Print(flags.json ? OperationsJson(loaded.prepared, loaded.plan, flags.tensor) : text);
  }
  ASSIGN_OR_RETURN(const std::vector<TensorOnMesh> tensors, Selected(flags, loaded));
  if (tensors.empty()) {
    return NotFound("no tensor of {} matches {}{}", flags.plan, flags.tensor,
                    flags.only.empty() ? "" : " among its " + flags.only);
  }
  return Print(flags.json ? TensorsJson(tensors, mesh) : TensorTable(tensors, mesh, flags.dims));
}

}  // namespace

void AddInspectCommand(CLI::App& app, CommandLine& line) {
  const auto flags = std::make_shared<InspectFlags>();
  CLI::App* const command =
      app.add_subcommand("inspect", "Show how the tensors and operations of a plan are split");
  command->add_option("plan", flags->plan, "A plan.json; - is standard input")->required();
  command->add_option("--only", flags->only,
                      "params, optimizer, inputs, outputs or activations; several joined by "
                      "commas. Default: all");
  command
      ->add_option(
          "--tensor", flags->tensor,
          "Glob on names of tensors and operations, and on operations' names in the model; "
          "* matches / too")
      ->capture_default_str();
  command->add_option("--stage", flags->stage,
                      "Of a pipeline: the tensors or operations of this stage. Default: tables of "
                      "the stages, of what they send, and of how parameters lie on each");
  command->add_flag("--ops", flags->ops,
                    "Per operation: shardings of operands and results, what each axis splits, what "
                    "it followed, costs. Default: tensors");
  command->add_flag("--dims", flags->dims, "Also show which dimension of each tensor is the batch");
  command->add_flag("--json", flags->json, "Print one JSON object");
  command->add_option(
      "--module", flags->module,
      "The module or model that the plan is of. Default: the one that the plan names");
  command->callback([flags, &line] { Finish(RunInspect(*flags), line); });
}

}  // namespace minka
