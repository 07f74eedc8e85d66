// How often a loop runs, where a counter says so.
#pragma once

#include <cstdint>
#include <optional>

#include "minka/ir/module.h"

namespace minka {

// The number of times that the body of the `while` instruction runs. Recognised: a carried integer
// that starts at a constant, to which the body adds (or from which it subtracts) a constant, and
// that the condition compares with a constant or with a carried value that never changes.
// nullopt: anything else, or a loop that would not end.
std::optional<int64_t> TripCount(const Module& module, const Computation& computation,
                                 InstructionId loop);

}  // namespace minka
