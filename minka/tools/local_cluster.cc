#include "minka/tools/local_cluster.h"

#include "fmt/format.h"
#include "minka/base/status.h"
#include "minka/profiler/profile.h"
#include "minka/tools/child_process.h"
#include "minka/tools/command.h"

namespace minka {
namespace {

absl::Status AddGpu(const pjrt::Client& client, PlanRequest& request) {
  const std::optional<pjrt::AllocatorBytes> memory = client.allocator_bytes(0);
  const int64_t memory_bytes = memory ? memory->limit_bytes : 0;
  const std::string& name = client.devices().front().kind;
  const bool has_rates = request.cluster.SetGpu(name, memory_bytes);
  if (!has_rates && request.cost_model.kind == CostModelKind::kRoofline) {
    return NotFound(
        "minka knows no rates of a {}; give --cost-model measured, or a cluster file with rates",
        name);
  }
  if (!request.search.memory_limit_bytes && memory_bytes > 0) {
    request.search.memory_limit_bytes = memory_bytes;
  }
  return absl::OkStatus();
}

absl::StatusOr<LocalDevices> Open(const std::string& plugin_path, const PlanRequest& request) {
  return OpenLocalDevices({.num_devices = request.cluster.num_devices(),
                           .plugin_path = plugin_path,
                           .kind = request.cluster.platform()});
}

}  // namespace

Platform PlatformOfLocal(std::string_view cluster) {
  return cluster == kLocalCudaCluster ? Platform::kCuda : Platform::kCpu;
}

absl::Status CheckRunsLocally(std::string_view command, const PlanningFlags& flags) {
  if (flags.cluster == kLocalCluster || flags.cluster == kLocalCudaCluster) return absl::OkStatus();
  return InvalidArgument(
      "{} runs on this machine's devices, --cluster {} or {}; minka plan plans for --cluster {}",
      command, kLocalCluster, kLocalCudaCluster, flags.cluster);
}

bool NeedsLocalDevices(const PlanningFlags& flags) {
  return flags.cost_model == "measured" || flags.cluster == kLocalCudaCluster;
}

absl::Status AddLocalGpus(const std::string& plugin_path, PlanRequest& request) {
  if (request.cluster.name != kLocalCudaCluster) return absl::OkStatus();
  ReportPhase("devices");
  ASSIGN_OR_RETURN(const LocalDevices devices, Open(plugin_path, request));
  return AddGpu(devices.client, request);
}

absl::Status AddLocalDevices(const std::string& plugin_path, PlanRequest& request) {
  const bool is_measured = request.cost_model.kind == CostModelKind::kMeasured &&
                           !request.cost_model.calibration.has_value();
  if (!is_measured) return AddLocalGpus(plugin_path, request);
  ReportPhase("profile");
  ASSIGN_OR_RETURN(const LocalDevices devices, Open(plugin_path, request));
  if (request.cluster.name == kLocalCudaCluster) RETURN_IF_ERROR(AddGpu(devices.client, request));
  ASSIGN_OR_RETURN(
      request.cost_model.calibration,
      LoadOrProfile(devices, {.num_devices = request.cluster.num_devices(),
                              .on_progress = [](std::string_view what, int done, int total) {
                                ReportPart(what);
                                ShowStatus(
                                    fmt::format("profile of this machine, made once: {}/{} {}",
                                                done, total, what));
                              }}));
  ClearStatus();
  return absl::OkStatus();
}

}  // namespace minka
