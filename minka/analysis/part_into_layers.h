// Layers by their number, for steps without boundaries between them, or with others than are asked
// for.
#pragma once

#include <vector>

#include "minka/analysis/layers.h"
#include "minka/ir/step.h"

namespace minka {

// Parts the forward pass into `num_layers` layers of about equal compute, so that few bytes go from
// layer to layer; into fewer where it has fewer operations (0: none that depends on inputs and
// weights).
// Precondition: num_layers >= 1.
//
// Heavy operations (those with FLOPs, or all where these are too few) stand in the order of the
// program, each followed by what else depends on it and on none behind it. A dynamic program cuts
// this order. Of the cuts that leave each layer within a tolerance of equal work (60 %, or the
// least multiple with which there are any) it takes those with the fewest bytes, of these the most
// even ones. A value crosses every cut between the operation that makes it and its last forward
// reader, and so does its gradient where there is one; parameters cross none, nor does what inputs
// and keys alone give, which is made wherever it is read. No cut lies within what the backward pass
// computes again as a whole. Then all other operations move to the layers in which the bytes are
// least (layer_cut.h).
//
// (Zheng et al., Alpa, 2022, section 5.2 and cluster_jaxpr_by_cost, whose bound counts from above
// only, and which counts a value at the cuts in front of the layers that read it.)
Layers PartIntoLayers(const Step& step, const std::vector<Phase>& phases, int num_layers);

}  // namespace minka
