// What runs a compiled step, whether on one mesh or on several, in this process or in workers.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "minka/ir/literal.h"
#include "minka/runtime/mesh/distributed_array.h"
#include "minka/runtime/mesh/run_times.h"
#include "minka/runtime/mesh/stored_array.h"
#include "minka/runtime/pjrt/executable.h"

namespace minka {

// What a device of an array's first mesh holds, under a name in a file.
struct NamedTile {
  std::string name;
  const DistributedArray* array = nullptr;
  int64_t device = 0;
};

// All of arrays that one worker holds (ArrayStorage::worker).
struct FileOfTiles {
  std::string path;
  std::vector<NamedTile> tiles;
};

struct TensorOfParameter {
  int parameter = 0;
  std::string name;  // in the checkpoint
};

// Parameters and results are those of the step, by number; arrays stay on the devices.
class StepExecutor {
 public:
  virtual ~StepExecutor() = default;

  // Where a parameter's array lies, the first place where there are several; a result's.
  virtual ArrayLayout ParameterLayout(int parameter) const = 0;
  virtual ArrayLayout ResultLayout(int result) const = 0;
  virtual int num_results() const = 0;
  // On how many meshes a parameter's array lies.
  virtual int NumPlaces(int parameter) const = 0;

  // Copies a whole array to the devices as the parameter wants it; see PutArray.
  virtual absl::StatusOr<DistributedArray> Put(int parameter, const HostArray& value) = 0;

  // What was put goes on its way now, not only with the next run.
  virtual void Flush() {}
  // Who holds the arrays writes the files, each see StoreParts, all of them at once. Blocks. An
  // error leaves arrays and workers as they were.
  virtual absl::StatusOr<std::vector<StoredFile>> Store(std::span<const FileOfTiles> files);
  // Who will hold the arrays reads them, see RestoreArray; each array in the place of its name.
  // Blocks. An error leaves workers as they were.
  virtual absl::StatusOr<std::vector<DistributedArray>> Restore(
      CheckpointReader& checkpoint, std::span<const TensorOfParameter> tensors) = 0;

  // Arguments by parameter; results by number. Arguments whose memory results take are consumed.
  // May return before the devices are done: who reads a result waits for it.
  virtual absl::StatusOr<std::vector<DistributedArray>> Run(
      std::span<DistributedArray* const> arguments) = 0;
  // Until all runs are done; the error of the first that failed.
  virtual absl::Status Wait() = 0;

  // All that a step runs in this process; one for a single mesh.
  virtual std::vector<const pjrt::Executable*> executables() const = 0;

  // Of the runs that were waited for.
  const RunTimes& times() const { return times_; }
  // Forgets times and measured peaks.
  virtual absl::Status ResetMeasurements() = 0;
  // The largest peak of any device since ResetMeasurements, see pjrt::Client::peak_bytes.
  virtual absl::StatusOr<int64_t> MeasuredPeakBytes() = 0;

 protected:
  StepExecutor() = default;
  StepExecutor(const StepExecutor&) = default;
  StepExecutor(StepExecutor&&) = default;
  StepExecutor& operator=(const StepExecutor&) = default;
  StepExecutor& operator=(StepExecutor&&) = default;

  RunTimes times_;
};

}  // namespace minka
