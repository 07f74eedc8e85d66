#include "minka/tools/measured_costs.h"

#include "fmt/format.h"
#include "minka/base/status.h"
#include "minka/profiler/profile.h"
#include "minka/tools/child_process.h"
#include "minka/tools/command.h"

namespace minka {

absl::Status AddMeasuredCosts(const std::string& plugin_path, PlanRequest& request) {
  if (request.cost_model.kind != CostModelKind::kMeasured || request.cost_model.calibration) {
    return absl::OkStatus();
  }
  const int num_devices = request.cluster.num_devices();
  ReportPhase("profile");
  ASSIGN_OR_RETURN(const LocalDevices devices,
                   OpenLocalDevices({.num_devices = num_devices, .plugin_path = plugin_path}));
  ASSIGN_OR_RETURN(
      request.cost_model.calibration,
      LoadOrProfile(devices, {.num_devices = num_devices,
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
