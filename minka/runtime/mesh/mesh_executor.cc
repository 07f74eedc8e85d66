#include "minka/runtime/mesh/mesh_executor.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "minka/base/check.h"
#include "minka/base/status.h"
#include "minka/ir/hlo_proto.h"
#include "minka/ir/verifier.h"

namespace minka {
MeshExecutor::MeshExecutor(pjrt::Client client, pjrt::Executable executable, Mesh mesh,
                           MeshSignature signature)
    : client_(std::move(client)),
      executable_(std::move(executable)),
      mesh_(std::move(mesh)),
      signature_(std::move(signature)) {
  MINKA_CHECK(executable_.num_replicas() == mesh_.num_devices(), "{} replicas on {}",
              executable_.num_replicas(), mesh_.ToString());
}

ArrayLayout MeshExecutor::ParameterLayout(int parameter) const {
  return {signature_.parameters[parameter], signature_.parameter_shardings[parameter], mesh_};
}

ArrayLayout MeshExecutor::ResultLayout(int result) const {
  return {signature_.results[result], signature_.result_shardings[result], mesh_};
}

absl::StatusOr<DistributedArray> MeshExecutor::Put(int parameter, const HostArray& value) {
  ArrayLayout layout = ParameterLayout(parameter);
  absl::StatusOr<MeshArray> array = PutArray(client_, layout, value);
  if (!array.ok()) return WithContext(array.status(), fmt::format("parameter {}", parameter));
  return MakeLocalArray(std::move(layout), *std::move(array));
}

absl::StatusOr<std::vector<DistributedArray>> MeshExecutor::Restore(
    CheckpointReader& checkpoint, std::span<const TensorOfParameter> tensors) {
  std::vector<DistributedArray> arrays;
  for (const auto& [parameter, name] : tensors) {
    ArrayLayout layout = ParameterLayout(parameter);
    ASSIGN_OR_RETURN(MeshArray array, RestoreArray(client_, layout, checkpoint, name));
    arrays.push_back(MakeLocalArray(std::move(layout), std::move(array)));
  }
  return arrays;
}

absl::StatusOr<std::vector<DistributedArray>> MeshExecutor::Run(
    std::span<DistributedArray* const> arguments) {
  MINKA_CHECK(arguments.size() == signature_.parameters.size(), "{} arguments for {} parameters",
              arguments.size(), signature_.parameters.size());
  std::vector<std::vector<pjrt::Buffer*>> buffers(mesh_.num_devices());
  for (const DistributedArray* argument : arguments) {
    std::vector<pjrt::Buffer>& parts = LocalArrayOf(*argument).parts;
    for (size_t device = 0; device < buffers.size(); ++device) {
      buffers[device].push_back(&parts[device]);
    }
  }
  const auto start = std::chrono::steady_clock::now();
  ASSIGN_OR_RETURN(pjrt::Launch launch, executable_.Execute(buffers));
  RETURN_IF_ERROR(launch.Await());
  const std::chrono::duration<double, std::micro> elapsed =
      std::chrono::steady_clock::now() - start;
  times_.us.push_back(elapsed.count());
  std::vector<DistributedArray> results;
  for (int i = 0; i < num_results(); ++i) {
    MeshArray array;
    for (std::vector<pjrt::Buffer>& of_device : launch.results) {
      array.parts.push_back(std::move(of_device[i]));
    }
    results.push_back(MakeLocalArray(ResultLayout(i), std::move(array)));
  }
  return results;
}

absl::Status MeshExecutor::ResetMeasurements() {
  times_.us.clear();
  client_.ResetPeak();
  return absl::OkStatus();
}

absl::StatusOr<int64_t> MeshExecutor::MeasuredPeakBytes() {
  return client_.LargestPeakBytes(static_cast<int>(mesh_.num_devices()));
}

absl::StatusOr<MeshExecutor> CompileForOneDevice(const Module& module, const pjrt::Client& client) {
  RETURN_IF_ERROR(Verify(module));
  ASSIGN_OR_RETURN(pjrt::Executable executable,
                   pjrt::Executable::Compile(client, ExportHlo(module), {.num_replicas = 1}));
  return MeshExecutor(client, std::move(executable), Mesh({{"x", 1}}), SignatureOf(module));
}

}  // namespace minka
