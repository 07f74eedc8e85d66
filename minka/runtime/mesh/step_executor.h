// What runs a compiled step, whether on one mesh or on several.
#pragma once

#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/ir/literal.h"
#include "minka/runtime/mesh/mesh_array.h"
#include "minka/runtime/mesh/run_times.h"
#include "minka/runtime/pjrt/executable.h"

namespace minka {

// Parameters and results are those of the step, by number; arrays stay on the devices.
class StepExecutor {
 public:
  virtual ~StepExecutor() = default;

  // Where a parameter's array lies, the first place where there are several; a result's.
  virtual ArrayLayout ParameterLayout(int parameter) const = 0;
  virtual ArrayLayout ResultLayout(int result) const = 0;
  virtual int num_results() const = 0;

  // Copies a whole array to the devices as the parameter wants it; see PutArray.
  virtual absl::StatusOr<MeshArray> Put(int parameter, const Literal& value) const = 0;
  // The whole array of a result; of what lies as the parameter does.
  absl::StatusOr<Literal> Get(int result, const MeshArray& array) const {
    return GetArray(ResultLayout(result), array);
  }
  absl::StatusOr<Literal> GetParameter(int parameter, const MeshArray& array) const {
    return GetArray(ParameterLayout(parameter), array);
  }

  // Arguments by parameter. Those whose memory results take are consumed. Waits for all devices.
  virtual absl::StatusOr<std::vector<MeshArray>> Run(std::span<MeshArray* const> arguments) = 0;

  // All that a step runs; one for a single mesh.
  virtual std::vector<const pjrt::Executable*> executables() const = 0;

  const RunTimes& times() const { return times_; }
  // Forgets times and measured peaks.
  virtual void ResetMeasurements() = 0;
  // The largest peak of any device since ResetMeasurements, see pjrt::Client::peak_bytes.
  virtual int64_t measured_peak_bytes() const = 0;

 protected:
  StepExecutor() = default;
  StepExecutor(const StepExecutor&) = default;
  StepExecutor(StepExecutor&&) = default;
  StepExecutor& operator=(const StepExecutor&) = default;
  StepExecutor& operator=(StepExecutor&&) = default;

  RunTimes times_;
};

}  // namespace minka
