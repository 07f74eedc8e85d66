// One step by minka and by JAX on the same eight virtual devices of this machine, in turns.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "benchmarks/step_time/cases.h"
#include "minka/cost/calibration.h"
#include "nlohmann/json.hpp"

namespace minka {

inline constexpr int kNumDevices = 8;

struct MeasurementOptions {
  std::string python = "build/venv-jax/bin/python";
  std::string script = "benchmarks/step_time/jax_baseline.py";
  int rounds = 5;
  double turn_seconds = 0.4;  // of each program in each round; at least two steps
  bool with_data = false;     // also minka's own data parallelism
};

// A row of the benchmark's table; times in ms, medians over all rounds. A step's time goes from the
// launch until all devices are done; the batch lies on the devices before.
//   name, model, size
//   minka_ms, method, mesh, predicted_ms    of the searched plan
//   minka_data_ms                           with_data
//   jax_ms                                  sharding -> time
//   jax_threads                             where its collectives need more than jaxlib takes by
//                                           itself
//   fastest_jax, ratio                      minka's time over that of the fastest sharding, median
//                                           of the rounds, which meet a busy machine alike
// FailedPrecondition if JAX's step is another one.
absl::StatusOr<nlohmann::ordered_json> Measure(const Case& which, const Calibration& calibration,
                                               const MeasurementOptions& options);

}  // namespace minka
