// The layers of a step: runs of forward operations between boundaries, which the step marks or
// which are found in it.
#pragma once

#include <cstdint>
#include <vector>

#include "minka/ir/step.h"

namespace minka {

struct Layers {
  // One more than the boundaries; 0: the step marks none in its forward pass, and none were found.
  int count = 0;
  // By instruction: the layer of a forward operation that depends on a batch input or key; -1: any
  // other, parameters included.
  std::vector<int> layer;
};

// An operation belongs to the layer behind the last boundary that it depends on. What depends on
// none, such as the random bits of a mask, belongs to the first layer that reads it. `phases` are
// those of ClassifyPhases.
//
// Where the step marks no boundary but names its loss, boundaries are the values through which
// everything goes that inputs and weights contribute to the loss (the residual stream of a
// transformer), of several in a row the last one in front of a dot, convolution or loop. None lies
// within what the backward pass computes again (jax.checkpoint): the backward layers of such a
// region could not fall.
Layers FindLayers(const Step& step, const std::vector<Phase>& phases);

// What is made of state and constants up to so many elements (step counters, learning rates) and of
// inputs belongs to no layer of a pipeline: it is made wherever it is read. Of larger ones
// (weights), it is made once and sent.
inline constexpr int64_t kMaxSharedElements = 16;

// What several ways to find layers ask of an instruction.

// Does it depend on a parameter that is not state (batch, key or constant)?
std::vector<bool> DependsOnMoreThanState(const Step& step);
// Can it stand in a layer: a forward operation that depends on a batch input or key?
std::vector<bool> ForwardOperations(const Step& step, const std::vector<Phase>& phases);
// Is it a forward operation on the way from weights (state of a floating-point type) and inputs to
// the loss?
std::vector<bool> ContributionsToLoss(const Step& step, const std::vector<Phase>& phases);
// The region of a forward operation that the backward pass computes again as a whole
// (jax.checkpoint), -1: of none. A region lies between two of the boundaries that FindLayers finds.
std::vector<int> RecomputedRegions(const Step& step, const std::vector<Phase>& phases);

}  // namespace minka
