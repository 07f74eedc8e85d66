// Predicted against measured: time of a warm step and memory, for modules that JAX made of flax
// models and for minka's own, on eight virtual devices of this machine.
//
//   prediction_benchmark                  a table of all programs, from a profile made at once
//   prediction_benchmark --filter lstm    of those whose name contains it
//   prediction_benchmark --memory-only    plans and compiles, runs nothing: estimated and compiled
//                                         memory
//   prediction_benchmark --update         also writes benchmarks/prediction/results.md
#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "CLI/CLI.hpp"
#include "benchmarks/prediction/measurement.h"
#include "benchmarks/prediction/prediction_table.h"
#include "fmt/format.h"
#include "minka/base/file.h"
#include "minka/base/json.h"
#include "minka/base/status.h"
#include "minka/driver/local_devices.h"
#include "minka/driver/profile.h"

namespace minka {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kFolder[] = "benchmarks/prediction";

struct Options {
  std::string python = "build/venv-jax/bin/python";
  std::string modules = "build/prediction_modules";
  std::string profile, json;
  std::string before;  // empty: no column for it
  std::vector<std::string> filters;
  std::string dump;  // folder with one for each program; empty: none
  bool update = false, memory_only = false;
};

absl::Status MakeModules(const Options& options) {
  if (std::filesystem::exists(options.modules + "/index.json")) return absl::OkStatus();
  const std::string command =
      fmt::format("{} {}/make_modules.py {} >&2", options.python, kFolder, options.modules);
  if (std::system(command.c_str()) == 0) return absl::OkStatus();
  return FailedPrecondition(
      "no modules: {} failed; `make build/stamps/deps-bench` installs what it needs", command);
}

absl::StatusOr<Json> ProfileNow() {
  ASSIGN_OR_RETURN(const LocalDevices devices,
                   OpenLocalDevices({.num_devices = kPredictionDevices}));
  ASSIGN_OR_RETURN(const Calibration calibration,
                   Profile(devices, {.num_devices = kPredictionDevices}));
  return Json(calibration.ToJson());
}

absl::StatusOr<Calibration> ProfileOf(const Options& options) {
  if (!options.profile.empty()) {
    ASSIGN_OR_RETURN(const std::string text, ReadFile(options.profile));
    return Calibration::FromJson(text);
  }
  fmt::print(stderr, "profile\n");
  ASSIGN_OR_RETURN(const Json text, RunApart("profile", ProfileNow));
  return Calibration::FromJson(text.get<std::string>());
}

// The errors of an earlier version's rows.
absl::StatusOr<Json> ErrorsBefore(const std::string& path) {
  if (path.empty()) return Json::object();
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  ASSIGN_OR_RETURN(const Json rows, ParseJson(text));
  return ErrorsOf(rows);
}

// One row per line.
std::string RowsText(const Json& rows) {
  std::string text;
  for (const Json& row : rows) text += (text.empty() ? "[\n " : ",\n ") + row.dump();
  return text + "\n]\n";
}

bool IsChosen(const std::string& name, const std::vector<std::string>& filters) {
  return filters.empty() || std::ranges::any_of(filters, [&](const std::string& filter) {
           return name.find(filter) != std::string::npos;
         });
}

std::string Page(const Calibration& calibration, const std::string& table) {
  return fmt::format(
      "# Predicted and measured\n\n"
      "Made by `prediction_benchmark --update` on {} ({} cores), {}, {} devices. Every step is "
      "planned from a\n"
      "profile that was made just before, on other shapes (`minka profile`), then compiled and "
      "run: medians of\n"
      "warm steps, and their error. *busy* is the processor time of a step divided by the cores, "
      "which hardly\n"
      "depends on what else runs; *others* is the part of the cores' busy time that other "
      "processes took\n"
      "meanwhile: measured times of rows with much of it are too long. Memory is that of the "
      "fullest device,\n"
      "*ratio* what was estimated over what the compiler says.\n\n{}",
      calibration.processor, calibration.cores, calibration.plugin, calibration.num_devices, table);
}

std::string ProgressLine(const Json& row) {
  const std::string name = row["name"];
  if (!row.contains("median_us")) {
    return fmt::format("{}: estimated {:.1f} MiB, compiled {:.1f} MiB\n", name,
                       row["estimated_bytes"].get<double>() / (1 << 20),
                       row["compiled_bytes"].get<double>() / (1 << 20));
  }
  return fmt::format("{}: predicted {:.2f} ms, measured {:.2f} ms\n", name,
                     row["predicted_us"].get<double>() / 1e3, row["median_us"].get<double>() / 1e3);
}

absl::Status RunAll(const Options& options) {
  RETURN_IF_ERROR(MakeModules(options));
  ASSIGN_OR_RETURN(const Json before, ErrorsBefore(options.before));
  ASSIGN_OR_RETURN(const Calibration calibration, ProfileOf(options));
  Json rows = Json::array();
  absl::Status failed;
  for (const PredictionProgram& program : AllPrograms()) {
    if (!IsChosen(program.name(), options.filters)) continue;
    const std::string dump =
        options.dump.empty() ? "" : fmt::format("{}/{}", options.dump, program.name());
    const auto row = RunApart(program.name(), [&] {
      return Measure(program, options.modules, calibration, options.memory_only, dump);
    });
    if (!row.ok()) {
      fmt::print(stderr, "{}\n", Message(row.status()));
      failed = row.status();
      continue;
    }
    fmt::print(stderr, "{}", ProgressLine(*row));
    rows.push_back(*row);
    if (!options.json.empty()) RETURN_IF_ERROR(WriteFile(options.json, RowsText(rows)));
  }
  const std::string table = options.memory_only ? MemoryTable(rows) : PredictionTable(rows, before);
  fmt::print("{}", table);
  if (options.update && !options.memory_only) {
    RETURN_IF_ERROR(WriteFile(fmt::format("{}/results.md", kFolder), Page(calibration, table)));
  }
  return failed;
}

}  // namespace
}  // namespace minka

int main(int argc, char** argv) {
  minka::Options options;
  CLI::App app("Predicted against measured, step time and memory");
  app.add_option("--filter", options.filters, "only programs whose names contain one of these");
  app.add_option("--python", options.python, "Python with flax")->capture_default_str();
  app.add_option("--modules", options.modules,
                 "folder of make_modules.py's modules, made if missing")
      ->capture_default_str();
  app.add_option("--profile", options.profile, "a calibration to take instead of a new one");
  app.add_option("--before", options.before,
                 "rows of an earlier version (--json), whose errors get a column");
  app.add_option("--json", options.json, "also writes the rows to this file");
  app.add_option("--dump", options.dump,
                 "writes each program's steps into a folder of its name in this one");
  app.add_flag("--memory-only", options.memory_only, "plan and compile, run nothing");
  app.add_flag("--update", options.update, "also writes benchmarks/prediction/results.md");
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = minka::RunAll(options);
  if (status.ok()) return EXIT_SUCCESS;
  fmt::print(stderr, "error: {}\n", minka::Message(status));
  return EXIT_FAILURE;
}
