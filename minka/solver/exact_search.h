// Branch and bound on a whole core with the bound of its messages: proves the optimum, or that
// there is no choice, where the core is small or the bound nearly tight.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "minka/solver/depth_first.h"

namespace minka {

// Looks for a choice cheaper than `cost_to_beat` (anything feasible if unset) for at most
// `max_work` units. Cores with more than 512 nodes are not tried.
ExactOutcome SearchExactly(const MessagePassing& messages, std::optional<int64_t> cost_to_beat,
                           int64_t max_work, const std::function<bool()>& stop);

}  // namespace minka
