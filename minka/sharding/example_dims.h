// Which dimensions of the values of a step count the examples of its batch, and which lie within
// one example.
#pragma once

#include <vector>

#include "minka/ir/step.h"

namespace minka {

// By instruction of the entry computation and result, followed along the factors of the rules of
// sharding from the batch inputs, and from what other stages send, to all that is made of them.
// What the apply phase makes has no dimensions within examples.
std::vector<std::vector<ExampleDims>> FindExampleDims(const Step& step);

}  // namespace minka
