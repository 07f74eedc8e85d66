// When two stages are the same problem.
#pragma once

#include <cstdint>

#include "minka/ir/step.h"

namespace minka {

// Equal for stages of equal layers: what a search looks at, without pins.
uint64_t StageHash(const Step& step);

// Equal also where equal operations stand in another order, or parameters and results do: other
// plans, which take the same and hold about the same.
uint64_t OrderFreeStageHash(const Step& step);

}  // namespace minka
