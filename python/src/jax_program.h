// A plan for programs that JAX runs.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "executable.h"
#include "minka/base/platform.h"

namespace minka {

// An array as the program takes or gives it, all of it.
struct SplitArray {
  std::vector<int64_t> shape;                  // a batch in micro-batches is [m, B / m, ..]
  std::vector<std::vector<std::string>> axes;  // by dimension: of the mesh, major to minor
};

// What a step is planned to be, compiled nowhere: no plugin is loaded.
class JaxProgram {
 public:
  // `cluster`: a preset ("p3.16xlarge:8") or a file, see Cluster; empty: virtual devices of this
  // machine. `platform`: of JAX's devices; nullopt: of the cluster's. Of the request, what says
  // where it runs is not read.
  static absl::StatusOr<std::unique_ptr<JaxProgram>> Create(const ParallelizeRequest& request,
                                                            const std::string& cluster,
                                                            std::optional<Platform> platform);

  // Serialised HloModuleProto: the program of one device, which counts devices as partitions
  // (over_partitions.h), in the order of the mesh.
  const std::string& hlo() const { return hlo_; }
  // Major first.
  std::vector<std::pair<std::string, int64_t>> mesh() const;
  const std::vector<SplitArray>& parameters() const { return parameters_; }
  const std::vector<SplitArray>& results() const { return results_; }

  std::string PlanJson() const { return PlanToJson(plan_, prepared_.module); }
  std::string PlanTable() const { return minka::PlanTable(prepared_, plan_); }
  // Plan and program, for people.
  absl::Status Dump(const std::string& folder) const;

 private:
  JaxProgram() = default;

  Step prepared_;
  Plan plan_;
  Module local_;
  std::string hlo_;
  std::vector<SplitArray> parameters_, results_;
};

}  // namespace minka
