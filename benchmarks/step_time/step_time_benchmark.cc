// Time of one training step by minka's plan and by JAX under shardings chosen by hand, on the
// same eight virtual devices of this machine, alternating; medians over all rounds.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>

#include "CLI/CLI.hpp"
#include "benchmarks/step_time/cases.h"
#include "benchmarks/step_time/jax_process.h"
#include "fmt/format.h"
#include "minka/base/file.h"
#include "minka/base/status.h"
#include "minka/driver/inputs.h"
#include "minka/driver/parallelize.h"
#include "minka/driver/profile.h"

namespace minka {
namespace {

constexpr int kNumDevices = 8;

struct Options {
  std::string python = "build/venv-jax/bin/python";
  std::string script = "benchmarks/step_time/jax_baseline.py";
  std::string json;
  int rounds = 5;
  int steps = 4;
  std::vector<std::string> models, sizes;  // only these; empty: all
};

// Name of a sharding, or "minka" -> seconds per step.
using Times = std::map<std::string, std::vector<double>>;

double Median(std::vector<double> values) {
  std::ranges::sort(values);
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

std::vector<Case> ChosenCases(const Options& options) {
  const auto among = [](const std::vector<std::string>& names, const std::string& name) {
    return names.empty() || std::ranges::count(names, name) > 0;
  };
  std::vector<Case> cases = AllCases();
  std::erase_if(cases, [&](const Case& c) {
    return !among(options.models, c.model) || !among(options.sizes, c.size);
  });
  return cases;
}

struct MinkaRun {
  Parallelized parallelized;
  State state;
  Batch batch;

  absl::Status Step(std::vector<double>& seconds) {
    const auto start = std::chrono::steady_clock::now();
    ASSIGN_OR_RETURN(StepResult result, parallelized(std::move(state), batch));
    state = std::move(result.state);
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    seconds.push_back(elapsed.count());
    return absl::OkStatus();
  }
};

absl::StatusOr<MinkaRun> StartMinka(const Case& which, const LocalDevices& devices,
                                    const Calibration& calibration, const ParallelMethod& method) {
  ASSIGN_OR_RETURN(const TracedStep traced, Trace(which.step, which.optimizer));
  ASSIGN_OR_RETURN(
      Parallelized run,
      Parallelize(traced, Cluster::Local(kNumDevices), method,
                  {.cost_model = {.kind = CostModelKind::kMeasured, .calibration = calibration},
                   .devices = devices}));
  ASSIGN_OR_RETURN(State state, run.Initialize(/*seed=*/0));
  Batch batch;
  for (size_t i = 0; i < traced.step.parameters.size(); ++i) {
    if (traced.step.parameters[i].role != ParameterRole::kBatch) continue;
    ASSIGN_OR_RETURN(Literal values, RandomInput(traced.step, static_cast<int>(i), /*seed=*/1));
    batch.push_back(std::move(values));
  }
  return MinkaRun{std::move(run), std::move(state), std::move(batch)};
}

absl::StatusOr<JaxProcess> StartJax(const Case& which, const Options& options) {
  std::vector<std::string> arguments = {which.model, "--serve"};
  arguments.insert(arguments.end(), which.jax_arguments.begin(), which.jax_arguments.end());
  ASSIGN_OR_RETURN(JaxProcess jax,
                   JaxProcess::Start({options.python, options.script, std::move(arguments)}));
  ASSIGN_OR_RETURN(const std::vector<ParameterSpec> parameters, ParametersOf(which.step));
  if (NumElements(parameters) != jax.num_parameters()) {
    return FailedPrecondition("minka's {} has {} parameters, JAX's {}: not the same step",
                              which.model, NumElements(parameters), jax.num_parameters());
  }
  return jax;
}

// The searched plan, which is what is compared, and for orientation the data-parallel one.
constexpr char kSearched[] = "minka", kDataParallel[] = "minka, method data";
using MinkaRuns = std::map<std::string, MinkaRun>;

// Rounds of a few steps each, so that what else happens on the machine meets all alike.
absl::StatusOr<Times> Alternate(MinkaRuns& minka, JaxProcess& jax, const Options& options) {
  Times times;
  std::vector<double> not_counted;
  for (auto& [name, run] : minka) {
    for (int i = 0; i < 2; ++i) RETURN_IF_ERROR(run.Step(not_counted));
  }
  for (const std::string& sharding : jax.shardings()) {
    RETURN_IF_ERROR(jax.Run(sharding, 1).status());
  }
  for (int round = 0; round < options.rounds; ++round) {
    for (auto& [name, run] : minka) {
      for (int i = 0; i < options.steps; ++i) RETURN_IF_ERROR(run.Step(times[name]));
    }
    for (const std::string& sharding : jax.shardings()) {
      ASSIGN_OR_RETURN(const std::vector<double> seconds, jax.Run(sharding, options.steps));
      times[sharding].insert(times[sharding].end(), seconds.begin(), seconds.end());
    }
  }
  return times;
}

nlohmann::json Report(const Case& which, const Plan& plan, const Times& times) {
  nlohmann::json medians_ms;
  std::string best;
  for (const auto& [name, seconds] : times) {
    medians_ms[name] = 1e3 * Median(seconds);
    if (!name.starts_with(kSearched) && (best.empty() || medians_ms[name] < medians_ms[best]))
      best = name;
  }
  const double ratio = medians_ms[kSearched].get<double>() / medians_ms[best].get<double>();
  fmt::print(
      "{} {}: minka {:.1f} ms on {} (predicted {:.1f}), fastest of JAX {:.1f} ms ({}), "
      "ratio {:.2f}\n",
      which.model, which.size, medians_ms[kSearched].get<double>(), plan.stages[0].mesh.ToString(),
      plan.step_time_us / 1e3, medians_ms[best].get<double>(), best, ratio);
  for (const auto& [name, seconds] : times) {
    fmt::print("  {:<18} {:8.1f} ms\n", name, medians_ms[name].get<double>());
  }
  std::fflush(stdout);
  return {{"model", which.model},
          {"size", which.size},
          {"mesh", plan.stages[0].mesh.ToString()},
          {"predicted_step_time_us", plan.step_time_us},
          {"median_step_time_ms", medians_ms},
          {"fastest_jax", best},
          {"ratio", ratio}};
}

absl::Status RunAll(const Options& options) {
  const std::vector<Case> cases = ChosenCases(options);
  if (cases.empty()) return InvalidArgument("no model has this size");
  ASSIGN_OR_RETURN(const LocalDevices devices, OpenLocalDevices({.num_devices = kNumDevices}));
  ASSIGN_OR_RETURN(const Calibration calibration,
                   LoadOrProfile(devices, {.num_devices = kNumDevices}));
  nlohmann::json rows;
  for (const Case& which : cases) {
    ASSIGN_OR_RETURN(JaxProcess jax, StartJax(which, options));
    MinkaRuns minka;
    ASSIGN_OR_RETURN(MinkaRun searched, StartMinka(which, devices, calibration, Shard{}));
    minka.emplace(kSearched, std::move(searched));
    ASSIGN_OR_RETURN(MinkaRun data, StartMinka(which, devices, calibration, DataParallel{}));
    minka.emplace(kDataParallel, std::move(data));
    ASSIGN_OR_RETURN(const Times times, Alternate(minka, jax, options));
    rows.push_back(Report(which, minka.at(kSearched).parallelized.plan(), times));
  }
  if (options.json.empty()) return absl::OkStatus();
  return WriteFile(options.json, rows.dump(1) + "\n");
}

}  // namespace
}  // namespace minka

int main(int argc, char** argv) {
  minka::Options options;
  CLI::App app("Step time of minka's plan and of JAX's hand-written shardings, alternating");
  app.add_option("--python", options.python, "Python with jax")->capture_default_str();
  app.add_option("--script", options.script, "the baseline")->capture_default_str();
  app.add_option("--rounds", options.rounds, "rounds per size")->capture_default_str();
  app.add_option("--steps", options.steps, "steps of each per round")->capture_default_str();
  app.add_option("--model", options.models, "only these models")
      ->check(CLI::IsMember({"gpt", "moe", "wresnet"}));
  app.add_option("--size", options.sizes, "only these sizes, as the table names them");
  app.add_option("--json", options.json, "also writes the table to this file");
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = minka::RunAll(options);
  if (status.ok()) return EXIT_SUCCESS;
  fmt::print(stderr, "error: {}\n", minka::Message(status));
  return EXIT_FAILURE;
}
