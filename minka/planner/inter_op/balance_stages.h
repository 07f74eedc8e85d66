// Which layers are a stage where the meshes are given: by what each layer takes on one device, as
// if every device of a stage did its even part.
#pragma once

#include <vector>

namespace minka {

// The stage of each layer, consecutive, so that the longest time of a stage is least. `load` by
// layer, `rates` what each stage does of it in a unit of time; as many layers as stages at least.
std::vector<int> BalanceLayers(const std::vector<double>& load, const std::vector<double>& rates);

}  // namespace minka
