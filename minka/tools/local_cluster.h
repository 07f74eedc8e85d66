// What only this machine's devices can say of a request: the measured cost model needs a profile of
// them, and the cluster local-cuda what they are.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "minka/driver/plan_step.h"
#include "minka/tools/planning_flags.h"

namespace minka {

// Does it take a plugin to plan so? Plugins are loaded in child processes alone.
bool NeedsLocalDevices(const PlanningFlags& flags);

// Of local or local-cuda.
Platform PlatformOfLocal(std::string_view cluster);

// InvalidArgument, naming the command, for a cluster that is not this machine.
absl::Status CheckRunsLocally(std::string_view command, const PlanningFlags& flags);

// Fills in the GPUs of local-cuda, whose memory is the limit where the request has none. Refuses
// the cluster's rates for GPUs of which none are known. Loads a plugin for that, so call it in a
// child process.
absl::Status AddLocalGpus(const std::string& plugin_path, PlanRequest& request);

// The same, and where measured costs are asked for an earlier profile of this machine, else a new
// one, which takes minutes.
absl::Status AddLocalDevices(const std::string& plugin_path, PlanRequest& request);

}  // namespace minka
