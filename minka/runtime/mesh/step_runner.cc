#include "minka/runtime/mesh/step_runner.h"

#include <chrono>

#include "minka/base/status.h"

namespace minka {

bool IsResident(const ParameterInfo& parameter) {
  return parameter.role == ParameterRole::kState || parameter.role == ParameterRole::kConstant;
}

StepRunner::StepRunner(const Step& step, std::unique_ptr<StepExecutor> executor)
    : parameters_(step.parameters), executor_(std::move(executor)) {}

absl::StatusOr<State> StepRunner::CreateState(const ParameterValues& values) {
  return CreateState([&](int parameter) -> absl::StatusOr<Literal> { return values[parameter]; });
}

absl::StatusOr<State> StepRunner::CreateState(
    const std::function<absl::StatusOr<Literal>(int parameter)>& value) {
  State state;
  for (int i = 0; i < static_cast<int>(parameters_.size()); ++i) {
    state.arrays.emplace_back();
    if (!IsResident(parameters_[i])) continue;
    ASSIGN_OR_RETURN(const Literal literal, value(i));
    ASSIGN_OR_RETURN(state.arrays.back(), executor_->Put(i, literal));
  }
  return state;
}

absl::StatusOr<std::vector<DistributedArray>> StepRunner::Launch(State& state,
                                                                 const ParameterValues& values) {
  if (state.arrays.size() != parameters_.size()) {
    return FailedPrecondition("this state was consumed by an earlier step; use what that returned");
  }
  const auto start = std::chrono::steady_clock::now();
  std::vector<DistributedArray> inputs(parameters_.size());
  std::vector<DistributedArray*> arguments;
  for (int i = 0; i < static_cast<int>(parameters_.size()); ++i) {
    const bool is_input = !IsResident(parameters_[i]) && state.arrays[i].empty();
    if (is_input) {
      ASSIGN_OR_RETURN(inputs[i], executor_->Put(i, values[i]));
    }
    arguments.push_back(is_input ? &inputs[i] : &state.arrays[i]);
  }
  const auto sent = std::chrono::steady_clock::now();
  absl::StatusOr<std::vector<DistributedArray>> results = executor_->Run(arguments);
  using Microseconds = std::chrono::duration<double, std::micro>;
  launch_time_ = {.inputs_us = Microseconds(sent - start).count(),
                  .dispatch_us = Microseconds(std::chrono::steady_clock::now() - sent).count()};
  return results;
}

absl::StatusOr<StepOutput> StepRunner::Run(State state, const ParameterValues& values) {
  ASSIGN_OR_RETURN(std::vector<DistributedArray> results, Launch(state, values));
  StepOutput output;
  ASSIGN_OR_RETURN(output.state, NextState(std::move(state), results));
  output.results = std::move(results);
  return output;
}

absl::StatusOr<State> StepRunner::NextState(State state, std::vector<DistributedArray>& results) {
  ++state.num_steps;
  for (int i = 0; i < static_cast<int>(parameters_.size()); ++i) {
    const int result = parameters_[i].state_result;
    if (parameters_[i].role != ParameterRole::kState || result < 0) continue;
    if (executor_->ParameterLayout(i) == results[result].layout()) {
      state.arrays[i] = std::move(results[result]);
      continue;
    }
    // State that is not donated may come out in another sharding than it went in.
    ASSIGN_OR_RETURN(const Literal value, results[result].ToHost());
    ASSIGN_OR_RETURN(state.arrays[i], executor_->Put(i, value));
    results[result] = {};
  }
  return state;
}

}  // namespace minka
