#include "minka/tools/solve_command.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "minka/base/file.h"
#include "minka/base/status.h"
#include "minka/solver/model/contest_reader.h"
#include "minka/solver/model/evaluate.h"
#include "minka/solver/solve.h"
#include "nlohmann/json.hpp"

namespace minka {
namespace {

struct SolveFlags {
  std::string instance;
  std::string time_limit = "60s";
  std::optional<int64_t> work_limit;
  double gap = 0;
  int threads = 2;
  uint64_t seed = 1;
  std::vector<std::string> without;
  bool ways = false;
  std::string out;
  bool json = false;
};

// A signal handler can reach nothing else.
std::atomic<bool> interrupted = false;

void Interrupt(int) { interrupted.store(true); }

absl::StatusOr<double> ParseSeconds(const std::string& text) {
  size_t used = 0;
  double value = -1;
  try {
    value = std::stod(text, &used);
  } catch (const std::logic_error&) {
    used = 0;
  }
  const std::string unit = text.substr(used);
  double seconds = -1;
  if (unit.empty() || unit == "s") seconds = value;
  if (unit == "ms") seconds = value * 1e-3;
  if (unit == "m" || unit == "min") seconds = value * 60;
  if (unit == "h") seconds = value * 3600;
  if (used == 0 || !(seconds > 0) || !std::isfinite(seconds))
    return InvalidArgument("--time-limit {} is not a time; write for example 60s, 500ms or 2m",
                           text);
  return seconds;
}

absl::StatusOr<WaySet> ParseWays(const std::vector<std::string>& names) {
  WaySet ways;
  for (const std::string& name : names) {
    const std::optional<Way> way = WayOfName(name);
    if (!way) {
      std::vector<std::string_view> known;
      for (int i = 0; i < kNumWays; ++i) known.push_back(WayName(static_cast<Way>(i)));
      return InvalidArgument("--without {}: there is no such way; there are {}", name,
                             fmt::join(known, ", "));
    }
    ways.set(static_cast<size_t>(*way));
  }
  return ways;
}

std::string Cost(std::optional<int64_t> cost) { return cost ? fmt::format("{}", *cost) : "none"; }

void PrintProgress(const SolveProgress& progress) {
  fmt::print(stderr, "\r{:8.2f} s  best {}  bound {:.0f}  gap {:.3f} %\033[K", progress.seconds,
             Cost(progress.cost), progress.lower_bound, 100 * progress.gap);
  std::fflush(stderr);
}

void PrintSummary(const SolverProblem& problem, const SolveResult& result, std::FILE* to) {
  fmt::print(to, "problem      {}: {} nodes, {} edges; core {} nodes, {} edges, {} cells\n",
             problem.name(), problem.num_nodes(), problem.edges().size(), result.core.num_nodes,
             result.core.num_edges, result.core.num_cells);
  fmt::print(to, "cost         {}\nlower bound  {}\ngap          {:.4f} %\n", result.cost,
             result.lower_bound, 100 * result.gap);
  const std::optional<int64_t> limit = problem.usage_limit();
  fmt::print(to, "memory       {} of {}, price {:.6g} (cost saved per extra byte)\n",
             result.peak_usage_bytes, limit ? fmt::format("{}", *limit) : "no limit",
             result.memory_price);
  fmt::print(to, "time         first {:.2f} s, best {:.2f} s, total {:.2f} s\nstopped      {}\n",
             result.seconds_to_first.value_or(0), result.seconds_to_best, result.seconds,
             SolveStatusName(result.status));
}

void PrintWays(const SolveResult& result, std::FILE* to) {
  fmt::print(to, "{:<16}{:>8}{:>8}{:>16}{:>16}{:>10}\n", "way", "runs", "gains", "gained", "work",
             "of work");
  for (int i = 0; i < kNumWays; ++i) {
    const WayRecord& record = result.ways[static_cast<Way>(i)];
    if (record.num_runs == 0 && record.num_gains == 0) continue;
    fmt::print(to, "{:<16}{:>8}{:>8}{:>16}{:>16}{:>8.1f} %\n", WayName(static_cast<Way>(i)),
               record.num_runs, record.num_gains, record.gained, record.work,
               100 * static_cast<double>(record.work) /
                   static_cast<double>(std::max<int64_t>(1, result.work)));
  }
}

nlohmann::ordered_json WaysJson(const SolveResult& result) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (int i = 0; i < kNumWays; ++i) {
    const WayRecord& record = result.ways[static_cast<Way>(i)];
    if (record.num_runs == 0 && record.num_gains == 0) continue;
    json[std::string(WayName(static_cast<Way>(i)))] = {{"runs", record.num_runs},
                                                       {"gains", record.num_gains},
                                                       {"gained", record.gained},
                                                       {"work", record.work}};
  }
  return json;
}

void PrintJson(const SolverProblem& problem, const SolveResult& result) {
  nlohmann::ordered_json json;
  json["schema_version"] = 1;
  json["name"] = problem.name();
  json["status"] = std::string(SolveStatusName(result.status));
  json["cost"] = result.cost;
  json["lower_bound"] = result.lower_bound;
  json["gap"] = result.gap;
  json["memory_price"] = result.memory_price;
  json["peak_usage_bytes"] = result.peak_usage_bytes;
  json["usage_limit_bytes"] = problem.usage_limit() ? nlohmann::ordered_json(*problem.usage_limit())
                                                    : nlohmann::ordered_json();
  json["seconds"] = result.seconds;
  json["seconds_to_first"] = result.seconds_to_first
                                 ? nlohmann::ordered_json(*result.seconds_to_first)
                                 : nlohmann::ordered_json();
  json["seconds_to_best"] = result.seconds_to_best;
  json["work"] = result.work;
  json["core_nodes"] = result.core.num_nodes;
  json["core_edges"] = result.core.num_edges;
  json["core_cells"] = result.core.num_cells;
  json["ways"] = WaysJson(result);
  json["choice"] = result.choice;
  fmt::print("{}\n", json.dump());
}

absl::Status WhyInfeasible(const SolverProblem& problem, const SolveResult& result) {
  const Infeasibility& why = *result.infeasibility;
  if (why.without_limit)
    return FailedPrecondition("{} has no solution: every choice uses a forbidden (10^18) entry",
                              problem.name());
  const std::string works = why.smallest_known_limit_bytes
                                ? fmt::format("the smallest limit known to work is {} bytes",
                                              *why.smallest_known_limit_bytes)
                                : "no limit that works was found";
  return FailedPrecondition(
      "{} has no solution within its usage limit of {} bytes: it is tightest at time {}; {}",
      problem.name(), problem.usage_limit().value_or(0), why.tightest_time, works);
}

absl::Status CheckAnswer(const SolverProblem& problem, const SolveResult& result) {
  ASSIGN_OR_RETURN(const Evaluation evaluation, Evaluate(problem, result.choice));
  if (!evaluation.feasible() || evaluation.cost != result.cost)
    return InternalError(
        "the solver's answer does not hold: cost {} claimed, {} evaluated, {} forbidden entries, "
        "peak {}",
        result.cost, evaluation.cost, evaluation.num_forbidden, evaluation.peak_usage_bytes);
  return absl::OkStatus();
}

absl::Status RunSolve(const SolveFlags& flags) {
  if (flags.json && flags.out == "-")
    return InvalidArgument("--json and --out - both want standard output; give --out a file");
  ASSIGN_OR_RETURN(const double seconds, ParseSeconds(flags.time_limit));
  ASSIGN_OR_RETURN(const WaySet left_out, ParseWays(flags.without));
  ASSIGN_OR_RETURN(const SolverProblem problem, ReadContestProblem(flags.instance));
  SolveParameters parameters = {.gap = flags.gap,
                                .time_limit_seconds = seconds,
                                .work_limit = flags.work_limit,
                                .num_threads = flags.threads,
                                .seed = flags.seed,
                                .left_out = left_out,
                                .cancelled = &interrupted};
  const bool terminal = ::isatty(STDERR_FILENO) == 1;
  if (terminal) parameters.on_progress = PrintProgress;
  std::signal(SIGINT, Interrupt);
  std::signal(SIGTERM, Interrupt);
  absl::StatusOr<SolveResult> solved = Solve(problem, parameters);
  if (terminal) fmt::print(stderr, "\r\033[K");
  RETURN_IF_ERROR(solved.status());
  const SolveResult& result = *solved;
  if (result.status == SolveStatus::kInfeasible) return WhyInfeasible(problem, result);
  if (result.choice.empty())
    return ResourceExhausted(
        "no solution found for {} in {:.1f} s (stopped: {}); give it more time with --time-limit",
        problem.name(), result.seconds, SolveStatusName(result.status));
  RETURN_IF_ERROR(CheckAnswer(problem, result));
  const std::string solution = ContestSolution(result.choice) + "\n";
  if (!flags.out.empty()) RETURN_IF_ERROR(WriteFile(flags.out, solution));
  std::FILE* const to = flags.out == "-" ? stderr : stdout;
  if (flags.json)
    PrintJson(problem, result);
  else
    PrintSummary(problem, result, to);
  if (flags.ways && !flags.json) PrintWays(result, to);
  if (!flags.json && flags.out.empty()) fmt::print("{}", solution);
  return absl::OkStatus();
}

}  // namespace

void AddSolveCommand(CLI::App& app, int& exit_code) {
  const auto flags = std::make_shared<SolveFlags>();
  CLI::App* const command =
      app.add_subcommand("solve",
                         "Solve a sharding problem in the format of the IOPDDL contest, with a "
                         "lower bound on every other answer");
  command
      ->add_option("instance", flags->instance,
                   "Problem file, .json or .json.gz; - is standard input")
      ->required();
  command
      ->add_option("--time-limit", flags->time_limit, "Stop after this time, e.g. 60s, 500ms, 2m")
      ->capture_default_str();
  command->add_option("--work-limit", flags->work_limit,
                      "Stop after this many table cells read (about a nanosecond each); the same "
                      "answer on every machine. "
                      "Default: no limit");
  command
      ->add_option("--gap", flags->gap,
                   "Stop once (cost - lower bound) / cost is at most this; 0: until proved optimal")
      ->capture_default_str();
  command
      ->add_option("--threads", flags->threads,
                   "Threads; the answer depends on whether it is one or more")
      ->capture_default_str();
  command->add_option("--seed", flags->seed, "Seed of the search")->capture_default_str();
  command->add_flag("--ways", flags->ways,
                    "Also say what each way to improve the answer or the bound did");
  command->add_option("--without", flags->without,
                      "Leave out these ways, to see what they are worth");
  command->add_option("--out", flags->out,
                      "Write the choices as a JSON array to this file; - is standard output. "
                      "Default: after the summary");
  command->add_flag("--json", flags->json, "Print one JSON object instead of the summary");
  command->callback([flags, &exit_code] {
    const absl::Status status = RunSolve(*flags);
    if (status.ok()) return;
    fmt::print(stderr, "minka: {}\n", Message(status));
    exit_code = 1;
  });
}

}  // namespace minka
