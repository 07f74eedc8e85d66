// Time of one training step by minka's plan and by JAX under shardings chosen by hand, on the
// same eight virtual devices of this machine, alternating.
//
//   step_time_benchmark                              all programs
//   step_time_benchmark --filter "flax lstm"         those whose name contains it
//   step_time_benchmark --filter flax --update       also writes their rows into the committed
//   table
#include <algorithm>
#include <cstdlib>
#include <functional>

#include "CLI/CLI.hpp"
#include "benchmarks/step_time/cases.h"
#include "benchmarks/step_time/measurement.h"
#include "benchmarks/step_time/page.h"
#include "benchmarks/support/flax_modules.h"
#include "benchmarks/support/run_apart.h"
#include "benchmarks/support/table.h"
#include "fmt/format.h"
#include "minka/base/status.h"
#include "minka/profiler/profile.h"

namespace minka {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  std::string modules = "build/prediction_modules";
  std::vector<std::string> filters;  // only programs whose name contains one; empty: all
  MeasurementOptions measurement;
  TableOptions table{.folder = "benchmarks/step_time"};
};

// Times of other days are not compared.
const std::vector<Criterion> kCriteria = {{.field = "ratio", .relative = 0.1}};

absl::StatusOr<Json> ProfileOnce() {
  ASSIGN_OR_RETURN(const LocalDevices devices, OpenLocalDevices({.num_devices = kNumDevices}));
  ASSIGN_OR_RETURN(const Calibration calibration,
                   LoadOrProfile(devices, {.num_devices = kNumDevices}));
  return Json(calibration.ToJson());
}

bool IsChosen(const std::string& name, const std::vector<std::string>& filters) {
  return filters.empty() || std::ranges::any_of(filters, [&](const std::string& filter) {
           return name.find(filter) != std::string::npos;
         });
}

void Print(const Json& row) {
  std::string jax;
  for (const auto& time : row["jax_ms"].items()) {
    jax += fmt::format(" {} {:.1f}", time.key(), time.value().get<double>());
  }
  fmt::print("{}: minka {:.1f} ms by {} on {} (predicted {:.1f}), JAX{}, ratio {:.2f}\n",
             row["name"].get<std::string>(), row["minka_ms"].get<double>(),
             row["method"].get<std::string>(), row["mesh"].get<std::string>(),
             row["predicted_ms"].get<double>(), jax, row["ratio"].get<double>());
  std::fflush(stdout);
}

absl::Status MeasureAll(const Options& options, const std::function<void(Json)>& add) {
  RETURN_IF_ERROR(MakeFlaxModules(options.measurement.python, options.modules));
  ASSIGN_OR_RETURN(std::vector<Case> cases, AllCases(options.modules));
  std::erase_if(cases, [&](const Case& c) { return !IsChosen(c.name(), options.filters); });
  if (cases.empty()) return InvalidArgument("no program has such a name");
  ASSIGN_OR_RETURN(const Json profile, RunApart("profile", ProfileOnce));
  ASSIGN_OR_RETURN(const Calibration calibration,
                   Calibration::FromJson(profile.get<std::string>()));
  absl::Status failed;
  for (const Case& which : cases) {
    auto row =
        RunApart(which.name(), [&] { return Measure(which, calibration, options.measurement); });
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

}  // namespace
}  // namespace minka

int main(int argc, char** argv) {
  minka::Options options;
  CLI::App app("Step time of minka's plan and of JAX's shardings, alternating");
  app.add_option("--filter", options.filters, "only programs whose names contain one of these");
  app.add_option("--python", options.measurement.python, "Python with jax and flax")
      ->capture_default_str();
  app.add_option("--script", options.measurement.script, "the baseline")->capture_default_str();
  app.add_option("--modules", options.modules,
                 "folder of make_modules.py's modules, made if missing")
      ->capture_default_str();
  app.add_option("--rounds", options.measurement.rounds, "rounds per program")
      ->capture_default_str();
  app.add_option("--turn-seconds", options.measurement.turn_seconds,
                 "of each in a round, at least two steps")
      ->capture_default_str();
  app.add_flag("--data", options.measurement.with_data, "also minka's own data parallelism");
  minka::AddTableOptions(app, options.table);
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = minka::MakeTable(
      {.criteria = minka::kCriteria,
       .measure = [&](const auto& add) { return minka::MeasureAll(options, add); },
       .summary = [](const minka::Json& rows) { return minka::Summary(rows) + "\n"; },
       .page = minka::Page},
      options.table);
  if (status.ok()) return EXIT_SUCCESS;
  fmt::print(stderr, "error: {}\n", minka::Message(status));
  return EXIT_FAILURE;
}
