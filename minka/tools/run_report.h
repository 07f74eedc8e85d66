// What `minka run` and `minka train` say about a run.
#pragma once

#include <cstdint>
#include <string>

#include "minka/driver/pipeline.h"
#include "minka/driver/plan_step.h"
#include "minka/runtime/mesh/mesh_executor.h"
#include "nlohmann/json.hpp"

namespace minka {

// Where a driver's time goes in each warm step, in microseconds.
struct HostTimes {
  std::vector<double> inputs_us, dispatch_us, wait_us, fetch_us;
};

struct RunFigures {
  RunTimes step_times;
  int num_warm_up = 1;  // of them, which are not compared with the prediction
  // Of the time in which this machine's cores had work in the warm steps, that the host of a
  // virtual machine gave to others.
  double stolen_share = 0;
  // How far apart the cores were right behind the warm steps (base/core_distance.h), and during the
  // profile that predicted them; 0: not known.
  double core_round_trip_ns = 0, profiled_core_round_trip_ns = 0;
  int64_t measured_peak_memory_bytes = 0, total_allocation_bytes = 0;
  HostTimes host_times;
  double prepare_input_seconds = 0, create_state_seconds = 0, compile_seconds = 0;
};

// Lines for step time and peak memory, predicted against measured. A run without a warm step has
// nothing to compare the predicted time with.
std::string PredictedAndMeasured(const Plan& plan, const RunFigures& figures);
// Of a pipeline: in one process the meshes take turns, so that their times add up.
std::string PredictedAndMeasured(const PipelinePlan& plan, bool has_workers,
                                 const RunFigures& figures);

// The content of plan.json and the fixed keys of a run (docs/plan.md).
nlohmann::ordered_json RunJson(const Plan& plan, const Module& module, const RunFigures& figures);
nlohmann::ordered_json RunJson(const PlannedPipeline& pipeline, const RunFigures& figures);
std::string DumpJson(const nlohmann::ordered_json& json);

}  // namespace minka
