// One program planned, compiled and run: what was predicted and what it took.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "benchmarks/prediction/programs.h"
#include "minka/cost/calibration.h"
#include "nlohmann/json.hpp"

namespace minka {

inline constexpr int kPredictionDevices = 8;

// The fields of a row of the benchmark's JSON; times in us, memory in bytes of the fullest device.
//   name, step, method, mesh
//   predicted_us, median_us, quartiles_us, num_steps
//   busy_us              processor time of this process per step and core, which hardly depends on
//                        what else runs: a step cannot take less
//   others_share         of the cores' time while the steps ran, by anything but this process
//   estimated_bytes, compiled_bytes
// `memory_only`: nothing is run, the fields of measured times are missing. `dump_dir`: as
// CompileOptions.
absl::StatusOr<nlohmann::ordered_json> Measure(const PredictionProgram& program,
                                               const std::string& module_folder,
                                               const Calibration& calibration, bool memory_only,
                                               const std::string& dump_dir);

}  // namespace minka
