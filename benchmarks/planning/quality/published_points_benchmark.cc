// Step times that Alpa's authors published for GPTs on AWS p3.16xlarge beside what is predicted for
// the same plans, at the rates of a data sheet and of public measurements of V100s. Nothing is
// measured here.
//
//   published_points_benchmark                  a table of all points
//   published_points_benchmark --filter 39b     of those whose name contains it
//   published_points_benchmark --update         also writes the committed table
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>
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

namespace minka {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kGibi = 1 << 30;

// Predictions are the same on every machine.
std::vector<Criterion> Criteria() {
  return {{.field = "predicted_us", .relative = 0.002}, {.field = "minka_us", .relative = 0.002}};
}

absl::StatusOr<Json> RunPoint(const PublishedSolution& point) {
  // As its patch of flax's embedding does.
  ASSIGN_OR_RETURN(const ComparedPlans plans, ComparedPlans::Create(point, LookUp::kOneHot));
  ASSIGN_OR_RETURN(const Figures published, plans.PublishedAsItRan());
  ASSIGN_OR_RETURN(const Figures minka, plans.Minka());
  Json row{{"name", NameOf(point)},
           {"published_us", point.step_seconds * 1e6},
           {"predicted_us", published.step_time_us},
           {"predicted_bytes", published.memory_bytes},
           {"minka_us", minka.step_time_us},
           {"minka_bytes", minka.memory_bytes},
           {"minka_how", minka.how}};
  if (point.memory_gibibytes > 0) row["published_bytes"] = point.memory_gibibytes * kGibi;
  return row;
}

constexpr char kHeader[] =
    "| case | published s | predicted s | error | calibrated | GiB | predicted GiB | minka's own "
    "plan s | how |\n"
    "|---|---|---|---|---|---|---|---|---|\n";

double Ratio(const Json& row) {
  return row["predicted_us"].get<double>() / row["published_us"].get<double>();
}

// `of_one_gpu`: the ratio of the first point, by which the others' are divided; none: not planned.
std::string TableRow(const Json& row, std::optional<double> of_one_gpu) {
  const std::string calibrated =
      of_one_gpu ? fmt::format("{:+.1f} %", 100 * (Ratio(row) / *of_one_gpu - 1)) : "-";
  const std::string memory =
      row.contains("published_bytes")
          ? fmt::format("{:.2f}", row["published_bytes"].get<double>() / kGibi)
          : "-";
  return fmt::format("| {} | {:.4g} | {:.4g} | {:+.1f} % | {} | {} | {:.2f} | {:.4g} | {} |\n",
                     row["name"].get<std::string>(), row["published_us"].get<double>() / 1e6,
                     row["predicted_us"].get<double>() / 1e6, 100 * (Ratio(row) - 1), calibrated,
                     memory, row["predicted_bytes"].get<double>() / kGibi,
                     row["minka_us"].get<double>() / 1e6, row["minka_how"].get<std::string>());
}

std::string Page(const Json& rows) {
  std::string text =
      "# Published points\n\n"
      "Made by `published_points_benchmark --update`: step times of GPTs in f16 that Alpa's "
      "authors "
      "published for AWS p3.16xlarge (V100s; the\n"
      "last one from their repository's README), and what is predicted for the same model, stages, "
      "meshes and micro-batches by 1f1b, everything\n"
      "recomputed, tokens looked up by a product with one-hot rows, gradients added up in f16 and "
      "no sequence split, as there; what is split within\n"
      "layers is found here and not always as there. Rates are the preset's, and nothing was "
      "fitted to these points; *calibrated*: all divided by\n"
      "what the first one, of one GPU, is off by. Memory is estimated without a limit.\n"
      "*minka's own plan*: what its search finds for the same step and number of micro-batches "
      "within 16 GiB, gradients added up in f32.\n\n";
  text += kHeader;
  if (rows.empty()) return text;
  const double of_one_gpu = Ratio(rows.front());
  struct {
    double sum = 0, worst = 0;
    void Add(double ratio) {
      sum += std::abs(ratio - 1);
      worst = std::max(worst, std::abs(ratio - 1));
    }
  } raw, calibrated;
  for (const Json& row : rows) {
    text += TableRow(row, of_one_gpu);
    raw.Add(Ratio(row));
    calibrated.Add(Ratio(row) / of_one_gpu);
  }
  const auto num_rows = static_cast<double>(rows.size());
  return text + fmt::format(
                    "\nMean error {:.1f} %, largest {:.1f} %; of the others, calibrated, {:.1f} "
                    "and {:.1f} %.\n",
                    100 * raw.sum / num_rows, 100 * raw.worst,
                    100 * calibrated.sum / std::max(1.0, num_rows - 1), 100 * calibrated.worst);
}

absl::Status RunAll(const std::string& filter, const std::function<void(Json)>& add) {
  fmt::print("{}", kHeader);
  absl::Status failed;
  std::optional<double> of_one_gpu;
  const std::vector<PublishedSolution> points = PublishedPoints();
  for (const PublishedSolution& point : points) {
    const std::string name = NameOf(point);
    if (name.find(filter) == std::string::npos) continue;
    auto row = RunApart(name, [&] { return RunPoint(point); });
    if (!row.ok()) {
      fmt::print(stderr, "{}\n", Message(row.status()));
      failed = row.status();
      continue;
    }
    if (&point == &points.front()) of_one_gpu = Ratio(*row);
    fmt::print("{}", TableRow(*row, of_one_gpu));
    std::fflush(stdout);
    add(*std::move(row));
  }
  return failed;
}

}  // namespace
}  // namespace minka

int main(int argc, char** argv) {
  std::string filter;
  minka::TableOptions table{.folder = "benchmarks/planning/published_points"};
  CLI::App app("Published step times beside predictions of the same plans");
  app.add_option("--filter", filter, "only cases whose name contains this");
  minka::AddTableOptions(app, table);
  return minka::MakeTableOfCommand(
      app, argc, argv,
      {.criteria = minka::Criteria(),
       .measure = [&](const auto& add) { return minka::RunAll(filter, add); },
       .page = minka::Page},
      table);
}
