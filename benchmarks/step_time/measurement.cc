#include "benchmarks/step_time/measurement.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "benchmarks/step_time/jax_process.h"
#include "fmt/format.h"
#include "minka/base/status.h"
#include "minka/driver/inputs.h"
#include "minka/driver/parallelize.h"
#include "minka/tensors/safetensors.h"

namespace minka {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kWarmUpSteps = 2;
constexpr int kMinTurnSteps = 2, kMaxTurnSteps = 50;
constexpr char kSearched[] = "minka_ms", kData[] = "minka_data_ms";
constexpr double kLossTolerance = 0.01;  // bf16 rounds in another order
// That JAX's collectives run in: jaxlib's own number, and more where it waits for itself with that.
constexpr int kJaxThreads[] = {0, 16, 32};

struct MinkaRun {
  Parallelized parallelized;
  State state;
  const ParameterValues& inputs;
  double first_loss = 0;

  const RunTimes& times() const { return parallelized.runner().executor().times(); }

  // Returns the loss of the last one.
  absl::StatusOr<double> Run(int num_steps) {
    double loss = 0;
    for (int i = 0; i < num_steps; ++i) {
      ASSIGN_OR_RETURN(StepOutput output, parallelized.runner().Run(std::move(state), inputs));
      state = std::move(output.state);
      for (const DistributedArray& result : output.results) {
        if (result.empty() || result.layout().shape.num_elements() != 1) continue;
        ASSIGN_OR_RETURN(const Literal value, result.ToHost());
        loss = ScalarValue(value);
      }
    }
    return loss;
  }

  // Seconds of each step.
  absl::StatusOr<std::vector<double>> Time(int num_steps) {
    RETURN_IF_ERROR(Run(num_steps).status());
    std::vector<double> seconds;
    for (const double us : std::span(times().us).last(num_steps)) seconds.push_back(1e-6 * us);
    return seconds;
  }
};

absl::StatusOr<MinkaRun> StartMinka(const CaseStep& step, const LocalDevices& devices,
                                    const Calibration& calibration, const ParallelMethod& method) {
  ASSIGN_OR_RETURN(
      Parallelized parallelized,
      Parallelize(step.step, Cluster::Local(kNumDevices), method,
                  {.cost_model = {.kind = CostModelKind::kMeasured, .calibration = calibration},
                   .devices = devices}));
  ASSIGN_OR_RETURN(State state, parallelized.Initialize(step.inputs));
  MinkaRun run{std::move(parallelized), std::move(state), step.inputs};
  ASSIGN_OR_RETURN(run.first_loss, run.Run(1));
  RETURN_IF_ERROR(run.Run(kWarmUpSteps - 1).status());
  return run;
}

// Inputs in a file while JAX reads them.
class InputFile {
 public:
  InputFile()
      : path_(std::filesystem::temp_directory_path() /
              fmt::format("minka_inputs_{}.safetensors", getpid())) {}
  InputFile(const InputFile&) = delete;
  ~InputFile() {
    std::error_code none;
    std::filesystem::remove(path_, none);
  }

  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

absl::StatusOr<JaxProcess> StartJax(const Case& which, const CaseStep& step, const InputFile& file,
                                    const MeasurementOptions& options, int num_threads) {
  std::vector<std::string> arguments = {which.model, "--serve"};
  arguments.insert(arguments.end(), which.jax_arguments.begin(), which.jax_arguments.end());
  if (which.takes_inputs) {
    RETURN_IF_ERROR(WriteTensors(file.path(), ToTensorFile(step.inputs)));
    arguments.push_back("--inputs=" + file.path());
  }
  ASSIGN_OR_RETURN(JaxProcess jax, JaxProcess::Start({.python = options.python,
                                                      .script = options.script,
                                                      .arguments = std::move(arguments),
                                                      .num_threads = num_threads}));
  if (step.num_parameters.value_or(jax.num_parameters()) != jax.num_parameters()) {
    return FailedPrecondition("minka's {} has {} parameters, JAX's {}: not the same step",
                              which.name(), *step.num_parameters, jax.num_parameters());
  }
  return jax;
}

absl::Status CheckLoss(const Case& which, double minka, const std::string& sharding, double jax) {
  // Not-a-number fails, too.
  if (!which.takes_inputs || std::abs(minka - jax) <= kLossTolerance * std::abs(jax)) {
    return absl::OkStatus();
  }
  return FailedPrecondition("{}: minka's first loss is {}, JAX's {} ({})", which.name(), minka, jax,
                            sharding);
}

// By sharding, or by the field of the row for minka: the seconds of each round's steps.
using Rounds = std::map<std::string, std::vector<std::vector<double>>>;

absl::Status WarmUp(const Case& which, double minka_loss, JaxProcess& jax) {
  for (const std::string& sharding : jax.shardings()) {
    ASSIGN_OR_RETURN(const JaxSteps steps, jax.Run(sharding, 1));
    RETURN_IF_ERROR(CheckLoss(which, minka_loss, sharding, steps.first_loss));
  }
  return absl::OkStatus();
}

// Rounds of a few steps each, so that what else happens on the machine meets all alike.
absl::StatusOr<Rounds> Alternate(std::map<std::string, MinkaRun>& minka, JaxProcess& jax,
                                 int num_rounds, int num_steps) {
  Rounds rounds;
  for (int round = 0; round < num_rounds; ++round) {
    for (auto& [field, run] : minka) {
      ASSIGN_OR_RETURN(rounds[field].emplace_back(), run.Time(num_steps));
    }
    for (const std::string& sharding : jax.shardings()) {
      ASSIGN_OR_RETURN(JaxSteps steps, jax.Run(sharding, num_steps));
      rounds[sharding].push_back(std::move(steps.seconds));
    }
  }
  return rounds;
}

// The first turns compile and are not counted. Aborted: JAX's process has waited for itself.
absl::StatusOr<Rounds> WarmUpAndAlternate(const Case& which, const MeasurementOptions& options,
                                          std::map<std::string, MinkaRun>& minka, JaxProcess& jax) {
  const MinkaRun& run = minka.at(kSearched);
  RETURN_IF_ERROR(WarmUp(which, run.first_loss, jax));
  const int num_steps =
      std::clamp(static_cast<int>(1e6 * options.turn_seconds / run.times().us.back()),
                 kMinTurnSteps, kMaxTurnSteps);
  return Alternate(minka, jax, options.rounds, num_steps);
}

double Median(std::span<const double> values) { return StatisticsOf(values).median_us; }

double MedianMs(const std::vector<std::vector<double>>& rounds) {
  std::vector<double> all;
  for (const std::vector<double>& round : rounds) all.insert(all.end(), round.begin(), round.end());
  return 1e3 * Median(all);
}

double MedianRatio(const std::vector<std::vector<double>>& rounds,
                   const std::vector<std::vector<double>>& others) {
  std::vector<double> ratios;
  for (size_t i = 0; i < rounds.size(); ++i) {
    ratios.push_back(Median(rounds[i]) / Median(others[i]));
  }
  return Median(ratios);
}

// The method that was asked for, or whose plan was taken because it is predicted to be faster.
std::string ChosenMethod(const Plan& plan) {
  constexpr std::string_view kNote = "the plan is that of method ";
  for (const std::string& note : plan.notes) {
    if (!note.starts_with(kNote)) continue;
    return note.substr(kNote.size(), note.find(',') - kNote.size());
  }
  return plan.method;
}

Json RowOf(const Case& which, const Plan& plan, const std::vector<std::string>& shardings,
           const Rounds& rounds) {
  Json row = {{"name", which.name()}, {"model", which.model}, {"size", which.size}};
  row[kSearched] = MedianMs(rounds.at(kSearched));
  row["method"] = ChosenMethod(plan);
  row["mesh"] = plan.stage.mesh.ToString();
  row["predicted_ms"] = plan.step_time_us / 1e3;
  if (rounds.contains(kData)) row[kData] = MedianMs(rounds.at(kData));
  std::string fastest = shardings.front();
  for (const std::string& sharding : shardings) {
    row["jax_ms"][sharding] = MedianMs(rounds.at(sharding));
    if (row["jax_ms"][sharding] < row["jax_ms"][fastest]) fastest = sharding;
  }
  row["fastest_jax"] = fastest;
  row["ratio"] = MedianRatio(rounds.at(kSearched), rounds.at(fastest));
  return row;
}

}  // namespace

absl::StatusOr<Json> Measure(const Case& which, const Calibration& calibration,
                             const MeasurementOptions& options) {
  ASSIGN_OR_RETURN(const LocalDevices devices, OpenLocalDevices({.num_devices = kNumDevices}));
  ASSIGN_OR_RETURN(const CaseStep step, which.load());
  std::map<std::string, MinkaRun> minka;
  ASSIGN_OR_RETURN(MinkaRun searched, StartMinka(step, devices, calibration, Shard{}));
  minka.emplace(kSearched, std::move(searched));
  if (options.with_data) {
    ASSIGN_OR_RETURN(MinkaRun data, StartMinka(step, devices, calibration, DataParallel{}));
    minka.emplace(kData, std::move(data));
  }
  const InputFile file;
  absl::Status why_not;
  for (const int num_threads : kJaxThreads) {
    ASSIGN_OR_RETURN(JaxProcess jax, StartJax(which, step, file, options, num_threads));
    const absl::StatusOr<Rounds> rounds = WarmUpAndAlternate(which, options, minka, jax);
    why_not = rounds.status();
    if (absl::IsAborted(why_not)) continue;
    RETURN_IF_ERROR(why_not);
    Json row = RowOf(which, minka.at(kSearched).parallelized.plan(), jax.shardings(), *rounds);
    if (num_threads > 0) row["jax_threads"] = num_threads;
    return row;
  }
  return why_not;
}

}  // namespace minka
