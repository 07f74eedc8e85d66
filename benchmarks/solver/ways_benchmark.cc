// What each way of the solver is worth: every problem is solved with all of them, then with each
// left out in turn, by the same work on one thread, so that the rows do not depend on the machine.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "benchmarks/support/table.h"
#include "families.h"
#include "fmt/format.h"
#include "minka/base/parallel.h"
#include "minka/base/status.h"
#include "minka/solver/model/contest_reader.h"
#include "minka/solver/solve.h"
#include "model_problems.h"
#include "nlohmann/json.hpp"

namespace minka {
namespace {

struct Flags {
  std::string instances;
  std::string only;
  std::vector<std::string> ways;
  std::vector<int64_t> work = {100'000'000, 500'000'000};
  int seeds = 1;
  TableOptions table{.folder = "benchmarks/solver/ways"};
};

// Seeds, models and meshes other than those of solver_benchmark.
constexpr uint64_t kSeedsOfFamilies[] = {101, 102};

std::vector<ModelCase> Models() {
  std::vector<ModelCase> cases;
  for (const std::string model : {"bert-large", "unet-470m", "moe-1.3b", "wresnet-500m"}) {
    cases.push_back({model, "x=4,y=2"});
    cases.push_back({model, "x=2,y=4", /*tight=*/true});
  }
  cases.push_back({"bert-large", "x=2,y=2,z=2"});
  cases.push_back({"unet-470m", "x=2,y=2,z=2"});
  return cases;
}

absl::StatusOr<std::vector<NamedProblem>> Problems(const Flags& flags) {
  const auto is_asked_for = [&](const std::string& name) {
    return name.find(flags.only) != std::string::npos;
  };
  std::vector<NamedProblem> problems;
  for (const uint64_t seed : kSeedsOfFamilies) {
    for (NamedProblem& family : MakeFamilies(seed)) {
      family.name += fmt::format(" {}", seed);
      if (is_asked_for(family.name)) problems.push_back(std::move(family));
    }
  }
  for (const ModelCase& model : Models()) {
    if (!is_asked_for(model.name())) continue;
    ASSIGN_OR_RETURN(problems.emplace_back(), MakeModelProblem(model));
  }
  if (flags.instances.empty()) return problems;
  for (const std::string letter : {"A", "G", "M", "S"}) {
    const std::string name = "asplos-2025-iopddl-" + letter;
    const std::string path = fmt::format("{}/{}.json.gz", flags.instances, name);
    if (!is_asked_for(name) || !std::filesystem::exists(path)) continue;
    ASSIGN_OR_RETURN(SolverProblem problem, ReadContestProblem(path));
    problems.push_back({name, std::move(problem)});
  }
  return problems;
}

// Of all seeds of the search.
struct Outcome {
  double cost = 0, lower_bound = 0;  // mean; infinite cost: one found no choice
  WayRecords ways;
  int64_t work = 0;
};

absl::StatusOr<Outcome> SolveWithout(const SolverProblem& problem, const WaySet& left_out,
                                     int64_t work, int num_seeds) {
  Outcome out;
  for (int seed = 1; seed <= num_seeds; ++seed) {
    ASSIGN_OR_RETURN(const SolveResult result, Solve(problem, {.time_limit_seconds = 3600,
                                                               .work_limit = work,
                                                               .seed = static_cast<uint64_t>(seed),
                                                               .left_out = left_out}));
    out.cost += (result.choice.empty() ? HUGE_VAL : static_cast<double>(result.cost)) / num_seeds;
    out.lower_bound += static_cast<double>(result.lower_bound) / num_seeds;
    out.ways += result.ways;
    out.work += result.work;
  }
  return out;
}

// How much dearer without a way, and how much lower the bound, in percent, by problem.
struct Loss {
  std::vector<double> of_cost, of_bound;

  // Is there anything to compare?
  bool Add(const Outcome& with, const Outcome& without) {
    if (with.cost <= 0 || with.lower_bound <= 0 || std::isinf(with.cost)) return false;
    of_cost.push_back(std::min(100.0, 100 * (without.cost / with.cost - 1)));
    of_bound.push_back(100 * (1 - std::max(0.0, without.lower_bound) / with.lower_bound));
    return true;
  }
};

double Mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

double Largest(const std::vector<double>& values) {
  return values.empty() ? 0 : *std::ranges::max_element(values);
}

int64_t CountOver(const std::vector<double>& values, double least) {
  return std::ranges::count_if(values, [&](double value) { return value > least; });
}

std::vector<Way> WaysOf(const Flags& flags) {
  std::vector<Way> ways;
  for (int i = 0; i < kNumWays; ++i) {
    const auto way = static_cast<Way>(i);
    if (flags.ways.empty() || std::ranges::find(flags.ways, WayName(way)) != flags.ways.end())
      ways.push_back(way);
  }
  return ways;
}

absl::Status MeasureWays(const Flags& flags, const std::function<void(Rows row)>& add) {
  ASSIGN_OR_RETURN(const std::vector<NamedProblem> problems, Problems(flags));
  const std::vector<Way> ways = WaysOf(flags);
  for (const int64_t work : flags.work) {
    // By problem, then with all ways and without each.
    const int num_solves = static_cast<int>(ways.size()) + 1;
    std::vector<absl::StatusOr<Outcome>> outcomes(problems.size() * num_solves);
    ForEachInParallel(static_cast<int>(outcomes.size()), NumHardwareThreads(), [&](int i) {
      WaySet left_out;
      if (i % num_solves > 0) left_out.set(static_cast<size_t>(ways[i % num_solves - 1]));
      outcomes[i] = SolveWithout(problems[i / num_solves].problem, left_out, work, flags.seeds);
    });
    WayRecords records;
    int64_t work_done = 0;
    std::vector<Loss> losses(ways.size());
    for (size_t p = 0; p < problems.size(); ++p) {
      const absl::StatusOr<Outcome>& with = outcomes[p * num_solves];
      RETURN_IF_ERROR(with.status());
      records += with->ways;
      work_done += with->work;
      fmt::print("{:32} {:>11} work: cost {:.0f}, gap {:.4f} %\n", problems[p].name, work,
                 with->cost, 100 * (1 - with->lower_bound / with->cost));
      for (size_t w = 0; w < ways.size(); ++w) {
        const absl::StatusOr<Outcome>& without = outcomes[p * num_solves + w + 1];
        RETURN_IF_ERROR(without.status());
        if (!losses[w].Add(*with, *without)) continue;
        const double of_cost = losses[w].of_cost.back(), of_bound = losses[w].of_bound.back();
        if (std::abs(of_cost) > 0.01 || std::abs(of_bound) > 0.01)
          fmt::print("    without {:16} cost {:+.3f} %, bound {:+.3f} %\n", WayName(ways[w]),
                     of_cost, -of_bound);
      }
      std::fflush(stdout);
    }
    for (size_t w = 0; w < ways.size(); ++w) {
      const Loss& loss = losses[w];
      const WayRecord& record = records[ways[w]];
      add({{"name", fmt::format("{} {}", WayName(ways[w]), work)},
           {"way", std::string(WayName(ways[w]))},
           {"work", work},
           {"problems", loss.of_cost.size()},
           {"cost_mean", Mean(loss.of_cost)},
           {"cost_worst", Largest(loss.of_cost)},
           {"dearer", CountOver(loss.of_cost, 0.01)},
           {"cheaper", std::ranges::count_if(loss.of_cost, [](double v) { return v < -0.01; })},
           {"bound_mean", Mean(loss.of_bound)},
           {"bound_worst", Largest(loss.of_bound)},
           {"runs", record.num_runs},
           {"gains", record.num_gains},
           {"share_of_work", static_cast<double>(record.work) / static_cast<double>(work_done)}});
    }
  }
  return absl::OkStatus();
}

std::string Page(const Rows& rows) {
  std::string out =
      "# What each way of the solver is worth\n\n"
      "Made by `solver_ways_benchmark --update`: problems that no constant was tuned on (families "
      "of other seeds,\n"
      "models and meshes than those of `solver_benchmark`, the contest's instances where they are "
      "at hand), solved by so much *work* on one thread\n"
      "with all ways, then with each left out. *Dearer*: what "
      "answers cost more without it, in percent, mean of all problems and worst; how many\n"
      "problems are dearer and cheaper without it by more than 0.01 %. *Bound*: how much lower the "
      "bound is without it. *Runs*, *gains* (runs that\n"
      "improved the answer) and *share* of the work: with all ways, of all problems together, in "
      "pruned cores, too.\n"
      "Rows of ways that have left since (docs/design/0022) say why.\n\n";
  out +=
      "| work | way | dearer, mean % | worst % | dearer | cheaper | bound lower, mean % | worst % "
      "| runs | gains | share |\n"
      "|---|---|---|---|---|---|---|---|---|---|---|\n";
  for (const Rows& row : rows) {
    out += fmt::format(
        "| {:.0e} | {} | {:.3f} | {:.3f} | {} | {} | {:.3f} | {:.3f} | {} | {} | {:.1f} % |\n",
        row["work"].get<double>(), row["way"].get<std::string>(), row["cost_mean"].get<double>(),
        row["cost_worst"].get<double>(), row["dearer"].get<int64_t>(),
        row["cheaper"].get<int64_t>(), row["bound_mean"].get<double>(),
        row["bound_worst"].get<double>(), row["runs"].get<int64_t>(), row["gains"].get<int64_t>(),
        100 * row["share_of_work"].get<double>());
  }
  return out;
}

}  // namespace
}  // namespace minka

int main(int argc, char** argv) {
  minka::Flags flags;
  CLI::App app("What each way of the solver is worth");
  app.add_option("--instances", flags.instances,
                 "Folder with the contest's .json.gz files; default: left out");
  app.add_option("--only", flags.only, "Problems whose name contains this");
  app.add_option("--ways", flags.ways, "Leave out these alone; default: each");
  app.add_option("--work", flags.work, "Limits of work")->capture_default_str();
  app.add_option("--seeds", flags.seeds, "Searches of each problem, whose means are compared")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  minka::AddTableOptions(app, flags.table);
  return minka::MakeTableOfCommand(
      app, argc, argv,
      {.measure = [&](const auto& add) { return minka::MeasureWays(flags, add); },
       .page = minka::Page},
      flags.table);
}
