// Runs a compiled program on the devices of a mesh: host arrays in and out by their shardings,
// everything else stays on the devices.
//
//   MeshExecutor executor(client, std::move(executable), mesh, shardings...);
//   ASSIGN_OR_RETURN(MeshArray x, executor.Put(0, literal));
//   ASSIGN_OR_RETURN(std::vector<MeshArray> results, executor.Run(arguments));
//   ASSIGN_OR_RETURN(Literal y, executor.Get(0, results[0]));
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
  int num_results() const override { return static_cast<int>(signature_.results.size()); }

  absl::StatusOr<MeshArray> Put(int parameter, const Literal& value) const override;
  absl::StatusOr<std::vector<MeshArray>> Run(std::span<MeshArray* const> arguments) override;

  std::vector<const pjrt::Executable*> executables() const override { return {&executable_}; }
  const pjrt::Executable& executable() const { return executable_; }
  const pjrt::Client& client() const { return client_; }
  const Mesh& mesh() const { return mesh_; }
  const MeshSignature& signature() const { return signature_; }
  void ResetMeasurements() override;
  int64_t measured_peak_bytes() const override;

 private:
  pjrt::Client client_;
  pjrt::Executable executable_;
  Mesh mesh_;
  MeshSignature signature_;
};

// A module compiled for one device, without a plan.
absl::StatusOr<MeshExecutor> CompileForOneDevice(const Module& module, const pjrt::Client& client);

}  // namespace minka
