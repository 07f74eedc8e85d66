// Programs of one step planned, compiled and run in turns: what was predicted and what they took.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "benchmarks/prediction/programs.h"
#include "minka/cost/calibration.h"
#include "minka/driver/plan_step.h"
#include "minka/runtime/mesh/local_devices.h"
#include "nlohmann/json.hpp"

namespace minka {

inline constexpr int kPredictionDevices = 8;

// The fields of a row of the benchmark's JSON; times in us, memory in bytes of the fullest device.
//   name, step, method, mesh
//   predicted_us, median_us, quartiles_us, num_steps
//   busy_us              processor time of this process per step and core, which hardly depends on
//                        what else runs: a step cannot take less
//   others_share         of the cores' time while the steps ran, by anything but this process
//   stolen_share         of the time in which the cores had work, by the host of this machine
//   moved_share          of the turns, in which the cores were elsewhere than during the profile
//   reference_us         of the reference step (MeasureReferenceUs), in the same turns: median_us
//                        divided by the median of the quotients of both
//   estimated_bytes, compiled_bytes
// An array of rows, of the programs in their order. They take turns, so that all meet the same
// changes of the machine's speed. `dump_dir`: a folder for one of each program, see CompileOptions;
// empty: none.
absl::StatusOr<nlohmann::ordered_json> MeasureInTurns(
    const std::vector<PredictionProgram>& programs, const std::string& module_folder,
    const Calibration& calibration, const std::string& dump_dir);

// Planned by these costs and compiled, but not run: the fields of measured times are missing.
absl::StatusOr<nlohmann::ordered_json> MeasureMemory(const std::vector<PredictionProgram>& programs,
                                                     const std::string& module_folder,
                                                     const CostModelChoice& costs,
                                                     const std::string& dump_dir);

// A warm step of a perceptron of fixed shapes on all devices: how fast the machine is now. Shared
// machines change their speed by a third within minutes, so that a prediction from a profile and a
// time that was measured later are comparable only by what both say of the same step. Where the
// cores are at `core_ns` (base/core_distance.h), if they are within half a minute.
absl::StatusOr<double> MeasureReferenceUs(const LocalDevices& devices, double core_ns);

// A new profile, and the median of what the reference step took many times while it was made and
// the cores were where they mostly were.
struct ReferencedProfile {
  Calibration calibration;
  double reference_us = 0;
};
absl::StatusOr<ReferencedProfile> ProfileBesideReference(const LocalDevices& devices);

}  // namespace minka
