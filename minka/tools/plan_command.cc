// `minka plan`: how a step is best split over a mesh, and how good that provably is.
#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "minka/base/file.h"
#include "minka/base/status.h"
#include "minka/driver/candidates_file.h"
#include "minka/driver/describe_pipeline.h"
#include "minka/driver/pipeline.h"
#include "minka/report/pipeline_comparison.h"
#include "minka/report/pipeline_table.h"
#include "minka/report/plan_table.h"
#include "minka/tools/child_process.h"
#include "minka/tools/command.h"
#include "minka/tools/local_cluster.h"
#include "minka/tools/planning_flags.h"
#include "minka/tools/step_source.h"
#include "minka/tools/worker_flags.h"

namespace minka {
namespace {

struct PlanFlags {
  StepSource source;
  PlanningFlags planning;
  std::string out, trace, candidates, plugin;
  int top = 8;
  bool json = false;
};

// The numbers of micro-batches, or schedules, that were tried, where there are several; else "".
template <typename Tried>
std::string DescribeTried(const std::vector<Tried>& tried) {
  if (tried.size() < 2) return "";
  std::vector<PipelineRow> rows;
  for (const Tried& one : tried) rows.push_back(RowOf(one));
  return PipelineComparison(rows) + "\n";
}

// Which meshes stages could have.
std::string DescribeChoices(const PlannedPipeline& planned) {
  if (!planned.searched || planned.searched->ways.meshes.empty()) return "";
  std::set<int64_t> sizes;
  std::set<std::string> shapes;
  for (const MeshOfWay& way : planned.searched->ways.meshes) {
    sizes.insert(way.mesh().num_devices());
    shapes.insert(way.mesh().ToString());
  }
  return fmt::format(
      "each stage on {} devices, in {} shapes (--submesh-choices restricts them, --candidates "
      "lists "
      "what there was)\n",
      fmt::join(sizes, ", "), shapes.size());
}

// What the search over submeshes tried, where that is more than one parting; "": it did not.
std::string DescribeTried(const PlannedPipeline& planned, int top) {
  const std::vector<TriedSubmeshes>& tried = planned.tried;
  if (tried.size() < 2 || top < 1) return "";
  std::vector<PipelineRow> rows;
  for (const TriedSubmeshes& parting : tried) rows.push_back(RowOf(parting));
  const size_t num_shown = std::min(rows.size(), static_cast<size_t>(top));
  rows.resize(num_shown);
  const std::string rest =
      num_shown < tried.size()
          ? fmt::format("and {} more (--top {})\n", tried.size() - num_shown, tried.size())
          : "";
  return PipelineComparison(rows) + rest + DescribeChoices(planned) + "\n";
}

absl::Status CheckCandidatesFlag(const std::string& file, const PlanRequest& request) {
  if (file.empty()) return absl::OkStatus();
  if (!request.pipeline || GivesMeshes(*request.pipeline)) {
    return InvalidArgument(
        "--candidates lists what a search over submeshes chooses from; that is --method pipeline "
        "without given meshes");
  }
  if (!file.ends_with(".tsv") && !file.ends_with(".json")) {
    return InvalidArgument("--candidates {}: the name ends neither in .tsv nor in .json", file);
  }
  return absl::OkStatus();
}

absl::Status WriteCandidates(const std::string& file, const PlannedPipeline& planned) {
  if (file.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::string text,
                   file.ends_with(".tsv") ? CandidatesTsv(planned) : CandidatesJson(planned));
  return WriteFile(file, text);
}

absl::Status RunPlanPipeline(const PlanFlags& flags, const SourceStep& source,
                             const PlanRequest& request) {
  ASSIGN_OR_RETURN(PlannedPipeline planned, PlanPipeline(source.step, request));
  ClearStatus();
  for (const std::string& line : source.inferred) {
    planned.plan.notes.push_back("concluded: " + line);
  }
  const std::string json = PipelinePlanToJson(planned.plan, planned.modules());
  if (!flags.out.empty()) RETURN_IF_ERROR(WriteFile(flags.out, json));
  if (!flags.trace.empty()) {
    ASSIGN_OR_RETURN(const Timeline timeline, PredictTimeline(planned));
    RETURN_IF_ERROR(WriteFile(flags.trace, ChromeTrace(timeline)));
  }
  RETURN_IF_ERROR(WriteCandidates(flags.candidates, planned));
  if (flags.json) return Print(json);
  if (flags.out == "-") return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::string table, DescribePipeline(planned));
  return Print(DescribeTried(planned.tried_micro_batches) + DescribeTried(planned, flags.top) +
               DescribeTried(planned.tried_schedules) + table);
}

absl::Status RunPlan(const PlanFlags& flags) {
  if (flags.json && flags.out == "-") {
    return InvalidArgument("--json and --out - both want standard output; give --out a file");
  }
  ASSIGN_OR_RETURN(PlanRequest request, RequestOf(flags.planning));
  RETURN_IF_ERROR(CheckTraceFlag(flags.trace, request.pipeline.has_value()));
  RETURN_IF_ERROR(CheckCandidatesFlag(flags.candidates, request));
  ASSIGN_OR_RETURN(const SourceStep source, LoadStep(flags.source));
  RETURN_IF_ERROR(AddLocalDevices(flags.plugin, request));
  request.options = ToOptions(flags.source);
  request.options.merge(ToOptions(flags.planning));
  request.on_progress = [](const std::string& what, double seconds, double gap) {
    ShowStatus(DescribeProgress(what, seconds, gap));
  };
  if (request.pipeline) return RunPlanPipeline(flags, source, request);
  ASSIGN_OR_RETURN(PlanResult result, PlanStep(source.step, request));
  ClearStatus();
  Plan& plan = result.candidates[result.best].plan;
  for (const std::string& line : source.inferred) plan.notes.push_back("concluded: " + line);
  const std::string json = PlanToJson(plan, result.prepared.module);
  if (!flags.out.empty()) RETURN_IF_ERROR(WriteFile(flags.out, json));
  if (flags.json) return Print(json);
  if (flags.out == "-") return absl::OkStatus();
  return Print(DescribeCandidates(result) + PlanTable(result.prepared, plan));
}

}  // namespace

void AddPlanCommand(CLI::App& app, CommandLine& line) {
  const auto flags = std::make_shared<PlanFlags>();
  CLI::App* const command = app.add_subcommand(
      "plan", "Decide how a step runs in parallel and say how good that provably is");
  command
      ->add_option("model", flags->source.model,
                   "A named model (mlp, gpt-tiny, gpt-125m ... gpt-175b, bert-..., moe-..., "
                   "wresnet-..., unet-...; a wrong name lists them all) or a module file "
                   "(HloModuleProto or HLO text); - is standard input")
      ->required();
  AddPlanningFlags(*command, flags->planning, ". Default: the memory of the cluster's devices");
  AddModelFlags(*command, flags->source);
  AddModuleFlags(*command, flags->source);
  command->add_option("--out", flags->out,
                      "Write plan.json to this file; - is standard output. Default: not written");
  command
      ->add_option("--top", flags->top,
                   "For pipeline: show so many of the partings of the devices that were tried, the "
                   "best first; 0: none")
      ->capture_default_str();
  command->add_option(
      "--candidates", flags->candidates,
      "For pipeline: write what the search chose from to this file, FILE.tsv or FILE.json: for "
      "each run of layers, mesh and way to run them there times, memory and why it was dropped");
  AddTraceFlag(*command, flags->trace, "as predicted");
  command->add_flag("--json", flags->json, "Print the content of plan.json instead of tables");
  command->add_option("--plugin", flags->plugin,
                      "PJRT plugin that --cost-model measured profiles with. Default: "
                      "MINKA_PJRT_PLUGIN, else searched");
  command->callback([flags, &line] {
    if (NeedsLocalDevices(flags->planning) && !IsChild()) {
      line.exit_code = RunInChildAndReport(line.arguments);
      return;
    }
    Finish(RunPlan(*flags), line);
  });
}

}  // namespace minka
