// How good the plans of pipelines are, as predicted: beside those that Alpa's search found for the
// same models, clusters and micro-batches, and beside the best of a grid of uniform degrees of
// data, operator and pipeline parallelism, as Megatron-LM's users choose from. All are priced by
// one simulator, at the rates of one data sheet.
//
//   plan_quality_benchmark                      a table of all cases
//   plan_quality_benchmark --filter gpt         of those whose name contains it
//   plan_quality_benchmark --only-minka         only what minka plans, without the others
//   plan_quality_benchmark --parts 12           one case in 12, another at each MINKA_TEST_ROTATION
//   plan_quality_benchmark --update             also writes the committed table
#include <algorithm>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "benchmarks/planning/quality/compared_plans.h"
#include "benchmarks/planning/quality/published_solutions.h"
#include "benchmarks/support/run_apart.h"
#include "benchmarks/support/table.h"
#include "fmt/format.h"
#include "minka/base/status.h"
#include "nlohmann/json.hpp"
#include "tests/support/rotation.h"

namespace minka {
namespace {

using Json = nlohmann::ordered_json;

// Of the best of the others: within it minka's plan counts as no worse.
constexpr double kAsGood = 1.002;

// Plans are the same on every machine, so nothing may change.
std::vector<Criterion> Criteria() { return {{.field = "minka_us", .relative = 0.002}}; }

void AddTo(Json& row, const std::string& what, const Figures& figures) {
  row[what + "_us"] = figures.step_time_us;
  row[what + "_bytes"] = figures.memory_bytes;
  row[what + "_fits"] = figures.fits;
  row[what + "_how"] = figures.how;
}

absl::StatusOr<Json> RunCase(const PublishedSolution& solution, bool only_minka) {
  ASSIGN_OR_RETURN(const ComparedPlans plans, ComparedPlans::Create(solution));
  Json row{{"name", NameOf(solution)}};
  ASSIGN_OR_RETURN(const Figures minka, plans.Minka());
  AddTo(row, "minka", minka);
  if (only_minka) return row;
  double least_us = minka.step_time_us;
  const auto compare = [&](const std::string& what, const absl::StatusOr<Figures>& with) {
    if (!with.ok()) {
      row[what + "_refused"] = Message(with.status());
      return;
    }
    AddTo(row, what, *with);
    if (with->fits) least_us = std::min(least_us, with->step_time_us);
  };
  compare("published", plans.Published());
  compare("uniform", plans.Uniform());
  row["of_best"] = minka.step_time_us / least_us;
  return row;
}

constexpr char kHeader[] =
    "| case | minka s | GiB | how | published s | GiB | uniform s | GiB | how | minka / best |\n"
    "|---|---|---|---|---|---|---|---|---|---|\n";

std::string Seconds(const Json& row, const std::string& what) {
  if (!row.contains(what + "_us")) return "- | -";
  return fmt::format("{:.4g}{} | {:.1f}", row[what + "_us"].get<double>() / 1e6,
                     row[what + "_fits"].get<bool>() ? "" : " too large",
                     row[what + "_bytes"].get<double>() / static_cast<double>(1 << 30));
}

std::string TableRow(const Json& row) {
  const auto how = [&](const std::string& what) {
    return row.contains(what + "_how") ? row[what + "_how"].get<std::string>() : "-";
  };
  return fmt::format(
      "| {} | {} | {} | {} | {} | {} | {} |\n", row["name"].get<std::string>(),
      Seconds(row, "minka"), how("minka"), Seconds(row, "published"), Seconds(row, "uniform"),
      how("uniform"),
      row.contains("of_best") ? fmt::format("{:.3f}", row["of_best"].get<double>()) : "-");
}

std::string Page(const Json& rows) {
  std::string text = fmt::format(
      "# Quality of plans\n\n"
      "Made by `plan_quality_benchmark --update`: step times as predicted by roofline costs of "
      "V100s, under their 16 GiB.\n"
      "*minka*: its search, for the number of micro-batches of the published solution (one mesh is "
      "searched, too, up to {} devices).\n"
      "*published*: what Alpa's search found for p3.16xlarge, by 1f1b with all layers recomputed; "
      "its layers are parted here.\n"
      "*uniform*: the best of all powers of two of data, operator (within a host) and pipeline "
      "parallelism (up to {} stages) that\n"
      "fit, layers recomputed or not, 1f1b, optimizer's state split. Where none fits, of those "
      "that do with more state split, if they\n"
      "were tried (*state split*). *too large*: planned without a limit, since it does not fit by "
      "these estimates; not compared with.\n"
      "The last column is minka's time as a part of the best of the three; above 1 another is "
      "better.\n"
      "A test plans one row in twelve with every commit and fails where minka's time is longer "
      "than here.\n\n{}",
      kMostDevicesOfOneMesh, kMostStagesOfGrid, kHeader);
  for (const Json& row : rows) text += TableRow(row);
  return text;
}

struct Selection {
  std::string filter;
  uint64_t parts = 1;
  bool only_minka = false;
};

absl::Status RunAll(const Selection& selection, const std::function<void(Json)>& add) {
  fmt::print("{}", kHeader);
  absl::Status failed;
  uint64_t number = 0;
  for (const PublishedSolution& solution : PublishedSolutions()) {
    const std::string name = NameOf(solution);
    if (name.find(selection.filter) == std::string::npos) continue;
    if (number++ % selection.parts != TestRotation() % selection.parts) continue;
    auto row = RunApart(name, [&] { return RunCase(solution, selection.only_minka); });
    if (!row.ok()) {
      fmt::print(stderr, "{}\n", Message(row.status()));
      failed = row.status();
      continue;
    }
    fmt::print("{}", TableRow(*row));
    std::fflush(stdout);
    if (row->contains("of_best") && (*row)["of_best"].get<double>() > kAsGood)
      failed = FailedPrecondition("{}: another plan is better than minka's", name);
    add(*std::move(row));
  }
  return failed;
}

}  // namespace
}  // namespace minka

int main(int argc, char** argv) {
  minka::Selection selection;
  minka::TableOptions table{.folder = "benchmarks/planning/quality"};
  CLI::App app("How good the plans of pipelines are");
  app.add_option("--filter", selection.filter, "only cases whose name contains this");
  app.add_option("--parts", selection.parts,
                 "one case in so many, another at each MINKA_TEST_ROTATION")
      ->check(CLI::PositiveNumber);
  app.add_flag("--only-minka", selection.only_minka, "only what minka plans, without the others");
  minka::AddTableOptions(app, table);
  app.get_option("--only-minka")->excludes(app.get_option("--update"));  // rows would lose the rest
  return minka::MakeTableOfCommand(
      app, argc, argv,
      {.criteria = minka::Criteria(),
       .measure = [&](const auto& add) { return minka::RunAll(selection, add); },
       .page = minka::Page},
      table);
}
