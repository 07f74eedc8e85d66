// `minka plan`: how a step is best split over a mesh, and how good that provably is.
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

// What a step is planned as.
using Planned = std::variant<PlanResult, PlannedPipeline>;

Plan& BestOf(PlanResult& result) { return result.candidates[result.best].plan; }
PipelinePlan& BestOf(PlannedPipeline& planned) { return planned.plan; }
std::string ToJson(PlanResult& result) {
  return PlanToJson(BestOf(result), result.prepared.module);
}
std::string ToJson(PlannedPipeline& planned) {
  return PipelinePlanToJson(planned.plan, planned.modules());
}

absl::StatusOr<std::string> Describe(PlanResult& result, const PlanFlags&) {
  return DescribeCandidates(result) + PlanTable(result.prepared, BestOf(result));
}
absl::StatusOr<std::string> Describe(PlannedPipeline& planned, const PlanFlags& flags) {
  ASSIGN_OR_RETURN(const std::string table, DescribePipeline(planned));
  return DescribeTried(planned.tried_micro_batches) + DescribeTried(planned, flags.top) +
         DescribeTried(planned.tried_schedules) + table;
}

double StepTimeUs(const PipelinePlan& plan) { return plan.step_time_us; }
double StepTimeUs(const Plan& plan) { return plan.stage.step_time_us; }
int64_t PeakBytes(const PipelinePlan& plan) { return plan.peak_memory_bytes; }
int64_t PeakBytes(const Plan& plan) { return plan.stage.peak_memory_bytes; }

absl::StatusOr<Planned> PlanAs(const Step& step, const PlanRequest& request) {
  if (request.pipeline) {
    ASSIGN_OR_RETURN(PlannedPipeline planned, PlanPipeline(step, request));
    return planned;
  }
  ASSIGN_OR_RETURN(PlanResult result, PlanStep(step, request));
  return result;
}

// One of the ways in which a step may be planned.
struct Way {
  std::string name;
  PlanningFlags planning;
  PlanRequest request;
  absl::StatusOr<Planned> planned = absl::UnknownError("not planned");

  double step_time_us() {
    return std::visit([](auto& plan) { return StepTimeUs(BestOf(plan)); }, *planned);
  }
  int64_t peak_bytes() {
    return std::visit([](auto& plan) { return PeakBytes(BestOf(plan)); }, *planned);
  }
};

absl::StatusOr<Way> WayBy(const PlanFlags& flags, std::string_view method, std::string name) {
  Way way{.name = std::move(name), .planning = flags.planning};
  way.planning.method = method;
  ASSIGN_OR_RETURN(way.request, RequestOf(way.planning));
  RETURN_IF_ERROR(CheckTraceFlag(flags.trace, way.request.pipeline.has_value()));
  RETURN_IF_ERROR(CheckCandidatesFlag(flags.candidates, way.request));
  return way;
}

// What the method says; where it says nothing, one mesh and pipelines, unless flags are for one of
// them, or devices share the cores of this machine, where stages gain nothing.
absl::StatusOr<std::vector<Way>> WaysOf(const PlanFlags& flags) {
  std::vector<Way> ways;
  const auto add = [&](std::string_view method, std::string name) -> absl::Status {
    ASSIGN_OR_RETURN(ways.emplace_back(), WayBy(flags, method, std::move(name)));
    return absl::OkStatus();
  };
  const PlanningFlags& planning = flags.planning;
  if (planning.method != kAnyMethod) {
    RETURN_IF_ERROR(add(planning.method, planning.method));
    return ways;
  }
  const bool wants_pipeline =
      AsksForPipeline(planning) || !flags.trace.empty() || !flags.candidates.empty();
  const bool wants_mesh = !planning.meshes.empty() || planning.cost_model != "roofline";
  if (wants_pipeline || (!wants_mesh && IsOfSeveralKinds(planning))) {
    RETURN_IF_ERROR(add(kPipelineMethod, "pipeline"));
    return ways;
  }
  RETURN_IF_ERROR(add(kMeshMethod, "one mesh"));
  const Cluster& cluster = ways.front().request.cluster;
  if (!wants_mesh && cluster.num_devices() > 1 && !cluster.shared_compute_pool)
    RETURN_IF_ERROR(add(kPipelineMethod, "pipeline"));
  return ways;
}

absl::Status PlanWay(const PlanFlags& flags, const SourceStep& source, bool is_only, Way& way) {
  RETURN_IF_ERROR(AddLocalDevices(flags.plugin, way.request));
  way.request.options = ToOptions(flags.source);
  way.request.options.merge(ToOptions(way.planning));
  way.request.on_progress = [&way, is_only](const std::string& what, double seconds, double gap) {
    const std::string prefix = is_only ? "" : way.name + ": ";
    ShowStatus(DescribeProgress(prefix + what, seconds, gap));
  };
  way.planned = PlanAs(source.step, way.request);
  ClearStatus();
  return absl::OkStatus();
}

// A host's devices are near enough that one mesh of them, in micro-batches, may be faster than
// stages.
absl::StatusOr<std::optional<Way>> OneMeshInMicroBatches(const PlanFlags& flags,
                                                         const std::vector<Way>& ways) {
  const bool is_alone = ways.size() == 1;
  const Way& one_mesh = ways.front();
  if (is_alone || !absl::IsResourceExhausted(one_mesh.planned.status()) ||
      one_mesh.request.cluster.num_hosts > 1)
    return std::nullopt;
  PlanFlags in_one_stage = flags;
  in_one_stage.planning.stages = "1";
  return WayBy(in_one_stage, kPipelineMethod, "one mesh in micro-batches");
}

// Null: none has a plan.
Way* FastestOf(std::vector<Way>& ways) {
  Way* fastest = nullptr;
  for (Way& way : ways) {
    if (!way.planned.ok()) continue;
    if (fastest == nullptr || way.step_time_us() < fastest->step_time_us()) fastest = &way;
  }
  return fastest;
}

absl::Status WhyNone(const std::vector<Way>& ways) {
  if (ways.size() == 1) return ways.front().planned.status();
  std::vector<std::string> reasons;
  for (const Way& way : ways)
    reasons.push_back(fmt::format("{}: {}", way.name, Message(way.planned.status())));
  return {ways.front().planned.status().code(), fmt::format("{}", fmt::join(reasons, "; "))};
}

// "": there is nothing to compare.
std::string CompareWays(std::vector<Way>& ways, const Way& best) {
  if (ways.size() == 1) return "";
  Table table({{""},
               {"planned as"},
               {"step time", Align::kRight},
               {"memory/device", Align::kRight},
               {"remark"}});
  for (Way& way : ways) {
    if (!way.planned.ok()) {
      table.Add({"", way.name, "-", "-", Message(way.planned.status())});
      continue;
    }
    const bool is_best = &way == &best;
    table.Add({is_best ? "*" : "", way.name, FormatTime(way.step_time_us()),
               FormatBytes(way.peak_bytes()), is_best ? "" : "slower"});
  }
  return table.ToString() + "\n";
}

absl::Status Show(const PlanFlags& flags, const std::string& comparison, Planned& planned) {
  const std::string json = std::visit([](auto& plan) { return ToJson(plan); }, planned);
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
  ASSIGN_OR_RETURN(const std::string text,
                   std::visit([&](auto& plan) { return Describe(plan, flags); }, planned));
  return Print(comparison + text);
}

absl::Status RunPlan(const PlanFlags& flags) {
  if (flags.json && flags.out == "-") {
    return InvalidArgument("--json and --out - both want standard output; give --out a file");
  }
  ASSIGN_OR_RETURN(std::vector<Way> ways, WaysOf(flags));
  ASSIGN_OR_RETURN(const SourceStep source, LoadStep(flags.source));
  for (Way& way : ways) {
    RETURN_IF_ERROR(PlanWay(flags, source, ways.size() == 1, way));
    // What is wrong on one mesh is wrong for stages, too.
    const bool is_first = &way == &ways.front();
    const absl::Status& status = way.planned.status();
    if (is_first && !status.ok() && !absl::IsResourceExhausted(status)) return status;
  }
  ASSIGN_OR_RETURN(std::optional<Way> another, OneMeshInMicroBatches(flags, ways));
  if (another) {
    ways.push_back(*std::move(another));
    RETURN_IF_ERROR(PlanWay(flags, source, /*is_only=*/false, ways.back()));
  }
  Way* const best = FastestOf(ways);
  if (best == nullptr) return WhyNone(ways);
  std::vector<std::string>& notes = std::visit(
      [](auto& plan) -> std::vector<std::string>& { return BestOf(plan).notes; }, *best->planned);
  for (const std::string& line : source.inferred) notes.push_back("concluded: " + line);
  return Show(flags, CompareWays(ways, *best), *best->planned);
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
  flags->planning.method = kAnyMethod;
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
