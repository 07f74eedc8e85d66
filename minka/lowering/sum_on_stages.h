// Rewrites sums over several stages, so that each stage sums its own terms before it sends them.
#pragma once

#include <span>

#include "minka/ir/step.h"

namespace minka {

// `stage_of`: by instruction of the entry computation; -1: wherever it is read. What is rewritten:
//
//   trees of scalars behind the loop over micro-batches (a global norm; whether all is finite):
//     ((a + b) + c) + d, a and c of one stage, b and d of another  ->  (a + c) + (b + d)
//   sums over micro-batches (gradients of tied weights), so that one is sent for each stage and
//   step
//     sum(a + b), a and b of different stages  ->  sum(a) + sum(b)
//
// Marks stay on what is complete. Sums of one stage stay as they are.
Step SumOnStages(const Step& step, std::span<const int> stage_of);

}  // namespace minka
