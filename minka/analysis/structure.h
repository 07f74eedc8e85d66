// Where every operation of a step stands: its phase, and the layer that it belongs to.
//
// The forward pass is parted into layers as LayerChoice says. All other operations get theirs from
// it, so that a step that is cut between layers sends as few bytes as can be:
//
//   backward  the layer may only fall along an edge between two of them; least is the sum, over all
//             values, of bytes * (highest - lowest layer among the value's producer and readers);
//             where that is equal, gradients cross rather than forward values
//   apply     the layer of the weights that are updated, which is that of their forward use
//   others    parameters, and what depends on weights alone, stand with their forward use; what
//             depends on constants, keys and integer inputs alone is made wherever it is read
//
// No layer (-1) have: what several layers share (tied weights, a global norm) and what is made
// wherever it is read.
#pragma once

#include "absl/status/statusor.h"
#include "minka/ir/layer_choice.h"
#include "minka/ir/step.h"

namespace minka {

// The step with Instruction::part of its entry computation and Step::num_layers. Precondition:
// calls inlined, barriers single-valued. Everything that rewrites a step keeps what this found;
// only ToModule and MakeStep, between them, lose num_layers. In fewer layers than AutoLayers asks
// for where PartIntoLayers says so; errors are those of LayersFrom.
absl::StatusOr<Step> WithStructure(Step step, const LayerChoice& choice);
// With the layers between boundaries.
Step WithStructure(Step step);

}  // namespace minka
