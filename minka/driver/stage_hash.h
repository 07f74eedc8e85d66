// When two stages are the same problem.
#pragma once

#include <cstdint>

#include "minka/ir/step.h"

namespace minka {

// Equal for stages of equal layers: what a search looks at, without pins. Unsigned constants that
// are computed with count by type and shape alone: layers whose random masks differ are equal.
uint64_t StageHash(const Step& step);

// Equal also where equal operations stand in another order, or parameters and results do: their
// plans have other numbers, take as long and hold about as much. Operations are told apart by what
// they are computed from and what is computed from them, not more.
uint64_t OrderFreeStageHash(const Step& step);

}  // namespace minka
