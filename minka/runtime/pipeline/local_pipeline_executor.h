// Runs the instruction lists of a pipeline's meshes in this process, all on the devices of one
// client. One thread plays every mesh in turn: a plugin runs multi-device launches of one client
// one after the other anyhow.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/program/pipeline_program.h"
#include "minka/runtime/pipeline/mesh_player.h"
#include "minka/runtime/pipeline/pipeline_executor.h"
#include "minka/runtime/pjrt/client.h"
#include "minka/runtime/pjrt/executable.h"

namespace minka {

class LocalPipelineExecutor : public PipelineExecutor {
 public:
  // Compiles every program.
  static absl::StatusOr<std::unique_ptr<LocalPipelineExecutor>> Create(const pjrt::Client& client,
                                                                       PipelineProgram program);

  absl::StatusOr<DistributedArray> Put(int parameter, const HostArray& value) override;
  absl::StatusOr<std::vector<DistributedArray>> Restore(
      CheckpointReader& checkpoint, std::span<const TensorOfParameter> tensors) override;
  absl::StatusOr<std::vector<DistributedArray>> Run(
      std::span<DistributedArray* const> arguments) override;
  absl::Status Wait() override { return absl::OkStatus(); }  // Run does

  std::vector<const pjrt::Executable*> executables() const override;
  std::vector<std::vector<pjrt::MemoryStatistics>> memory() const override;
  absl::StatusOr<std::string> OptimizedModule(int mesh, int program) override;
  absl::Status ResetMeasurements() override;
  absl::StatusOr<int64_t> MeasuredPeakBytes() override;

 private:
  LocalPipelineExecutor(pjrt::Client client, PipelineProgram program);
  absl::Status PlayAll();

  pjrt::Client client_;
  std::vector<MeshPlayer> players_;  // by mesh
};

}  // namespace minka
