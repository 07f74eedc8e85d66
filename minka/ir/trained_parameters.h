// Which of a step's state is the model, and which keeps the optimizer's books.
#pragma once

#include <vector>

#include "minka/ir/step.h"

namespace minka {

// By parameter number: state that is trained. That is what is named "params/..."; without such
// names, what a gradient is marked of; without marks, all state.
std::vector<bool> TrainedParameters(const Step& step);

// By parameter number: the trained parameter that state belongs to, of the same shape, whose path
// ends its own: "opt_state/0/mu/Dense_0/kernel" to "params/Dense_0/kernel". -1: none.
std::vector<int> OwnersOfState(const Step& step);

}  // namespace minka
