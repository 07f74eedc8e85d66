// A step of many equal layers, one behind the other, with as few of them as say what each takes.
#pragma once

#include <optional>
#include <vector>

#include "minka/ir/step.h"

namespace minka {

struct FoldedStep {
  Step step;
  // By layer of the whole step: the one of this that is equal to it. Falls where layers repeat.
  std::vector<int> layer;
};

// Layers are equal where their operations are, in their order, and read the same of the layers
// beside them and of what all share. Of a row of such layers, or of several that take turns, the
// first stay: what lies behind the row reads the last of these, and they read what lies behind it.
// So each one that stays is cut (lowering/stages.h), in however many micro-batches and whatever it
// computes again, as those are that it stands for. State and results of others are left out.
//
// nullopt: nothing repeats, or others than the layers beside them read what they make, but for sums
// over layers (a global norm), which lose terms. Precondition: `simplified` is as Simplify
// (prepare.h) gives it.
std::optional<FoldedStep> FoldLayers(const Step& simplified);

}  // namespace minka
