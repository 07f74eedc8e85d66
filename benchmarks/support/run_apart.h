// A part of a benchmark in a process of its own: its peak memory is its own, and XLA may abort it.
#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace minka {

// What `work` returns in a forked process; `what` names it in errors. The process that calls must
// not have loaded a plugin, whose threads a fork loses. What the child prints to standard output is
// lost.
absl::StatusOr<nlohmann::ordered_json> RunApart(
    const std::string& what, const std::function<absl::StatusOr<nlohmann::ordered_json>()>& work);

}  // namespace minka
