// How long it takes from a module's file to the plan, of one mesh or of a pipeline, whichever is
// faster, under the devices' memory: the published models on their clusters, and how it grows with
// layers and devices.
//
//   pipeline_planning_benchmark                      a table of all cases
//   pipeline_planning_benchmark --filter gpt-39b     of those whose name contains it
//   pipeline_planning_benchmark --update             also writes the committed table
//
// Every run is a process of its own, so that its peak memory is its own; the table has the median
// of five, of three where one takes more than ten seconds, of one where it takes half a minute.
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "CLI/CLI.hpp"
#include "benchmarks/support/run_apart.h"
#include "benchmarks/support/table.h"
#include "fmt/format.h"
#include "minka/base/status.h"
#include "minka/cluster/cluster.h"
#include "minka/driver/pipeline.h"
#include "minka/driver/plan_fastest.h"
#include "minka/ir/hlo_proto.h"
#include "minka/ir/step.h"
#include "minka/models/registry.h"
#include "minka/report/format.h"
#include "nlohmann/json.hpp"

namespace minka {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr int kNumThreads = 2;

// Seconds are those of a machine that may have been busier.
const std::vector<Criterion> kCriteria = {
    {.field = "step_time_us", .relative = 0.002},
    {.field = "wall_seconds", .relative = 0.5, .absolute = 0.5},
    {.field = "peak_memory_mib", .relative = 0.2, .absolute = 50}};

struct Case {
  std::string part;  // of the page
  std::string model, cluster;
  int64_t global_batch = 1024;
  int64_t num_micro_batches = kChooseMicroBatches;
  std::optional<int64_t> num_layers;
  bool per_micro_batch = false;

  // V100s have no fast bf16.
  std::optional<ElementType> dtype() const {
    const bool is_f16 = cluster.starts_with("p3.") && !model.starts_with("wresnet");
    return is_f16 ? std::optional(ElementType::kF16) : std::nullopt;
  }

  std::string name() const {
    return fmt::format("{}{} on {}, batch {}, {}", model,
                       num_layers ? fmt::format(" of {} layers", *num_layers) : "", cluster,
                       global_batch,
                       num_micro_batches == kChooseMicroBatches
                           ? "micro-batches chosen"
                           : fmt::format("{} micro-batches", num_micro_batches));
  }
};

constexpr std::string_view kPublished = "published", kLayers = "layers", kDevices = "devices";

std::vector<Case> Cases() {
  std::vector<Case> cases;
  const auto add = [&](Case one) {
    cases.push_back(one);
    one.num_micro_batches = kChooseMicroBatches;
    cases.push_back(std::move(one));
  };
  for (const auto& [model, cluster, batch, micro_batches] :
       std::initializer_list<std::tuple<const char*, const char*, int64_t, int64_t>>{
           {"gpt-1.3b", "p3.16xlarge:1", 1024, 128},
           {"gpt-6.7b", "p3.16xlarge:2", 1024, 64},
           {"gpt-15b", "p3.16xlarge:4", 1024, 128},
           {"gpt-39b", "p3.16xlarge:8", 1024, 64},
           {"gpt-76b", "p4d.24xlarge:32", 1024, 64},
           {"gpt-175b", "p4d.24xlarge:128", 1536, 96},
           {"moe-2.4b", "p3.16xlarge:1", 1024, 32},
           {"moe-10b", "p3.16xlarge:2", 1024, 16},
           {"moe-27b", "p3.16xlarge:4", 1024, 128},
           {"moe-70b", "p3.16xlarge:8", 1024, 64}}) {
    add({.part = std::string(kPublished),
         .model = model,
         .cluster = cluster,
         .global_batch = batch,
         .num_micro_batches = micro_batches});
  }
  for (const auto& [model, cluster, batch, micro_batches] :
       std::initializer_list<std::tuple<const char*, const char*, int64_t, int64_t>>{
           {"wresnet-2b", "p3.16xlarge:1", 1536, 24},
           {"wresnet-4b", "p3.16xlarge:2", 1536, 32},
           {"wresnet-6.8b", "p3.16xlarge:4", 1536, 32},
           {"wresnet-13b", "p3.16xlarge:8", 1520, 38}}) {
    add({.part = std::string(kPublished),
         .model = model,
         .cluster = cluster,
         .global_batch = batch,
         .num_micro_batches = micro_batches,
         .per_micro_batch = true});
  }
  for (const int64_t num_layers : {12, 24, 48, 96, 192}) {
    cases.push_back({.part = std::string(kLayers),
                     .model = "gpt-1.3b",
                     .cluster = "p4d.24xlarge:8",
                     .num_micro_batches = 64,
                     .num_layers = num_layers});
  }
  for (const int num_hosts : {1, 2, 4, 8, 16, 32, 64, 128}) {
    cases.push_back({.part = std::string(kDevices),
                     .model = "gpt-2.6b",
                     .cluster = fmt::format("p4d.24xlarge:{}", num_hosts),
                     .num_micro_batches = 64});
  }
  return cases;
}

double PeakMemoryMib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// What its file holds.
absl::StatusOr<std::string> ModuleBytes(const Case& one) {
  ASSIGN_OR_RETURN(const TracedStep traced, TraceModel(one.model, {.global_batch = one.global_batch,
                                                                   .num_layers = one.num_layers,
                                                                   .dtype = one.dtype()}));
  return ExportHlo(ToModule(traced.step));
}

// Its plan.json is made, too, which counts.
Json RowOf(const Planned& planned) {
  const auto optional = [](const std::optional<double>& gap) { return gap ? Json(*gap) : Json(); };
  if (const auto* const result = std::get_if<PlanResult>(&planned)) {
    const Plan& plan = result->plan();
    static_cast<void>(PlanToJson(plan, result->prepared.module));
    return {{"model_layers", result->prepared.num_layers.value_or(0)},
            {"micro_batches", plan.num_micro_batches},
            {"stages", 1},
            {"step_time_us", plan.step_time_us},
            {"gap", optional(plan.gap)},
            {"memory_bytes", plan.peak_memory_bytes}};
  }
  const auto& pipeline = std::get<PlannedPipeline>(planned);
  const PipelinePlan& plan = pipeline.plan;
  static_cast<void>(PipelinePlanToJson(plan, pipeline.modules()));
  return {{"model_layers", plan.stage_of_layer.size()},
          {"micro_batches", plan.num_micro_batches},
          {"stages", plan.stages.size()},
          {"step_time_us", plan.step_time_us},
          {"gap", optional(plan.gap)},
          {"memory_bytes", plan.peak_memory_bytes}};
}

absl::StatusOr<Json> Measure(const Case& one, const std::string& bytes) {
  PlanRequest request{.micro_batches = {.num_micro_batches = one.num_micro_batches,
                                        .per_micro_batch = one.per_micro_batch},
                      .search = {.num_threads = kNumThreads}};
  ASSIGN_OR_RETURN(request.cluster, Cluster::Preset(one.cluster));
  request.search.memory_limit_bytes = request.cluster.device.memory_bytes;
  std::vector<Attempt> attempts = {{.name = "one mesh", .request = request},
                                   {.name = "pipeline", .request = request}};
  attempts.back().request.pipeline.emplace();
  const auto start = Clock::now();
  const std::clock_t cpu_start = std::clock();
  ASSIGN_OR_RETURN(Module module, ImportHlo(bytes));
  ASSIGN_OR_RETURN(const Step step, MakeStep(std::move(module), {}));
  const double import_seconds = SecondsSince(start);
  PlanAll(step, attempts);
  const Attempt* const fastest = FastestOf(attempts);
  if (fastest == nullptr) return attempts.back().planned.status();
  Json row = RowOf(*fastest->planned);
  const double wall_seconds = SecondsSince(start);
  row.update({{"devices", request.cluster.num_devices()},
              {"instructions", step.module.entry_computation().num_instructions()},
              {"import_seconds", import_seconds},
              {"wall_seconds", wall_seconds},
              {"cpu_seconds", static_cast<double>(std::clock() - cpu_start) / CLOCKS_PER_SEC},
              {"peak_memory_mib", PeakMemoryMib()}});
  return row;
}

size_t NumRuns(double longest_seconds) {
  if (longest_seconds > 30) return 1;
  return longest_seconds > 10 ? 3 : 5;
}

// The run of the median wall time.
absl::StatusOr<Json> RunCase(const Case& one) {
  const std::string name = one.name();
  std::vector<Json> runs;
  double longest_seconds = 0;
  while (runs.size() < NumRuns(longest_seconds)) {
    ASSIGN_OR_RETURN(Json run, RunApart(name, [&]() -> absl::StatusOr<Json> {
                       ASSIGN_OR_RETURN(const std::string bytes, ModuleBytes(one));
                       return Measure(one, bytes);
                     }));
    longest_seconds = std::max(longest_seconds, run["wall_seconds"].get<double>());
    runs.push_back(std::move(run));
  }
  std::ranges::sort(runs, {}, [](const Json& run) { return run["wall_seconds"].get<double>(); });
  Json row{{"name", name},
           {"part", one.part},
           {"model", one.model},
           {"cluster", one.cluster},
           {"global_batch", one.global_batch},
           {"chosen", one.num_micro_batches == kChooseMicroBatches}};
  row.update(runs[runs.size() / 2]);
  row["runs"] = runs.size();
  return row;
}

constexpr char kHeader[] =
    "| model | cluster | devices | layers | instructions | batch | micro-batches | stages | step "
    "time s | gap | memory GiB | import s | wall s | processor s | runs | peak MiB |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n";

std::string TableRow(const Json& row) {
  return fmt::format(
      "| {} | {} | {} | {} | {} | {} | {}{} | {} | {:.3f} | {} | {:.1f} | {:.2f} | {:.2f} | {:.2f} "
      "| {} "
      "| {:.0f} |\n",
      row["model"].get<std::string>(), row["cluster"].get<std::string>(), row["devices"].get<int>(),
      row["model_layers"].get<int>(), row["instructions"].get<int>(),
      row["global_batch"].get<int>(), row["micro_batches"].get<int>(),
      row["chosen"].get<bool>() ? " chosen" : "", row["stages"].get<int>(),
      row["step_time_us"].get<double>() / 1e6,
      row["gap"].is_null() ? "-" : FormatPercent(row["gap"].get<double>()),
      row["memory_bytes"].get<double>() / static_cast<double>(1 << 30),
      row["import_seconds"].get<double>(), row["wall_seconds"].get<double>(),
      row["cpu_seconds"].get<double>(), row["runs"].get<int>(),
      row["peak_memory_mib"].get<double>());
}

std::string Section(const Json& rows, std::string_view part) {
  std::string text = kHeader;
  for (const Json& row : rows) {
    if (row["part"] == part) text += TableRow(row);
  }
  return text + "\n";
}

std::string Page(const Json& rows) {
  return "# Planning pipelines\n\n"
         "Made by `pipeline_planning_benchmark --update`: roofline costs, 2 threads, under the "
         "memory of the devices, GPT and\n"
         "mixtures of experts in f16 on V100s, on one mesh or in stages, as `minka plan` "
         "chooses. *wall* is what a user waits from a module's file (of which "
         "*import* is to read it) to plan.json,\n"
         "*peak* the memory of the process, which has traced the model, too. *chosen*: the number "
         "of micro-batches was searched\n"
         "for, all divisors of the batch. *gap*: no pipeline in as many micro-batches is faster by "
         "more, by what its layers take\n"
         "by themselves. Wide ResNets normalise each micro-batch by itself. Medians of five runs, "
         "each a process of its own; of "
         "three where one takes more than 10 s, of one from 30 s on.\n"
         "The goals are 5 s up to 64 devices, 30 s at 1,024, and 4 GiB.\n\n" +
         Section(rows, kPublished) +
         "## Growth\n\n"
         "![wall seconds over layers, devices and instructions](growth.svg)\n\n"
         "With layers:\n\n" +
         Section(rows, kLayers) + "With devices:\n\n" + Section(rows, kDevices);
}

absl::Status RunAll(const std::string& filter, const std::function<void(Json)>& add) {
  fmt::print("{}", kHeader);
  absl::Status failed;
  for (const Case& one : Cases()) {
    if (one.name().find(filter) == std::string::npos) continue;
    auto row = RunCase(one);
    if (!row.ok()) {
      fmt::print(stderr, "{}\n", Message(row.status()));
      failed = row.status();
      continue;
    }
    fmt::print("{}", TableRow(*row));
    std::fflush(stdout);
    add(*std::move(row));
  }
  return failed;
}

}  // namespace
}  // namespace minka

int main(int argc, char** argv) {
  std::string filter;
  minka::TableOptions table{.folder = "benchmarks/planning/pipelines"};
  CLI::App app("How long it takes to plan pipelines");
  app.add_option("--filter", filter, "only cases whose name contains this");
  minka::AddTableOptions(app, table);
  return minka::MakeTableOfCommand(
      app, argc, argv,
      {.criteria = minka::kCriteria,
       .measure = [&](const auto& add) { return minka::RunAll(filter, add); },
       .page = minka::Page},
      table);
}
