// Predicted against measured: time of a warm step and memory, for modules that JAX made of flax
// models and for minka's own, on eight virtual devices of this machine.
//
//   prediction_benchmark                  a table of all programs, from a profile made at once
//   prediction_benchmark --filter lstm    of those whose name contains it
//   prediction_benchmark --memory-only    plans and compiles, runs nothing: estimated and compiled
//                                         memory; with --costs roofline or alpa of other plans
//   prediction_benchmark --update         also writes the committed table
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>

#include "CLI/CLI.hpp"
#include "benchmarks/prediction/measurement.h"
#include "benchmarks/prediction/prediction_table.h"
#include "benchmarks/support/flax_modules.h"
#include "benchmarks/support/run_apart.h"
#include "benchmarks/support/table.h"
#include "fmt/format.h"
#include "minka/base/file.h"
#include "minka/base/status.h"
#include "minka/driver/plan_step.h"
#include "minka/runtime/mesh/local_devices.h"

namespace minka {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  std::string python = "build/venv-jax/bin/python";
  std::string modules = "build/prediction_modules";
  std::string profile;
  std::string before;  // empty: no column for it
  std::vector<std::string> filters;
  std::string dump;  // folder with one for each program; empty: none
  bool memory_only = false;
  CostModelKind costs = CostModelKind::kMeasured;
  TableOptions table{.folder = "benchmarks/prediction"};
};

// Fields that AddErrors makes.
const std::vector<Criterion> kCriteria = {{.field = "time_error", .absolute = 0.1},
                                          {.field = "memory_below_compiled", .absolute = 0.005},
                                          {.field = "memory_above_compiled", .absolute = 0.05}};

absl::StatusOr<Json> ProfileNow() {
  ASSIGN_OR_RETURN(const LocalDevices devices,
                   OpenLocalDevices({.num_devices = kPredictionDevices}));
  ASSIGN_OR_RETURN(const ReferencedProfile profile, ProfileBesideReference(devices));
  return Json{{"calibration", profile.calibration.ToJson()},
              {"reference_us", profile.reference_us}};
}

absl::StatusOr<Json> ReferenceNow(double core_ns) {
  ASSIGN_OR_RETURN(const LocalDevices devices,
                   OpenLocalDevices({.num_devices = kPredictionDevices}));
  ASSIGN_OR_RETURN(const double reference_us, MeasureReferenceUs(devices, core_ns));
  return Json(reference_us);
}

// A profile, and how fast the machine was meanwhile.
struct ProfiledMachine {
  Calibration calibration;
  double reference_us = 0;
};

absl::StatusOr<ProfiledMachine> ProfileOf(const Options& options) {
  ProfiledMachine machine;
  if (options.costs != CostModelKind::kMeasured) return machine;
  if (!options.profile.empty()) {
    ASSIGN_OR_RETURN(const std::string text, ReadFile(options.profile));
    ASSIGN_OR_RETURN(machine.calibration, Calibration::FromJson(text));
    ASSIGN_OR_RETURN(const Json reference_us, RunApart("reference", [&] {
                       return ReferenceNow(machine.calibration.core_round_trip_ns);
                     }));
    machine.reference_us = reference_us.get<double>();
    return machine;
  }
  fmt::print(stderr, "profile\n");
  ASSIGN_OR_RETURN(const Json profile, RunApart("profile", ProfileNow));
  ASSIGN_OR_RETURN(machine.calibration,
                   Calibration::FromJson(profile["calibration"].get<std::string>()));
  machine.reference_us = profile["reference_us"].get<double>();
  return machine;
}

// The errors of an earlier version's rows.
absl::StatusOr<Json> ErrorsBefore(const std::string& path) {
  if (path.empty()) return Json::object();
  ASSIGN_OR_RETURN(const Json rows, ReadRows(path));
  return ErrorsOf(rows);
}

// How far the predictions are off, without signs, as parts of what was measured and compiled.
void AddErrors(Json& row) {
  const auto number = [&](const char* field) { return row[field].get<double>(); };
  const double memory = number("estimated_bytes") / number("compiled_bytes") - 1;
  if (row.contains("median_us")) {
    row["time_error"] = std::abs(TimeErrorOf(row));
  }
  row["memory_below_compiled"] = std::max(0.0, -memory);
  row["memory_above_compiled"] = std::max(0.0, memory);
}

bool IsChosen(const std::string& name, const std::vector<std::string>& filters) {
  return filters.empty() || std::ranges::any_of(filters, [&](const std::string& filter) {
           return name.find(filter) != std::string::npos;
         });
}

std::string MachineOf(const Calibration& calibration) {
  return fmt::format("{} ({} cores), {}, {} devices", calibration.processor, calibration.cores,
                     calibration.plugin, calibration.num_devices);
}

std::string Page(const Json& rows, const Json& before) {
  return fmt::format(
      "# Predicted and measured\n\n"
      "Made by `prediction_benchmark --update` on {}. Every step is planned from a\n"
      "profile that was made just before, on other shapes (`minka profile`), then compiled and "
      "run; the plans of a step take\n"
      "turns, so that all meet the same changes of the machine's speed: medians of the warm steps "
      "of "
      "five turns. *machine* is what a\n"
      "reference step of fixed shapes took before and after each turn, in parts of what it took "
      "while the profile was made (median); errors are those\n"
      "of the predictions times that. *busy* is the processor time of a step divided by the cores; "
      "*others* is the part of the cores'\n"
      "busy time that other processes took meanwhile, *stolen* what the host of this virtual "
      "machine gave to others, *moved* the part of the turns in which the cores were further from\n"
      "or nearer to each other than during the profile, as that host had moved them: there are up\n"
      "to eight turns, of which others count, those with least stolen. Memory is that of the\n"
      "fullest device, *ratio* what was estimated over what the compiler says. `--compare` fails\n"
      "where a row is worse by more than\n"
      "`results.json` says.\n\n{}",
      rows.empty() ? "" : rows.back()["machine"].get<std::string>(), PredictionTable(rows, before));
}

std::string ProgressLine(const Json& row) {
  const std::string name = row["name"];
  if (!row.contains("median_us")) {
    return fmt::format("{}: estimated {:.1f} MiB, compiled {:.1f} MiB\n", name,
                       row["estimated_bytes"].get<double>() / (1 << 20),
                       row["compiled_bytes"].get<double>() / (1 << 20));
  }
  return fmt::format(
      "{}: predicted {:.2f} ms, measured {:.2f} ms, machine {:.2f}, stolen {:.1f} %, moved {:.0f} "
      "%\n",
      name, row["predicted_us"].get<double>() / 1e3, row["median_us"].get<double>() / 1e3,
      row["slowdown"].get<double>(), 100 * row["stolen_share"].get<double>(),
      100 * row["moved_share"].get<double>());
}

// Those of each step together.
std::vector<std::vector<PredictionProgram>> ChosenByStep(const std::vector<std::string>& filters) {
  std::vector<std::vector<PredictionProgram>> out;
  for (PredictionProgram& program : AllPrograms()) {
    if (!IsChosen(program.name(), filters)) continue;
    if (out.empty() || out.back().front().step != program.step) out.emplace_back();
    out.back().push_back(std::move(program));
  }
  return out;
}

absl::Status MeasureAll(const Options& options, const std::function<void(Json)>& add) {
  RETURN_IF_ERROR(MakeFlaxModules(options.python, options.modules));
  ASSIGN_OR_RETURN(const ProfiledMachine machine, ProfileOf(options));
  absl::Status failed;
  for (const std::vector<PredictionProgram>& programs : ChosenByStep(options.filters)) {
    auto rows = RunApart(programs.front().step, [&] {
      return options.memory_only
                 ? MeasureMemory(programs, options.modules,
                                 {.kind = options.costs, .calibration = machine.calibration},
                                 options.dump)
                 : MeasureInTurns(programs, options.modules, machine.calibration, options.dump);
    });
    if (!rows.ok()) {
      fmt::print(stderr, "{}\n", Message(rows.status()));
      failed = rows.status();
      continue;
    }
    for (Json& row : *rows) {
      if (row.contains("reference_us")) {
        row["slowdown"] = row["reference_us"].get<double>() / machine.reference_us;
      }
      fmt::print(stderr, "{}", ProgressLine(row));
      AddErrors(row);
      row["machine"] = MachineOf(machine.calibration);
      add(std::move(row));
    }
  }
  return failed;
}

absl::Status Run(const Options& options) {
  if (options.memory_only && (options.table.update || options.table.compare)) {
    return InvalidArgument("--memory-only measures no times, which the committed table has");
  }
  if (!options.memory_only && options.costs != CostModelKind::kMeasured) {
    return InvalidArgument("--costs is for --memory-only: times are predicted from a profile");
  }
  ASSIGN_OR_RETURN(const Json before, ErrorsBefore(options.before));
  return MakeTable({.criteria = kCriteria,
                    .measure = [&](const auto& add) { return MeasureAll(options, add); },
                    .summary =
                        [&](const Json& rows) {
                          return options.memory_only ? MemoryTable(rows)
                                                     : PredictionTable(rows, before);
                        },
                    .page = [&](const Json& rows) { return Page(rows, before); }},
                   options.table);
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
  app.add_option("--dump", options.dump,
                 "writes each program's steps into a folder of its name in this one");
  app.add_flag("--memory-only", options.memory_only, "plan and compile, run nothing");
  app.add_option("--costs", options.costs, "what --memory-only plans by: measured, roofline, alpa")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, minka::CostModelKind>{{"measured", minka::CostModelKind::kMeasured},
                                                      {"roofline", minka::CostModelKind::kRoofline},
                                                      {"alpa", minka::CostModelKind::kAlpa}}));
  minka::AddTableOptions(app, options.table);
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = minka::Run(options);
  if (status.ok()) return EXIT_SUCCESS;
  fmt::print(stderr, "error: {}\n", minka::Message(status));
  return EXIT_FAILURE;
}
