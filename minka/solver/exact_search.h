// Depth-first branch and bound on a core with the bound of its messages: proves the optimum, or
// that there is no choice, where the core is small or the bound nearly tight.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "minka/solver/local_search.h"
#include "minka/solver/message_passing.h"

namespace minka {

struct ExactOutcome {
  // The whole space was covered: `answer`, or else the given cost, is optimal; without either there
  // is no feasible choice.
  bool complete = false;
  // Cheaper than the given cost.
  std::optional<CoreAnswer> answer;
  int64_t work = 0;
};

// Looks for a choice cheaper than `cost_to_beat` (anything feasible if unset) for at most
// `max_work` units.
ExactOutcome SearchExactly(const MessagePassing& messages, std::optional<int64_t> cost_to_beat,
                           int64_t max_work, const std::function<bool()>& stop);

}  // namespace minka
