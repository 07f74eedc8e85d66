// What the steps of traced models read in tests.
#pragma once

#include <cstdint>

#include "minka/frontend/trace.h"
#include "minka/oracle/oracle.h"

namespace minka {

// Initial state by the seed, another batch for each step; with equal slices, a batch is its first
// slice so many times over. The step must live as long.
StepInputs InputsOf(const TracedStep& traced, uint64_t seed, int num_equal_slices = 1);

}  // namespace minka
