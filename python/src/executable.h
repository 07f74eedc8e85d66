// A parallelised JAX function and its arrays, as Python holds them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/minka.h"

namespace minka {

// Told what is done now.
using OnPhase = std::function<void(std::string_view phase)>;

// What Python asks for. Fields that a method does not have are not read.
struct ParallelizeRequest {
  std::string hlo;          // serialised HloModuleProto
  std::string description;  // see StepOfJax
  int num_devices = 0;
  std::string gpu;               // what its driver calls the devices; empty: virtual ones
  int64_t gpu_memory_bytes = 0;  // 0: not known
  std::string calibration;       // as `minka profile --json` prints it; empty: costs by roofline
  std::string method;            // "shard", "data", "zero2", "zero3", "pipeline"
  std::string mesh;              // see MethodOptions
  int64_t num_micro_batches = 1;
  bool per_micro_batch = false, narrow_sums = false;
  std::optional<int64_t> peak_memory_bytes;  // per device
  std::vector<std::string> pins;             // see SearchOptions
  std::vector<std::string> remat;            // by layer, see RematPolicyName
  int num_layers = 0;                        // see AutoLayers; 0: see MarkedLayers, or
  std::vector<std::string> layer_starts;     // see ManualLayers; this and the next: PipelineOptions
  int num_stages = 0;
  std::vector<int> stage_of_layer;
  std::vector<int> submeshes, submesh_choices;
  std::vector<std::string> meshes;
  std::string schedule = "auto";
  std::string plan_path;      // a plan already made; empty: searched for
  std::string hosts_path;     // see WorkerOptions
  std::string worker_binary;  // minka
  std::string plugin_path;    // empty: searched
};

absl::StatusOr<ParallelMethod> MethodOf(const ParallelizeRequest& request);
// This machine's devices. NotFound for GPUs of which no rates are known and nothing was measured.
absl::StatusOr<Cluster> LocalClusterOf(const ParallelizeRequest& request);
absl::StatusOr<CostModelChoice> CostsOf(const ParallelizeRequest& request);

// An array on the devices; empty once a step has consumed it.
struct ArrayHandle {
  std::shared_ptr<const void> owner;  // identity of the executable that made it
  int parameter = -1;                 // whose value it is, placed as that one wants it; -1: none's
  std::vector<DistributedArray> parts;  // the array, or its rows, which may lie on several meshes

  bool empty() const { return parts.empty() || parts.front().empty(); }
  // Precondition of both: it is not empty. See DistributedArray.
  std::function<absl::StatusOr<HostArray>()> StartToLend() const;
  std::string ToString() const;
};

// The bytes of an input that is given anew with every call.
struct StepInput {
  int parameter = 0;
  std::span<const uint8_t> bytes;
};

struct SaveRequest {
  std::string folder;
  std::string model;
  int64_t step = 0;
  int keep = 0;  // checkpoints of the folder, see CheckpointWriter::Commit
};

class Follower;
struct PlanOfStep;

// Thread-safe: calls wait for each other.
class Executable {
 public:
  // Cancelled soon after it is asked to stop.
  static absl::StatusOr<std::unique_ptr<Executable>> Create(const ParallelizeRequest& request,
                                                            const std::stop_token& stop,
                                                            const OnPhase& on_phase);

  // Copies a whole array, dense and row-major, to where the parameter wants it.
  absl::StatusOr<ArrayHandle> Put(int parameter, std::span<const uint8_t> bytes);
  // One step. `resident`: by parameter, batches that were put, too; each IsAt it, null for those
  // that `inputs` give. State is consumed unless the step could not be started; constants are not.
  // Returns the results by number.
  absl::StatusOr<std::vector<ArrayHandle>> Run(std::span<ArrayHandle* const> resident,
                                               std::span<const StepInput> inputs);
  // Does the array lie where this executable's parameter wants it (or did, before it was consumed)?
  bool IsAt(const ArrayHandle& handle, int parameter) const {
    return handle.owner == identity_ && handle.parameter == parameter;
  }

  // Writes the state, see SaveArrays, and returns the checkpoint's folder. `state`: as
  // Run takes it; what is not state is not written. Cancelled soon after it is asked to stop.
  absl::StatusOr<std::string> Save(const SaveRequest& request, std::span<ArrayHandle* const> state,
                                   const std::stop_token& stop);
  // State from a checkpoint of it by any plan, by parameter; an empty handle where none is.
  absl::StatusOr<std::vector<ArrayHandle>> Restore(const std::string& path,
                                                   const std::stop_token& stop);

  // State from a function, whose results, in their order, are the values of these parameters, made
  // where they lie; `bytes`: its arguments. An empty handle where none is. See MakeValues.
  absl::StatusOr<std::vector<ArrayHandle>> MakeState(const ParallelizeRequest& init,
                                                     const std::vector<int>& parameters,
                                                     const std::vector<std::string>& bytes);

  // Runs so many steps on all devices and on one device of this process, which is opened for that,
  // from the values of all parameters. A table; what differs is an error, Aborted.
  absl::StatusOr<std::string> Check(std::vector<Literal> values, int num_steps);
  // By parameter number, the bytes as given to Put.
  absl::StatusOr<std::vector<Literal>> Values(
      const std::vector<std::span<const uint8_t>>& bytes) const;
  // See driver/explain.h and driver/explain_pipeline.h.
  absl::StatusOr<std::string> Explain(const ParallelizeRequest& request,
                                      const ExplainQuestion& question, const std::stop_token& stop,
                                      const OnPhase& on_phase) const;

  // A step that reads this one's state where it lies: its parameters with role constant have names
  // of this one's. Fields of the request that say how are not read.
  absl::StatusOr<std::unique_ptr<Follower>> Follow(const ParallelizeRequest& request) const;

  std::string PlanJson() const;
  absl::StatusOr<std::string> PlanTable() const;
  // Of a pipeline; see minka/driver/candidates_file.h.
  absl::StatusOr<std::string> CandidatesJson() const;
  absl::Status Dump(const std::string& folder);

 private:
  friend class Follower;

  explicit Executable(Parallelized run) : run_(std::move(run)) {}
  // Parameters and results are numbered as in it, but for those of run_.
  const Step& given() const { return run_.given(); }
  const StepRows& rows() const { return run_.rows(); }
  PlanOfStep plan() const;
  // InvalidArgument: another number of bytes than the parameter has.
  absl::StatusOr<HostArray> View(int parameter, std::span<const uint8_t> bytes) const;
  absl::StatusOr<Literal> Value(int parameter, std::span<const uint8_t> bytes) const;
  // By parameter of the step that runs.
  std::vector<DistributedArray> TakeArrays(std::span<ArrayHandle* const> handles) const;
  void GiveBack(std::vector<DistributedArray> arrays, std::span<ArrayHandle* const> handles) const;
  // Of parameters of the step that runs, by those of the given one; empty where none is.
  std::vector<ArrayHandle> HandlesOf(std::vector<DistributedArray> arrays) const;
  absl::Status CheckIsThere(std::span<ArrayHandle* const> handles, std::string_view consumer) const;

  const std::shared_ptr<const void> identity_ = std::make_shared<int>();
  mutable std::mutex mutex_;  // of run_, but for what never changes
  Parallelized run_;
};

// Thread-safe.
class Follower {
 public:
  Follower(Step step, Evaluation evaluation, const Executable& training)
      : step_(std::move(step)), evaluation_(std::move(evaluation)), training_(training) {}

  // `state`: by parameter of the executable that is followed, which outlives this; null: not read.
  // `bytes`: of the other parameters, in their order. All results on the host.
  absl::StatusOr<std::vector<Literal>> Run(std::span<ArrayHandle* const> state,
                                           const std::vector<std::string>& bytes);

 private:
  const Step step_;
  Evaluation evaluation_;  // guarded by the mutex of training_
  const Executable& training_;
  int64_t num_calls_ = 0;
};

// The same for a step that is only planned: the table is about its best plan.
absl::StatusOr<std::string> ExplainRequest(const ParallelizeRequest& request,
                                           const ExplainQuestion& question,
                                           const std::stop_token& stop, const OnPhase& on_phase);

}  // namespace minka
