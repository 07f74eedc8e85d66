#include "benchmarks/runtime/two_cores.h"

#include <sched.h>

#include <array>
#include <chrono>
#include <cmath>
#include <functional>
#include <future>
#include <utility>
#include <vector>

#include "benchmarks/support/run_apart.h"
#include "minka/base/status.h"
#include "minka/driver/inputs.h"
#include "minka/driver/parallelize.h"
#include "minka/frontend/optimizer.h"
#include "minka/frontend/trace.h"
#include "minka/models/mlp.h"
#include "minka/profiler/profile.h"
#include "minka/runtime/mesh/run_times.h"
#include "nlohmann/json.hpp"

namespace minka {
namespace {

using Json = nlohmann::ordered_json;

// Dots and an optimizer that reads and writes memory.
constexpr MlpConfig kReference = {.batch = 192, .hidden = 480, .num_layers = 4};
constexpr int kReferenceWarmUp = 10, kReferenceSteps = 60;

absl::StatusOr<double> ReferenceUs() {
  ASSIGN_OR_RETURN(const TracedStep traced, Trace(Mlp(kReference), AdamW({})));
  ASSIGN_OR_RETURN(Parallelized run, Parallelize(traced, Cluster::Local(1), Shard{}));
  ASSIGN_OR_RETURN(State state, run.Initialize(/*seed=*/1));
  ASSIGN_OR_RETURN(const Batch batch, RandomBatch(traced.step, /*seed=*/1));
  std::vector<double> us;
  for (int i = 0; i < kReferenceWarmUp + kReferenceSteps; ++i) {
    const auto start = std::chrono::steady_clock::now();
    ASSIGN_OR_RETURN(StepResult result, run(std::move(state), batch));
    RETURN_IF_ERROR(result.Loss().status());
    state = std::move(result.state);
    const std::chrono::duration<double, std::micro> elapsed =
        std::chrono::steady_clock::now() - start;
    if (i >= kReferenceWarmUp) us.push_back(elapsed.count());
  }
  return StatisticsOf(us).median_us;
}

absl::StatusOr<Json> Reference() {
  ASSIGN_OR_RETURN(const double us, ReferenceUs());
  return Json(us);
}

absl::StatusOr<Json> ProfileOneDevice() {
  ASSIGN_OR_RETURN(const LocalDevices devices, OpenLocalDevices({.num_devices = 1}));
  ASSIGN_OR_RETURN(const Calibration calibration, Profile(devices, {.num_devices = 1}));
  return Json(calibration.ToJson());
}

absl::StatusOr<Json> RunOnCore(int core, const std::function<absl::StatusOr<Json>()>& work) {
  return RunApart("core " + std::to_string(core), [&]() -> absl::StatusOr<Json> {
    cpu_set_t cores;
    CPU_ZERO(&cores);
    CPU_SET(core, &cores);
    if (sched_setaffinity(0, sizeof cores, &cores) != 0) return InternalError("is not to be had");
    return work();
  });
}

// What each says. The end of one may be noticed with that of the other, whose process has both
// ends of both pipes.
absl::StatusOr<std::array<Json, 2>> RunOnBoth(const std::function<absl::StatusOr<Json>()>& work) {
  std::future<absl::StatusOr<Json>> beside =
      std::async(std::launch::async, [&work] { return RunOnCore(1, work); });
  absl::StatusOr<Json> first = RunOnCore(0, work);
  absl::StatusOr<Json> second = beside.get();
  RETURN_IF_ERROR(first.status());
  RETURN_IF_ERROR(second.status());
  return std::array{*std::move(first), *std::move(second)};
}

}  // namespace

absl::StatusOr<ProfiledCores> ProfileTwoCores() {
  ASSIGN_OR_RETURN(const double before_us, ReferenceUsOfTwoCores());
  ASSIGN_OR_RETURN(const auto profiles, RunOnBoth(ProfileOneDevice));
  ASSIGN_OR_RETURN(const double after_us, ReferenceUsOfTwoCores());
  ProfiledCores cores{.reference_us = std::sqrt(before_us * after_us)};
  ASSIGN_OR_RETURN(cores.calibration, Calibration::FromJson(profiles.front().get<std::string>()));
  return cores;
}

absl::StatusOr<double> ReferenceUsOfTwoCores() {
  ASSIGN_OR_RETURN(const auto us, RunOnBoth(Reference));
  return std::sqrt(us[0].get<double>() * us[1].get<double>());
}

}  // namespace minka
