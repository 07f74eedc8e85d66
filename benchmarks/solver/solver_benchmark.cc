// Solves the contest's instances, generated families and minka's own problems; prints one line each
// and writes JSON.
//
//   solver_benchmark [--instances DIR] [--seconds N] [--only TEXT] [--highs SECONDS]
//   solver_benchmark --load
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "benchmarks/support/run_apart.h"
#include "benchmarks/support/table.h"
#include "families.h"
#include "fmt/format.h"
#include "large_file.h"
#include "minka/base/status.h"
#include "minka/solver/model/contest_reader.h"
#include "minka/solver/solve.h"
#include "model_problems.h"
#include "nlohmann/json.hpp"
#ifdef MINKA_HAS_HIGHS
#include "minka/solver/highs_oracle.h"
#endif

namespace minka {
namespace {

using Json = nlohmann::ordered_json;

struct Flags {
  std::string instances;
  double seconds = 60;
  std::string only;
  double highs_seconds = 0;
  bool load = false;
  TableOptions table{.folder = "benchmarks/solver"};
};

const std::vector<Criterion> kCriteria = {
    {.field = "cost", .relative = 1e-3},
    {.field = "lower_bound", .relative = 1e-3, .is_better_large = true}};

// Best published costs (scoreboard of the contest's organisers) and the contest's time limits.
struct ContestInstance {
  int64_t best_cost;
  double time_limit_seconds;
};
const std::map<std::string, ContestInstance>& ContestInstances() {
  static const std::map<std::string, ContestInstance> instances = {
      {"asplos-2025-iopddl-A", {6'548'641'531, 60}},
      {"asplos-2025-iopddl-G", {217'039, 120}},
      {"asplos-2025-iopddl-M", {49'928'460'991, 180}},
      {"asplos-2025-iopddl-S", {1'534'613'444, 240}}};
  return instances;
}

struct Case {
  std::string name;
  double seconds = 60;
  double gap = 0;
  std::function<absl::StatusOr<SolverProblem>()> make;
  bool at_prices = false;  // solve it again for a sweep of memory prices
};

std::vector<Case> Cases(const Flags& flags) {
  std::vector<Case> cases;
  if (!flags.instances.empty()) {
    for (const auto& [name, instance] : ContestInstances()) {
      const std::string path = fmt::format("{}/{}.json.gz", flags.instances, name);
      if (!std::filesystem::exists(path)) continue;
      cases.push_back({name, std::min(flags.seconds, instance.time_limit_seconds), 0,
                       [path] { return ReadContestProblem(path); }});
    }
  }
  for (const NamedProblem& family : MakeFamilies())
    cases.push_back(
        {family.name, std::min(flags.seconds, 20.0), 0,
         [problem = family.problem]() -> absl::StatusOr<SolverProblem> { return problem; }});
  // The planner stops at 1 %.
  for (const ModelCase& model_case : ModelCases())
    cases.push_back({model_case.name(), std::min(flags.seconds, 60.0), 0.01,
                     [model_case]() -> absl::StatusOr<SolverProblem> {
                       ASSIGN_OR_RETURN(NamedProblem named, MakeModelProblem(model_case));
                       return std::move(named.problem);
                     },
                     model_case.one_layer});
  std::erase_if(cases, [&](const Case& c) { return c.name.find(flags.only) == std::string::npos; });
  return cases;
}

double PeakMegabytes() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

// The median time of solving again, from the last answer, when the price of memory has changed.
absl::StatusOr<double> MillisecondsAtNextPrice(const SolverProblem& problem,
                                               const SolveResult& solved, double gap) {
  double bytes = 0;
  for (size_t u = 0; u < problem.usages().size(); ++u)
    bytes += static_cast<double>(
        problem.usage_row(problem.usages()[u].row)[solved.choice[problem.usage_node(u)]]);
  std::vector<int32_t> choice = solved.choice;
  std::vector<double> milliseconds;
  // Shares of the cost that memory would pay for.
  for (const double share : {0.1, 0.12, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.7, 1.0, 2.0}) {
    const SolverProblem priced =
        AtMemoryPrice(problem, share * static_cast<double>(solved.cost) / bytes);
    ASSIGN_OR_RETURN(SolveResult again,
                     Solve(priced, {.gap = gap, .num_threads = 2, .initial_choice = choice}));
    choice = std::move(again.choice);
    milliseconds.push_back(1000 * again.seconds);
  }
  std::ranges::nth_element(milliseconds, milliseconds.begin() + milliseconds.size() / 2);
  return milliseconds[milliseconds.size() / 2];
}

absl::StatusOr<Json> Measure(const Case& c, const Flags& flags) {
  Json row;
  row["name"] = c.name;
  ASSIGN_OR_RETURN(const SolverProblem problem, c.make());
  std::vector<std::pair<double, int64_t>> costs;
  SolveParameters parameters = {.gap = c.gap, .time_limit_seconds = c.seconds, .num_threads = 2};
  parameters.on_progress = [&](const SolveProgress& progress) {
    if (progress.cost) costs.emplace_back(progress.seconds, *progress.cost);
  };
  ASSIGN_OR_RETURN(const SolveResult solved, Solve(problem, parameters));
  const auto contest = ContestInstances().find(c.name);
  const bool known = contest != ContestInstances().end();
  const int64_t best = known ? contest->second.best_cost : solved.cost;
  const auto within = std::ranges::find_if(costs, [&](const auto& entry) {
    return static_cast<double>(entry.second) <= 1.01 * static_cast<double>(best);
  });
  row["nodes"] = problem.num_nodes();
  row["edges"] = problem.edges().size();
  row["core_nodes"] = solved.core.num_nodes;
  row["core_edges"] = solved.core.num_edges;
  row["core_cells"] = solved.core.num_cells;
  row["status"] = std::string(SolveStatusName(solved.status));
  row["cost"] = solved.cost;
  row["lower_bound"] = solved.lower_bound;
  row["gap"] = solved.gap;
  row["cost_over_contest_best"] =
      known ? Json(static_cast<double>(solved.cost) / static_cast<double>(best)) : Json();
  row["seconds_to_one_percent"] = within == costs.end() ? Json() : Json(within->first);
  row["seconds"] = solved.seconds;
  row["work"] = solved.work;
  row["memory_price"] = solved.memory_price;
  row["peak_megabytes"] = PeakMegabytes();
  if (c.at_prices) {
    const absl::StatusOr<double> again = MillisecondsAtNextPrice(problem, solved, c.gap);
    row["milliseconds_at_next_price"] = again.ok() ? Json(*again) : Json();
  }
#ifdef MINKA_HAS_HIGHS
  if (flags.highs_seconds > 0 && !known) {
    const OracleAnswer oracle = SolveWithHighs(problem, flags.highs_seconds);
    row["highs_cost"] = oracle.cost ? Json(*oracle.cost) : Json();
    row["highs_seconds"] = oracle.seconds;
  }
#endif
  return row;
}

std::string Optional(const Json& value, const char* format) {
  return value.is_number() ? fmt::format(fmt::runtime(format), value.get<double>()) : "-";
}

void Print(const Json& row) {
  const std::string name = row["name"];
  fmt::print(
      "{:32} {:>7} {:>7} {:>6} {:>16} {:>9} {:>8.4f}% {:>7} {:>7.2f} {:>7.0f} {}{}\n", name,
      row["nodes"].get<int64_t>(), row["edges"].get<int64_t>(), row["core_nodes"].get<int64_t>(),
      row["cost"].get<int64_t>(), Optional(row["cost_over_contest_best"], "{:.6f}"),
      100 * row["gap"].get<double>(), Optional(row["seconds_to_one_percent"], "{:.2f}"),
      row["seconds"].get<double>(), row["peak_megabytes"].get<double>(),
      row["status"].get<std::string>() +
          (row.contains("milliseconds_at_next_price")
               ? "; at another price of memory, from this answer: " +
                     Optional(row["milliseconds_at_next_price"], "{:.1f} ms")
               : ""),
      row.contains("highs_seconds") ? "  HiGHS " + Optional(row["highs_cost"], "{:.0f}") : "");
  std::fflush(stdout);
}

// Reading alone; the file is in the page cache.
absl::StatusOr<Json> MeasureLoad(const std::string& path) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  const std::clock_t processor_start = std::clock();
  ASSIGN_OR_RETURN(const SolverProblem problem, ReadContestProblem(path));
  const double processor_seconds =
      static_cast<double>(std::clock() - processor_start) / CLOCKS_PER_SEC;
  const std::chrono::duration<double> seconds = Clock::now() - start;
  int64_t cells = 0;
  for (const ProblemEdge& edge : problem.edges())
    cells += int64_t{problem.num_choices(edge.a)} * problem.num_choices(edge.b);
  return Json{{"nodes", problem.num_nodes()},
              {"edges", problem.edges().size()},
              {"cells", cells},
              {"seconds", seconds.count()},
              {"processor_seconds", processor_seconds},
              {"peak_megabytes", PeakMegabytes()}};
}

absl::StatusOr<Json> WriteAndMeasureLoad(const std::string& path) {
  RETURN_IF_ERROR(WriteLargeFile({}, path));
  ASSIGN_OR_RETURN(Json row, RunApart("large file", [&] { return MeasureLoad(path); }));
  row["megabytes"] = static_cast<double>(std::filesystem::file_size(path)) / 1e6;
  return row;
}

// How long the largest file that the contest's format is likely to see takes to read.
absl::Status Load() {
  namespace fs = std::filesystem;
  const fs::path path =
      fs::temp_directory_path() / fmt::format("minka_large_problem_{}.json", getpid());
  const absl::StatusOr<Json> measured = WriteAndMeasureLoad(path);
  fs::remove(path);
  ASSIGN_OR_RETURN(const Json row, measured);
  fmt::print(
      "{:.0f} MB, {} nodes, {} edges, {} cells: {:.2f} s ({:.2f} s of processor), {:.0f} MiB\n",
      row["megabytes"].get<double>(), row["nodes"].get<int64_t>(), row["edges"].get<int64_t>(),
      row["cells"].get<int64_t>(), row["seconds"].get<double>(),
      row["processor_seconds"].get<double>(), row["peak_megabytes"].get<double>());
  return absl::OkStatus();
}

absl::Status RunAll(const Flags& flags, const std::function<void(Json)>& add) {
  fmt::print("{:32} {:>7} {:>7} {:>6} {:>16} {:>9} {:>9} {:>7} {:>7} {:>7} stopped\n", "problem",
             "nodes", "edges", "core", "cost", "/contest", "gap", "1% at s", "total s", "MB");
  absl::Status failed;
  for (const Case& c : Cases(flags)) {
    // Peak memory is that of one case.
    auto row = RunApart(c.name, [&] { return Measure(c, flags); });
    if (row.ok()) {
      Print(*row);
      add(*std::move(row));
    } else {
      fmt::print("{}\n", Message(row.status()));
      failed = row.status();
    }
  }
  return failed;
}

absl::Status Run(const Flags& flags) {
  if (flags.load) return Load();
  return MakeTable(
      {.criteria = kCriteria, .measure = [&](const auto& add) { return RunAll(flags, add); }},
      flags.table);
}

}  // namespace
}  // namespace minka

int main(int argc, char** argv) {
  minka::Flags flags;
  CLI::App app("The solver's table");
  app.add_option("--instances", flags.instances,
                 "Folder with the contest's .json.gz files; default: left out");
  app.add_option("--seconds", flags.seconds, "Largest time per problem")->capture_default_str();
  app.add_option("--only", flags.only, "Problems whose name contains this");
  app.add_option("--highs", flags.highs_seconds,
                 "Also ask HiGHS, for at most this many seconds each; 0: do not")
      ->capture_default_str();
  minka::AddTableOptions(app, flags.table);
  app.add_flag(
      "--load", flags.load,
      "Instead, write a file of about 300 MB, measure how long it takes to read, remove it");
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = minka::Run(flags);
  if (status.ok()) return 0;
  fmt::print(stderr, "solver_benchmark: {}\n", minka::Message(status));
  return 1;
}
