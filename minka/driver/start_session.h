// Starts what programs run on: workers, or devices of this process.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/runtime/mesh/local_devices.h"
#include "minka/runtime/pipeline/session.h"

namespace minka {

// A worker for each mesh: children on this machine, or those of a hosts file.
struct WorkerOptions {
  std::string hosts_path;  // see hosts.h; empty: children
  // Of children.
  std::string binary;                  // minka; empty: this program, which is it
  std::vector<std::vector<int>> cpus;  // by mesh, those that its worker may run on; empty: all
  std::string plugin_path;             // empty: searched
};

// Mesh i, of num_devices[i] of the platform, runs on worker i.
absl::StatusOr<std::unique_ptr<Session>> StartWorkers(const std::vector<int>& num_devices,
                                                      const WorkerOptions& options,
                                                      Platform platform = Platform::kCpu);

// The same, of the platform of this process's devices; without workers, all meshes run on these,
// which are opened then.
absl::StatusOr<std::unique_ptr<Session>> StartSession(const std::vector<int>& num_devices,
                                                      const std::optional<WorkerOptions>& workers,
                                                      LazyLocalDevices& devices);

}  // namespace minka
