// Which dimensions of the values of a step count the examples of its batch, and which lie within
// one example.
#pragma once

#include <vector>

#include "minka/ir/step.h"

namespace minka {

// By instruction of the entry computation and result, followed from the batch inputs, and from what
// other stages send, to all that is made of them: along the factors of the rules of sharding, and
// within examples along dimensions that are cut, padded or slid over. What the apply phase makes
// has no dimensions within examples. What gathers and loops take apart otherwise is lost.
std::vector<std::vector<ExampleDims>> FindExampleDims(const Step& step);

}  // namespace minka
