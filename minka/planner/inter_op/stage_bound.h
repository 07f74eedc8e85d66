// What no pipeline of a step can be faster than, so that it can be said how good the one found is.
#pragma once

#include <optional>
#include <vector>

#include "minka/planner/inter_op/stage_search.h"

namespace minka {

// No pipeline takes less of a step that runs these layers in stages, one on each mesh, on meshes of
// the ways that FindStages looks at, each layer as its searches may run it there, kept or
// recomputed, by any schedule that holds no fewer micro-batches than input.in_flight. Nothing where
// it is not known what layers take at least.
//
// A stage takes no less than its layers together. Of what memory costs their searches
// (StageWay::charged) it may be relieved as far as the limit reaches, for any price: Lagrangian
// relaxation (Geoffrion, 1974), layer by layer, the limit of each stage relaxed. And a stage begins
// when the first micro-batch has come through those in front of it, of which each device of n does
// an n-th of what it takes on one device, at least. (Where meshes share cores, stages take turns.)
// Over partings into stages a dynamic program from the end finds the least; what is sent takes no
// time.
//
// Left out is what layers count more than once: borders that layers of one stage would not write
// and read, latencies of collectives that they would combine, versions that several readers share,
// and in memory what several of them are given. Of a border within a stage, layers count its
// activation and its gradient once each, the stage the activation alone, but for every micro-batch
// that it holds.
//
// Precondition: as FindStages.
std::optional<double> LeastStepUs(const std::vector<StageWay>& ways, const StageSearchInput& input);

}  // namespace minka
