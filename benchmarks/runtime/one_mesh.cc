#include "benchmarks/runtime/one_mesh.h"

#include <chrono>
#include <cmath>
#include <optional>
#include <string_view>
#include <utility>

#include "fmt/format.h"
#include "minka/base/status.h"
#include "minka/driver/inputs.h"
#include "minka/driver/parallelize.h"
#include "minka/models/registry.h"
#include "minka/runtime/mesh/run_times.h"

namespace minka {
namespace {

using Json = nlohmann::ordered_json;
using Seconds = std::chrono::duration<double>;

constexpr int kMeshDevices = 2;
constexpr Seconds kTurn(0.5);
constexpr std::string_view kOneMesh = "one mesh, ";
// From steps of a millisecond to ones of hundreds.
constexpr const char* kModels[] = {"mlp", "gpt-tiny", "moe-tiny", "wresnet-tiny"};

// A program, and its state between turns.
class Side {
 public:
  static absl::StatusOr<Side> Make(const TracedStep& traced,
                                   const std::optional<WorkerOptions>& workers) {
    ASSIGN_OR_RETURN(Parallelized run, Parallelize(traced, Cluster::Local(kMeshDevices), Shard{},
                                                   {.workers = workers}));
    ASSIGN_OR_RETURN(State state, run.Initialize(/*seed=*/1));
    ASSIGN_OR_RETURN(Batch batch, RandomBatch(traced.step, /*seed=*/1));
    return Side(std::move(run), std::move(state), std::move(batch));
  }

  // Microseconds of a step, each awaited, its batch given to it.
  absl::Status TakeTurn(std::vector<double>& step_us) {
    const auto end = std::chrono::steady_clock::now() + kTurn;
    while (std::chrono::steady_clock::now() < end) {
      const auto start = std::chrono::steady_clock::now();
      ASSIGN_OR_RETURN(StepResult result, run_(std::move(*state_), batch_));
      RETURN_IF_ERROR(result.Loss().status());
      state_ = std::move(result.state);
      step_us.push_back(Seconds(std::chrono::steady_clock::now() - start).count() * 1e6);
    }
    return absl::OkStatus();
  }

 private:
  Side(Parallelized run, State state, Batch batch)
      : run_(std::move(run)), state_(std::move(state)), batch_(std::move(batch)) {}

  Parallelized run_;
  std::optional<State> state_;
  Batch batch_;
};

}  // namespace

std::vector<std::string> OneMeshNames() {
  std::vector<std::string> names;
  for (const char* const model : kModels) names.push_back(fmt::format("{}{}", kOneMesh, model));
  return names;
}

absl::StatusOr<Json> MeasureOneMesh(const std::string& name, const std::string& binary,
                                    int num_rounds) {
  ASSIGN_OR_RETURN(const TracedStep traced, TraceModel(name.substr(kOneMesh.size())));
  ASSIGN_OR_RETURN(Side in_process, Side::Make(traced, std::nullopt));
  ASSIGN_OR_RETURN(Side in_worker, Side::Make(traced, WorkerOptions{.binary = binary}));
  // Medians of rounds: a step of few milliseconds has many in each, one of seconds one.
  std::vector<double> process_us, worker_us, ratios;
  for (int round = -1; round < num_rounds; ++round) {
    std::vector<double> here, there;
    // Who goes first changes.
    if (round % 2 == 0) RETURN_IF_ERROR(in_process.TakeTurn(here));
    RETURN_IF_ERROR(in_worker.TakeTurn(there));
    if (round % 2 != 0) RETURN_IF_ERROR(in_process.TakeTurn(here));
    if (round < 0) continue;  // memory is touched for the first time
    process_us.push_back(StatisticsOf(here).median_us);
    worker_us.push_back(StatisticsOf(there).median_us);
    ratios.push_back(worker_us.back() / process_us.back());
  }
  const auto rounded = [](double value) { return std::round(value * 1000) / 1000; };
  return Json{{"name", name},
              {"in_process_ms", rounded(StatisticsOf(process_us).median_us / 1e3)},
              {"in_worker_ms", rounded(StatisticsOf(worker_us).median_us / 1e3)},
              {"worker_over_process", rounded(StatisticsOf(ratios).median_us)}};
}

std::string OneMeshTableRow(const Json& row) {
  return fmt::format("| {} | {:.2f} | {:.2f} | {:.3f} |\n",
                     row["name"].get<std::string>().substr(kOneMesh.size()),
                     row["in_process_ms"].get<double>(), row["in_worker_ms"].get<double>(),
                     row["worker_over_process"].get<double>());
}

}  // namespace minka
