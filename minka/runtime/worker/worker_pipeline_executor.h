// Runs a pipeline's step on workers, one for each mesh. A call sends each worker one message and
// returns; the workers exchange arrays past this process.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/runtime/pipeline/pipeline_executor.h"
#include "minka/runtime/pipeline/session.h"
#include "minka/runtime/worker/workers.h"

namespace minka {

// Arrays of one executor are arguments of others on the same workers.
class WorkerPipelineExecutor : public PipelineExecutor {
 public:
  // Mesh i goes to worker i, which compiles its programs. InvalidArgument for more meshes than
  // workers, or a mesh with more devices than its worker.
  static absl::StatusOr<std::unique_ptr<WorkerPipelineExecutor>> Create(
      std::shared_ptr<Workers> workers, PipelineProgram program);
  ~WorkerPipelineExecutor() override;

  absl::StatusOr<DistributedArray> Put(int parameter, const HostArray& value) override;
  void Flush() override { workers_->Flush(); }
  absl::StatusOr<std::vector<StoredFile>> Store(std::span<const FileOfTiles> files) override;
  absl::StatusOr<std::vector<DistributedArray>> Restore(
      CheckpointReader& checkpoint, std::span<const TensorOfParameter> tensors) override;
  absl::StatusOr<std::vector<DistributedArray>> Run(
      std::span<DistributedArray* const> arguments) override;
  absl::Status Wait() override;

  std::vector<const pjrt::Executable*> executables() const override { return {}; }
  std::vector<std::vector<pjrt::MemoryStatistics>> memory() const override { return memory_; }
  absl::StatusOr<std::string> OptimizedModule(int mesh, int program) override;
  absl::Status ResetMeasurements() override;
  absl::StatusOr<int64_t> MeasuredPeakBytes() override;

 private:
  using Clock = std::chrono::steady_clock;
  // A step under way.
  struct Launched {
    Clock::time_point start;
    bool is_traced = false;
    std::vector<std::shared_ptr<WorkerAnswer>> answers;  // by mesh
  };

  WorkerPipelineExecutor(std::shared_ptr<Workers> workers, PipelineProgram program);
  absl::Status Load();
  absl::Status WaitForOldest();
  // What an answer says that went wrong with files.
  absl::Status FailureOf(int worker, bool has_failed, const worker::Failed& failed) const;
  void AddTrace(const worker::Stepped& stepped, Clock::time_point arrived);
  // By mesh.
  absl::StatusOr<std::vector<worker::Measured>> Measure(bool reset);

  std::shared_ptr<Workers> workers_;
  uint64_t number_ = 0;  // of the program
  uint64_t num_steps_ = 0;
  std::vector<std::vector<pjrt::MemoryStatistics>> memory_;  // by mesh and program
  std::deque<Launched> launched_;                            // the oldest first
  Clock::time_point last_end_;
};

class WorkersSession : public Session {
 public:
  explicit WorkersSession(std::shared_ptr<Workers> workers) : workers_(std::move(workers)) {}

  absl::StatusOr<std::unique_ptr<PipelineExecutor>> Load(PipelineProgram program) override {
    return WorkerPipelineExecutor::Create(workers_, std::move(program));
  }
  std::string version() const override { return workers_->version(); }
  Platform platform() const override { return workers_->platform(); }
  void Cancel() override { workers_->Cancel(); }
  Workers& workers() { return *workers_; }

 private:
  std::shared_ptr<Workers> workers_;
};

}  // namespace minka
