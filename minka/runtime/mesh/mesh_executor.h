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

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "minka/ir/literal.h"
#include "minka/program/signature.h"
#include "minka/runtime/pjrt/client.h"
#include "minka/runtime/pjrt/executable.h"
#include "minka/sharding/mesh.h"
#include "minka/sharding/sharding.h"

namespace minka {

// One array over the devices of a mesh, a part on each; move-only.
struct MeshArray {
  std::vector<pjrt::Buffer> parts;  // by device of the mesh
};

// Wall times of equal runs, in microseconds; all zero where there are none.
struct RunStatistics {
  int num_runs = 0;
  double mean_us = 0, std_us = 0;
  double lower_quartile_us = 0, median_us = 0, upper_quartile_us = 0;  // linear between runs
};
RunStatistics StatisticsOf(std::span<const double> us);

// Wall times of runs, each from the launch until all devices are done.
struct RunTimes {
  std::vector<double> us;
  // Without the first `num_warm_up` runs, in which memory is touched for the first time.
  RunStatistics Warm(int num_warm_up) const;
};

class MeshExecutor {
 public:
  // Device i of the mesh is device i of the client.
  MeshExecutor(pjrt::Client client, pjrt::Executable executable, Mesh mesh,
               MeshSignature signature);

  // Copies a whole array to the devices as the parameter wants it; InvalidArgument for another
  // shape, unless it only has the batch in one dimension where the parameter has micro-batches and
  // their examples.
  absl::StatusOr<MeshArray> Put(int parameter, const Literal& value) const;
  // The whole array of a result; of what lies as the parameter does.
  absl::StatusOr<Literal> Get(int result, const MeshArray& array) const;
  absl::StatusOr<Literal> GetParameter(int parameter, const MeshArray& array) const;

  // Arguments by parameter. Those that the program aliases to results are consumed. Waits for all
  // devices.
  absl::StatusOr<std::vector<MeshArray>> Run(std::span<MeshArray* const> arguments);

  const pjrt::Executable& executable() const { return executable_; }
  const pjrt::Client& client() const { return client_; }
  const Mesh& mesh() const { return mesh_; }
  const MeshSignature& signature() const { return signature_; }
  const RunTimes& times() const { return times_; }
  // Forgets times and measured peaks.
  void ResetMeasurements();
  // The largest peak of any device since ResetMeasurements, see pjrt::Client::peak_bytes.
  int64_t measured_peak_bytes() const;

 private:
  absl::StatusOr<Literal> Gather(const Shape& shape, const Sharding& sharding,
                                 const MeshArray& array) const;

  pjrt::Client client_;
  pjrt::Executable executable_;
  Mesh mesh_;
  MeshSignature signature_;
  RunTimes times_;
};

// A module compiled for one device, without a plan.
absl::StatusOr<MeshExecutor> CompileForOneDevice(const Module& module, const pjrt::Client& client);

}  // namespace minka
