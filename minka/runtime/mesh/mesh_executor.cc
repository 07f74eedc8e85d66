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

absl::StatusOr<MeshArray> MeshExecutor::Put(int parameter, const Literal& value) const {
  absl::StatusOr<MeshArray> array = PutArray(client_, ParameterLayout(parameter), value);
  if (!array.ok()) return WithContext(array.status(), fmt::format("parameter {}", parameter));
  return array;
}

absl::StatusOr<std::vector<MeshArray>> MeshExecutor::Run(std::span<MeshArray* const> arguments) {
  MINKA_CHECK(arguments.size() == signature_.parameters.size(), "{} arguments for {} parameters",
              arguments.size(), signature_.parameters.size());
  std::vector<std::vector<pjrt::Buffer*>> buffers(mesh_.num_devices());
  for (int64_t device = 0; device < mesh_.num_devices(); ++device) {
    for (MeshArray* argument : arguments) buffers[device].push_back(&argument->parts[device]);
  }
  const auto start = std::chrono::steady_clock::now();
  ASSIGN_OR_RETURN(pjrt::Launch launch, executable_.Execute(buffers));
  RETURN_IF_ERROR(launch.Await());
  const std::chrono::duration<double, std::micro> elapsed =
      std::chrono::steady_clock::now() - start;
  times_.us.push_back(elapsed.count());
  std::vector<MeshArray> results(signature_.results.size());
  for (std::vector<pjrt::Buffer>& of_device : launch.results) {
    for (size_t i = 0; i < results.size(); ++i) {
      results[i].parts.push_back(std::move(of_device[i]));
    }
  }
  return results;
}

void MeshExecutor::ResetMeasurements() {
  times_.us.clear();
  client_.meter().ResetPeak();
}

int64_t MeshExecutor::measured_peak_bytes() const {
  int64_t peak = 0;
  for (int device = 0; device < mesh_.num_devices(); ++device) {
    peak = std::max(peak, client_.peak_bytes(device));
  }
  return peak;
}

absl::StatusOr<MeshExecutor> CompileForOneDevice(const Module& module, const pjrt::Client& client) {
  RETURN_IF_ERROR(Verify(module));
  ASSIGN_OR_RETURN(pjrt::Executable executable,
                   pjrt::Executable::Compile(client, ExportHlo(module), {.num_replicas = 1}));
  return MeshExecutor(client, std::move(executable), Mesh({{"x", 1}}), SignatureOf(module));
}

}  // namespace minka
