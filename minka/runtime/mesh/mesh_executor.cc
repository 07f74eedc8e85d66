#include "minka/runtime/mesh/mesh_executor.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <utility>

#include "minka/base/check.h"
#include "minka/base/status.h"
#include "minka/ir/hlo_proto.h"
#include "minka/ir/verifier.h"
#include "minka/runtime/mesh/split_array.h"

namespace minka {
namespace {

// Of ascending values, which are not empty.
double Quantile(const std::vector<double>& values, double fraction) {
  const double place = fraction * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (place - static_cast<double>(below)) * (values[above] - values[below]);
}

// Is `cut` the shape with one dimension written as two? The bytes are the same.
bool IsCut(const Shape& shape, const Shape& cut) {
  if (shape.type != cut.type || cut.rank() != shape.rank() + 1) return false;
  for (int dim = 0; dim < shape.rank(); ++dim) {
    std::vector<int64_t> joined = cut.dims;
    joined[dim] *= joined[dim + 1];
    joined.erase(joined.begin() + dim + 1);
    if (joined == shape.dims) return true;
  }
  return false;
}

}  // namespace

RunStatistics StatisticsOf(std::span<const double> us) {
  if (us.empty()) return {};
  std::vector<double> sorted(us.begin(), us.end());
  std::ranges::sort(sorted);
  const auto count = static_cast<double>(sorted.size());
  const double mean = std::accumulate(sorted.begin(), sorted.end(), 0.0) / count;
  double squares = 0;
  for (const double x : sorted) squares += (x - mean) * (x - mean);
  return {.num_runs = static_cast<int>(sorted.size()),
          .mean_us = mean,
          .std_us = sorted.size() < 2 ? 0 : std::sqrt(squares / (count - 1)),
          .lower_quartile_us = Quantile(sorted, 0.25),
          .median_us = Quantile(sorted, 0.5),
          .upper_quartile_us = Quantile(sorted, 0.75)};
}

RunStatistics RunTimes::Warm(int num_warm_up) const {
  return StatisticsOf(std::span(us).subspan(std::min<size_t>(num_warm_up, us.size())));
}

MeshExecutor::MeshExecutor(pjrt::Client client, pjrt::Executable executable, Mesh mesh,
                           MeshSignature signature)
    : client_(std::move(client)),
      executable_(std::move(executable)),
      mesh_(std::move(mesh)),
      signature_(std::move(signature)) {
  MINKA_CHECK(executable_.num_replicas() == mesh_.num_devices(), "{} replicas on {}",
              executable_.num_replicas(), mesh_.ToString());
}

absl::StatusOr<MeshArray> MeshExecutor::Put(int parameter, const Literal& value) const {
  const Shape& shape = signature_.parameters[parameter];
  if (value.shape != shape && !IsCut(value.shape, shape)) {
    return InvalidArgument("parameter {} is {}, given is {}", parameter, ToString(shape),
                           ToString(value.shape));
  }
  const Sharding& sharding = signature_.parameter_shardings[parameter];
  const Shape local = LocalShape(shape, sharding, mesh_);
  MeshArray array;
  for (int device = 0; device < mesh_.num_devices(); ++device) {
    const bool is_whole = sharding.is_replicated();
    const std::string part =
        is_whole ? std::string() : TakePart(*value.bytes, shape, sharding, mesh_, device);
    ASSIGN_OR_RETURN(pjrt::Buffer buffer,
                     client_.CopyFromHost(device, local, is_whole ? *value.bytes : part));
    array.parts.push_back(std::move(buffer));
  }
  return array;
}

absl::StatusOr<Literal> MeshExecutor::Get(int result, const MeshArray& array) const {
  return Gather(signature_.results[result], signature_.result_shardings[result], array);
}

absl::StatusOr<Literal> MeshExecutor::GetParameter(int parameter, const MeshArray& array) const {
  return Gather(signature_.parameters[parameter], signature_.parameter_shardings[parameter], array);
}

absl::StatusOr<Literal> MeshExecutor::Gather(const Shape& shape, const Sharding& sharding,
                                             const MeshArray& array) const {
  std::string whole(static_cast<size_t>(shape.num_bytes()), '\0');
  for (const int64_t device : CoveringDevices(sharding, mesh_)) {
    ASSIGN_OR_RETURN(const std::string part, array.parts[device].ToHost());
    PutPart(part, shape, sharding, mesh_, device, whole);
  }
  return Literal{shape, std::make_shared<const std::string>(std::move(whole))};
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
