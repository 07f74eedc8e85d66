// The measured cost model needs a profile of this machine, made by a plugin.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "minka/driver/plan_step.h"

namespace minka {

// Where the request asks for measured costs: an earlier profile of this machine, else a new one.
// Loads a plugin then, so call it in a child process.
absl::Status AddMeasuredCosts(const std::string& plugin_path, PlanRequest& request);

}  // namespace minka
