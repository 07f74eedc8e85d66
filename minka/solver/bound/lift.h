// Carries what was learned of a shortened problem over to the long one's core.
#pragma once

#include <vector>

#include "minka/solver/bound/message_passing.h"
#include "minka/solver/reduce/reduce.h"
#include "minka/solver/reduce/repeated_layers.h"

namespace minka {

// Messages of the long core (as `long_graph` numbers them): every node gets those that its short
// node gets from the same side. Zero where the cores do not match.
std::vector<double> LiftMessages(const ShortenedProblem& shortened,
                                 const Reduction& short_reduction,
                                 const MessagePassing& short_messages,
                                 const Reduction& long_reduction, const CoreGraph& long_graph);

// The long problem's choice: every cut layer does what the short problem does in one of the layers
// around the cut, whichever is cheapest. `short_choice` is a choice of shortened.problem().
std::vector<int32_t> LiftChoice(const SolverProblem& problem, const ShortenedProblem& shortened,
                                const std::vector<int32_t>& short_choice);

}  // namespace minka
