// Layers by what they begin with, for who knows the model.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/analysis/layers.h"
#include "minka/ir/step.h"

namespace minka {

// A new layer begins at what each of `starts` names, in their order; what lies in front of all is
// the first layer. A start is the number of a layer of FindLayers, or a glob on names of
// operations, on their names in the model and on names of parameters, which stand for the forward
// operations that read them. Behind it is all that depends on what it names.
//
//   {"2", "4"}                          layers 0-1, 2-3 and 4- between boundaries
//   {"*/h_2/*", "params/h_4/*/kernel"}  the model up to its block 2, blocks 2 and 3, and the rest
//
// What depends on no weights, such as the random bits of a mask, belongs to the first layer that
// reads it. InvalidArgument: a start names nothing of the forward pass, or nothing is left for its
// layer, because all that it names depends on what a later one names.
absl::StatusOr<Layers> LayersFrom(const Step& step, const std::vector<Phase>& phases,
                                  const std::vector<std::string>& starts);

}  // namespace minka
