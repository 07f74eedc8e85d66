// Runs a compiled program on the devices of a mesh: host arrays in and out by their shardings,
// everything else stays on the devices.
//
//   MeshExecutor executor(client, std::move(executable), mesh, shardings...);
//   ASSIGN_OR_RETURN(DistributedArray x, executor.Put(0, literal));
//   ASSIGN_OR_RETURN(std::vector<DistributedArray> results, executor.Run(arguments));
//   ASSIGN_OR_RETURN(Literal y, results[0].ToHost());
#pragma once

#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/ir/module.h"
#include "minka/program/signature.h"
#include "minka/runtime/mesh/step_executor.h"
#include "minka/runtime/pjrt/client.h"
#include "minka/runtime/pjrt/executable.h"
#include "minka/sharding/mesh.h"

namespace minka {

class MeshExecutor : public StepExecutor {
 public:
  // Device i of the mesh is device i of the client.
  MeshExecutor(pjrt::Client client, pjrt::Executable executable, Mesh mesh,
               MeshSignature signature);

  ArrayLayout ParameterLayout(int parameter) const override;
  ArrayLayout ResultLayout(int result) const override;
  int NumPlaces(int) const override { return 1; }
  int num_results() const override { return static_cast<int>(signature_.results.size()); }

  absl::StatusOr<DistributedArray> Put(int parameter, const HostArray& value) override;
  absl::StatusOr<std::vector<DistributedArray>> Restore(
      CheckpointReader& checkpoint, std::span<const TensorOfParameter> tensors) override;
  absl::StatusOr<std::vector<DistributedArray>> Run(
      std::span<DistributedArray* const> arguments) override;
  absl::Status Wait() override { return absl::OkStatus(); }  // Run does

  std::vector<const pjrt::Executable*> executables() const override { return {&executable_}; }
  const pjrt::Executable& executable() const { return executable_; }
  const pjrt::Client& client() const { return client_; }
  const Mesh& mesh() const { return mesh_; }
  const MeshSignature& signature() const { return signature_; }
  absl::Status ResetMeasurements() override;
  absl::StatusOr<int64_t> MeasuredPeakBytes() override;

 private:
  pjrt::Client client_;
  pjrt::Executable executable_;
  Mesh mesh_;
  MeshSignature signature_;
};

// A module compiled for one device, without a plan.
absl::StatusOr<MeshExecutor> CompileForOneDevice(const Module& module, const pjrt::Client& client);

}  // namespace minka
