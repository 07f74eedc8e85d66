#include "minka/driver/start_session.h"

#include <utility>

#include "minka/base/status.h"
#include "minka/driver/hosts.h"
#include "minka/runtime/worker/worker_pipeline_executor.h"

namespace minka {
namespace {

absl::StatusOr<std::shared_ptr<Workers>> ConnectToHosts(const std::vector<int>& num_devices,
                                                        const std::string& path,
                                                        Platform platform) {
  ASSIGN_OR_RETURN(Hosts hosts, ReadHosts(path));
  if (hosts.workers.size() < num_devices.size()) {
    return InvalidArgument("{} names {} workers; the plan has {} meshes", path,
                           hosts.workers.size(), num_devices.size());
  }
  hosts.workers.resize(num_devices.size());
  for (size_t mesh = 0; mesh < num_devices.size(); ++mesh) {
    RemoteWorker& worker = hosts.workers[mesh];
    if (worker.num_devices < num_devices[mesh]) {
      return InvalidArgument("{}: the worker at {} has {} devices; mesh {} has {}", path,
                             worker.address, worker.num_devices, mesh, num_devices[mesh]);
    }
    worker.num_devices = num_devices[mesh];
  }
  return Workers::Connect({.workers = std::move(hosts.workers),
                           .platform = platform,
                           .token = std::move(hosts.token),
                           .version = MINKA_VERSION});
}

}  // namespace

absl::StatusOr<std::unique_ptr<Session>> StartWorkers(const std::vector<int>& num_devices,
                                                      const WorkerOptions& options,
                                                      Platform platform) {
  absl::StatusOr<std::shared_ptr<Workers>> workers =
      !options.hosts_path.empty() ? ConnectToHosts(num_devices, options.hosts_path, platform)
                                  : Workers::StartLocal({.num_devices = num_devices,
                                                         .cpus = options.cpus,
                                                         .binary = options.binary,
                                                         .platform = platform,
                                                         .plugin = options.plugin_path,
                                                         .version = MINKA_VERSION});
  RETURN_IF_ERROR(workers.status());
  return std::make_unique<WorkersSession>(*std::move(workers));
}

absl::StatusOr<std::unique_ptr<Session>> StartSession(const std::vector<int>& num_devices,
                                                      const std::optional<WorkerOptions>& workers,
                                                      LazyLocalDevices& devices) {
  if (workers) return StartWorkers(num_devices, *workers, devices.kind());
  ASSIGN_OR_RETURN(LocalDevices opened, devices.Get());
  return std::make_unique<LocalSession>(std::move(opened));
}

}  // namespace minka
