// Rematerialisation: the backward pass computes forward values again instead of keeping them.
#pragma once

#include "absl/status/statusor.h"
#include "minka/ir/step.h"

namespace minka {

// The choice with one entry per layer (analysis/structure.h): none for layers of which nothing
// would be computed again, such as what lies behind the last boundary: its backward pass begins at
// once. Empty if nothing is chosen for any layer.
//
// InvalidArgument for a choice with another number of layers than the step has, for a step without
// a loss or boundaries, and for one of which no layer can be rematerialised. Precondition: as
// Rematerialize.
absl::StatusOr<RematChoice> EffectiveRemat(const Step& step, const RematChoice& choice);

// Backward operations of a layer that is not kept read copies of the forward operations that they
// need, computed from the values that enter the layer and, for kDots, from results of its dots,
// convolutions, sorts and control flow. These values and the gradients that arrive from the layers
// above pass one barrier (lanes of lowering/join_barriers.h, the first one marked as remat_region):
// it keeps the copies apart from the originals and from starting before the gradients are there.
// What is computed stays the same, bit for bit. What waits for a layer's gradients so is part of
// its backward pass, also where the step's structure has it in that of a higher one.
//
// Values that depend on state alone, that another layer or the step's results read anyway, and
// stateful random bits are kept always. Instructions keep their order, but what reads copies comes
// behind them, and weights' gradients come as soon as the gradients that they read: they are the
// last to read a layer's copies.
//
// Errors as EffectiveRemat. Precondition: calls inlined, barriers single-valued, no micro-batches
// yet.
absl::StatusOr<Step> Rematerialize(const Step& step, const RematChoice& choice);

}  // namespace minka
