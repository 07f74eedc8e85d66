// How long it takes to plan one mesh, phase by phase, for the named models on 8 devices of a
// p4de.24xlarge.
//
//   planning_benchmark                    a table of all cases
//   planning_benchmark gpt-39b            of the cases whose "MODEL on MESH" contains the argument
//   planning_benchmark --json [FILTER]    one JSON array instead
//
// "of joined": the cost on a mesh as a part of the least cost on the meshes above it, which are
// made of its axes by joining them. Above 1 by more than the gap it fails.
//
// Phases in processor seconds of all threads, the whole in wall seconds, too. Every case runs in a
// process of its own, so that its peak memory is its own.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "minka/base/status.h"
#include "minka/cluster/cluster.h"
#include "minka/cost/cost_model.h"
#include "minka/driver/prepare.h"
#include "minka/models/registry.h"
#include "minka/planner/intra_op/decode.h"
#include "minka/planner/intra_op/formulation.h"
#include "minka/solver/solve.h"
#include "nlohmann/json.hpp"

namespace minka {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kGap = 0.01;
constexpr double kTimeLimitSeconds = 60;
constexpr int kNumThreads = 2;

// Processor time of all threads, so that other work on the machine does not show.
class Stopwatch {
 public:
  // Seconds since the last call, or since construction.
  double Lap() {
    const std::clock_t now = std::clock();
    return static_cast<double>(now - std::exchange(last_, now)) / CLOCKS_PER_SEC;
  }

 private:
  std::clock_t last_ = std::clock();
};

double PeakMemoryMib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

absl::StatusOr<Json> RunCase(const std::string& model, const std::string& mesh_text) {
  ASSIGN_OR_RETURN(const Cluster cluster, Cluster::Preset("p4de.24xlarge:1"));
  ASSIGN_OR_RETURN(const Mesh mesh, Mesh::Parse(mesh_text));
  const auto cost = MakeRooflineCostModel(cluster, mesh);
  Json row = {{"model", model}, {"mesh", mesh_text}};

  const auto start = std::chrono::steady_clock::now();
  Stopwatch watch;
  ASSIGN_OR_RETURN(const TracedStep traced, TraceModel(model));
  const double trace_seconds = watch.Lap();
  ASSIGN_OR_RETURN(const Step step, Prepare(traced.step));
  const double prepare_seconds = watch.Lap();
  const IntraOpOptions options;
  const StepFacts facts(step);
  ASSIGN_OR_RETURN(ChoiceTables tables,
                   EnumerateChoices(step, mesh, cost->forbids_replicated_dots(), options));
  ReshardCosts reshards(mesh, *cost, tables.shardings);
  const Formulation formulation = Formulate(facts, tables, reshards, mesh, *cost, options);
  const double formulate_seconds = watch.Lap();
  ASSIGN_OR_RETURN(
      const SolveResult solved,
      Solve(formulation.problem,
            {.gap = kGap, .time_limit_seconds = kTimeLimitSeconds, .num_threads = kNumThreads}));
  const double solver_seconds = watch.Lap();
  if (solved.choice.empty()) return InternalError("no plan: {}", SolveStatusName(solved.status));
  const StagePlan stage =
      DecodeChoices(facts, tables, formulation, reshards, mesh, *cost, solved.choice, {});
  const double decode_seconds = watch.Lap();

  row["instructions"] = step.module.entry_computation().num_instructions();
  row["nodes"] = formulation.problem.num_nodes();
  row["edges"] = formulation.problem.edges().size();
  row["trace_cpu_seconds"] = trace_seconds;
  row["prepare_cpu_seconds"] = prepare_seconds;
  row["formulate_cpu_seconds"] = formulate_seconds;
  row["solver_cpu_seconds"] = solver_seconds;
  row["decode_cpu_seconds"] = decode_seconds;
  row["cpu_seconds"] =
      trace_seconds + prepare_seconds + formulate_seconds + solver_seconds + decode_seconds;
  row["wall_seconds"] =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  row["gap"] = solved.gap;
  row["status"] = SolveStatusName(solved.status);
  row["cost"] = static_cast<double>(solved.cost) / formulation.units_per_cost;
  row["lower_bound"] = static_cast<double>(solved.lower_bound) / formulation.units_per_cost;
  row["step_time_us"] = stage.step_time_us;
  row["peak_memory_mib"] = PeakMemoryMib();
  return row;
}

// The row of a case that a child process runs.
absl::StatusOr<Json> RunApart(const std::string& model, const std::string& mesh) {
  int ends[2];
  if (pipe(ends) != 0) return InternalError("no pipe");
  const pid_t child = fork();
  if (child == 0) {
    const auto row = RunCase(model, mesh);
    const std::string text =
        row.ok() ? row->dump() : Json({{"error", Message(row.status())}}).dump();
    const ssize_t written = write(ends[1], text.data(), text.size());
    _exit(written == static_cast<ssize_t>(text.size()) ? 0 : 1);
  }
  close(ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t n = 0; (n = read(ends[0], buffer, sizeof buffer)) > 0;) {
    text.append(buffer, static_cast<size_t>(n));
  }
  close(ends[0]);
  waitpid(child, nullptr, 0);
  const Json row = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (row.is_discarded()) return InternalError("{} on {}: the process died", model, mesh);
  if (row.contains("error")) {
    return InternalError("{} on {}: {}", model, mesh, row["error"].get<std::string>());
  }
  return row;
}

std::string TableRow(const Json& row) {
  return fmt::format(
      "| {} | {} | {} | {} | {} | {:.2f} | {:.2f} | {:.2f} | {:.2f} | {:.2f} | {:.2f} | {:.2f} | "
      "{:.2f} % | "
      "{} | {:.1f} | {:.1f} | {} | {:.0f} |",
      row["model"].get<std::string>(), row["mesh"].get<std::string>(),
      row["instructions"].get<int>(), row["nodes"].get<int>(), row["edges"].get<int>(),
      row["trace_cpu_seconds"].get<double>(), row["prepare_cpu_seconds"].get<double>(),
      row["formulate_cpu_seconds"].get<double>(), row["solver_cpu_seconds"].get<double>(),
      row["decode_cpu_seconds"].get<double>(), row["cpu_seconds"].get<double>(),
      row["wall_seconds"].get<double>(), 100 * row["gap"].get<double>(),
      row["status"].get<std::string>(), row["cost"].get<double>(), row["lower_bound"].get<double>(),
      row.contains("of_joined") ? fmt::format("{:.4f}", row["of_joined"].get<double>()) : "-",
      row["peak_memory_mib"].get<double>());
}

// Fills in what part of the least cost so far the row's is. False: it is above 1 by more than the
// gap, or the bound is.
bool CompareWithJoined(Json& row, std::optional<double>& least_cost) {
  const double cost = row["cost"].get<double>();
  const double least = least_cost.value_or(cost);
  if (least_cost) row["of_joined"] = cost / least;
  least_cost = std::min(cost, least);
  if (row["lower_bound"].get<double>() <= least && cost * (1 - kGap) <= least) return true;
  fmt::print(stderr, "{} on {} costs {}, joined axes {}\n", row["model"].get<std::string>(),
             row["mesh"].get<std::string>(), cost, least);
  return false;
}

int Run(bool as_json, const std::string& filter) {
  // Each is made of the next by joining axes.
  static constexpr const char* kMeshes[] = {"data=8", "data=2,model=4", "x=2,y=2,z=2"};
  if (!as_json) {
    fmt::print(
        "| model | mesh | instructions | nodes | edges | trace s | prepare s | formulate s | "
        "solver s | decode s | all s | wall s | gap | status | cost us | bound us | of joined | "
        "peak MiB |\n"
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n");
  }
  Json rows = Json::array();
  bool failed = false;
  for (const std::string& model : ModelNames()) {
    std::optional<double> least_cost;  // on the meshes before
    for (const std::string mesh : kMeshes) {
      if (fmt::format("{} on {}", model, mesh).find(filter) == std::string::npos) continue;
      std::fflush(stdout);
      auto row = RunApart(model, mesh);
      if (row.ok()) failed |= !CompareWithJoined(*row, least_cost);
      if (!row.ok()) {
        fmt::print(stderr, "{}\n", Message(row.status()));
        failed = true;
      } else if (as_json) {
        rows.push_back(*row);
      } else {
        fmt::print("{}\n", TableRow(*row));
      }
    }
  }
  if (as_json) fmt::print("{}\n", rows.dump(1));
  return failed ? 1 : 0;
}

}  // namespace
}  // namespace minka

int main(int argc, char** argv) {
  bool as_json = false;
  std::string filter;
  for (int i = 1; i < argc; ++i) {
    if (std::string(argv[i]) == "--json") {
      as_json = true;
    } else {
      filter = argv[i];
    }
  }
  return minka::Run(as_json, filter);
}
