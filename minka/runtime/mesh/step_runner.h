// A step that runs again and again: its state stays on the devices and every run replaces it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/ir/step.h"
#include "minka/runtime/mesh/mesh_executor.h"

namespace minka {

// What stays on the devices between two runs: state and constants, by parameter number; move-only.
// A run consumes it and gives the next one. Batch inputs and keys are empty, or put there already,
// and then the next run reads them instead of the values that it is given.
struct State {
  std::vector<DistributedArray> arrays;
  uint64_t seed = 0;      // of the keys of its steps
  int64_t num_steps = 0;  // made so far
};

struct StepOutput {
  State state;
  // By result number: everything but state, which is empty here. Perhaps still computed.
  std::vector<DistributedArray> results;
};

// By parameter number; only those that a call names are read.
using ParameterValues = std::vector<Literal>;

// Where the time of a call of StepRunner::Launch went, in microseconds.
struct LaunchTime {
  double inputs_us = 0;    // until all inputs are on their way to the devices
  double dispatch_us = 0;  // until the step is launched; in this process, until it is done
};

class StepRunner {
 public:
  // The executor runs the step's module, or what was lowered from it.
  StepRunner(const Step& step, std::unique_ptr<StepExecutor> executor);
  StepRunner(const Step& step, MeshExecutor executor)
      : StepRunner(step, std::make_unique<MeshExecutor>(std::move(executor))) {}

  // From the values of state and constant parameters.
  absl::StatusOr<State> CreateState(const ParameterValues& values);
  // From a function that gives each of them, asked for in the order of the parameters.
  absl::StatusOr<State> CreateState(
      const std::function<absl::StatusOr<Literal>(int parameter)>& value);
  // From the values of batch inputs and keys; see StepExecutor::Run about waiting.
  // FailedPrecondition for a state that a run consumed.
  absl::StatusOr<StepOutput> Run(State state, const ParameterValues& values);
  // Run in two parts, for those who read what each device holds: all results by number, which
  // consumes what the program aliases to results; and the state after them, which takes its arrays
  // out of `results`.
  absl::StatusOr<std::vector<DistributedArray>> Launch(State& state, const ParameterValues& values);
  absl::StatusOr<State> NextState(State state, std::vector<DistributedArray>& results);

  // Of the last launch.
  const LaunchTime& launch_time() const { return launch_time_; }

  const std::vector<ParameterInfo>& parameters() const { return parameters_; }
  StepExecutor& executor() { return *executor_; }
  const StepExecutor& executor() const { return *executor_; }

 private:
  std::vector<ParameterInfo> parameters_;
  std::unique_ptr<StepExecutor> executor_;
  LaunchTime launch_time_;
};

// Does the parameter stay on the devices?
bool IsResident(const ParameterInfo& parameter);

}  // namespace minka
