// `minka plan`: how a step is best split over a mesh, or over several in stages, and how good that
// provably is.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "minka/base/file.h"
#include "minka/base/status.h"
#include "minka/driver/candidates_file.h"
#include "minka/driver/describe_pipeline.h"
#include "minka/driver/pipeline.h"
#include "minka/driver/plan_fastest.h"
#include "minka/report/format.h"
#include "minka/report/pipeline_comparison.h"
#include "minka/report/pipeline_table.h"
#include "minka/report/plan_table.h"
#include "minka/report/table.h"
#include "minka/tools/child_process.h"
#include "minka/tools/command.h"
#include "minka/tools/local_cluster.h"
#include "minka/tools/pipeline_flags.h"
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

void AddNotes(const SourceStep& source, Planned& planned) {
  auto* const result = std::get_if<PlanResult>(&planned);
  std::vector<std::string>& notes = result ? result->candidates[result->best].plan.notes
                                           : std::get<PlannedPipeline>(planned).plan.notes;
  for (const std::string& line : source.inferred) notes.push_back("concluded: " + line);
}

std::string ToJson(const Planned& planned) {
  if (const auto* const result = std::get_if<PlanResult>(&planned))
    return PlanToJson(result->plan(), result->prepared.module);
  const auto& pipeline = std::get<PlannedPipeline>(planned);
  return PipelinePlanToJson(pipeline.plan, pipeline.modules());
}

absl::StatusOr<std::string> Describe(const Planned& planned, const PlanFlags& flags) {
  if (const auto* const result = std::get_if<PlanResult>(&planned))
    return DescribeTried(result->tried_micro_batches) + DescribeCandidates(*result) +
           PlanTable(result->prepared, result->plan());
  const auto& pipeline = std::get<PlannedPipeline>(planned);
  ASSIGN_OR_RETURN(const std::string table, DescribePipeline(pipeline));
  return DescribeTried(pipeline.tried_micro_batches) + DescribeTried(pipeline, flags.top) +
         DescribeTried(pipeline.tried_schedules) + table;
}

absl::StatusOr<Attempt> AttemptBy(const PlanFlags& flags, std::string_view method,
                                  std::string name) {
  Attempt attempt{.name = std::move(name)};
  PlanningFlags planning = flags.planning;
  planning.method = method;
  ASSIGN_OR_RETURN(attempt.request, RequestOf(planning));
  RETURN_IF_ERROR(CheckTraceFlag(flags.trace, attempt.request.pipeline.has_value()));
  RETURN_IF_ERROR(CheckCandidatesFlag(flags.candidates, attempt.request));
  attempt.request.options = ToOptions(flags.source);
  attempt.request.options.merge(ToOptions(planning));
  return attempt;
}

// What the method says; where it says nothing, one mesh and pipelines, unless flags are for one of
// them, or devices share the cores of this machine, where stages gain nothing.
absl::StatusOr<std::vector<Attempt>> AttemptsOf(const PlanFlags& flags) {
  std::vector<Attempt> attempts;
  const auto add = [&](std::string_view method, std::string name) -> absl::Status {
    ASSIGN_OR_RETURN(attempts.emplace_back(), AttemptBy(flags, method, std::move(name)));
    return absl::OkStatus();
  };
  const PlanningFlags& planning = flags.planning;
  if (planning.method != kAnyMethod) {
    RETURN_IF_ERROR(add(planning.method, planning.method));
    return attempts;
  }
  const bool wants_pipeline =
      AsksForPipeline(planning) || !flags.trace.empty() || !flags.candidates.empty();
  if (wants_pipeline || IsOfSeveralKinds(planning)) {
    RETURN_IF_ERROR(add(kPipelineMethod, "pipeline"));
    return attempts;
  }
  RETURN_IF_ERROR(add(kMeshMethod, "one mesh"));
  const bool wants_mesh = !planning.meshes.empty() || planning.cost_model == "alpa";
  const Cluster& cluster = attempts.front().request.cluster;
  const bool is_too_large = cluster.num_devices() > kMaxPlannedDevices;  // one mesh says so at once
  if (wants_mesh || cluster.num_devices() == 1 || cluster.shared_compute_pool || is_too_large)
    return attempts;
  RETURN_IF_ERROR(add(kPipelineMethod, "pipeline"));
  attempts.front().request.micro_batches.num_micro_batches =
      attempts.back().request.micro_batches.num_micro_batches;
  return attempts;
}

absl::Status MakeAll(const PlanFlags& flags, const SourceStep& source,
                     std::vector<Attempt>& attempts) {
  const bool is_only = attempts.size() == 1;
  for (auto& [name, request, planned] : attempts) {
    RETURN_IF_ERROR(AddLocalDevices(flags.plugin, request));
    request.on_progress = [prefix = is_only ? "" : name + ": "](const std::string& what,
                                                                double seconds, double gap) {
      ShowStatus(DescribeProgress(prefix + what, seconds, gap));
    };
  }
  PlanAll(source.step, attempts);
  ClearStatus();
  return absl::OkStatus();
}

absl::Status WhyNone(const std::vector<Attempt>& attempts) {
  const absl::Status& first = attempts.front().planned.status();
  if (attempts.size() == 1 || absl::IsInvalidArgument(first)) return first;
  std::vector<std::string> reasons;
  for (const Attempt& attempt : attempts)
    reasons.push_back(fmt::format("{}: {}", attempt.name, Message(attempt.planned.status())));
  return MakeError(first.code(), fmt::format("{}", fmt::join(reasons, "; ")));
}

// What became of it.
std::string NameOf(const Attempt& attempt) {
  if (!attempt.planned.ok()) return attempt.name;
  if (const auto* const result = std::get_if<PlanResult>(&*attempt.planned))
    return attempt.name + (result->plan().num_micro_batches > 1 ? " in micro-batches" : "");
  return attempt.name;
}

// "": there is nothing to compare.
std::string Compare(const std::vector<Attempt>& attempts, const Attempt& best) {
  if (attempts.size() == 1) return "";
  Table table({{""},
               {"planned as"},
               {"step time", Align::kRight},
               {"memory/device", Align::kRight},
               {"remark"}});
  for (const Attempt& attempt : attempts) {
    if (!attempt.planned.ok()) {
      table.Add({"", NameOf(attempt), "-", "-", Message(attempt.planned.status())});
      continue;
    }
    const bool is_best = &attempt == &best;
    table.Add({is_best ? "*" : "", NameOf(attempt), FormatTime(StepTimeUs(*attempt.planned)),
               FormatBytes(PeakMemoryBytes(*attempt.planned)), is_best ? "" : "slower"});
  }
  return table.ToString() + "\n";
}

absl::Status Show(const PlanFlags& flags, const std::string& comparison, const Planned& planned) {
  const std::string json = ToJson(planned);
  if (!flags.out.empty()) RETURN_IF_ERROR(WriteFile(flags.out, json));
  if (const auto* const pipeline = std::get_if<PlannedPipeline>(&planned)) {
    if (!flags.trace.empty()) {
      ASSIGN_OR_RETURN(const Timeline timeline, PredictTimeline(*pipeline));
      RETURN_IF_ERROR(WriteFile(flags.trace, ChromeTrace(timeline)));
    }
    RETURN_IF_ERROR(WriteCandidates(flags.candidates, *pipeline));
  }
  if (flags.json) return Print(json);
  if (flags.out == "-") return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::string text, Describe(planned, flags));
  return Print(comparison + text);
}

absl::Status RunPlan(const PlanFlags& flags) {
  if (flags.json && flags.out == "-") {
    return InvalidArgument("--json and --out - both want standard output; give --out a file");
  }
  ASSIGN_OR_RETURN(std::vector<Attempt> attempts, AttemptsOf(flags));
  ASSIGN_OR_RETURN(const SourceStep source, LoadStep(flags.source));
  RETURN_IF_ERROR(MakeAll(flags, source, attempts));
  Attempt* const best = FastestOf(attempts);
  if (best == nullptr) return WhyNone(attempts);
  AddNotes(source, *best->planned);
  return Show(flags, Compare(attempts, *best), *best->planned);
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
  flags->planning.method = kAnyMethod;  // of which the help speaks then
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
