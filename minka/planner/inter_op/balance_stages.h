// Which layers are a stage, and how many devices it gets, before anything is planned: by what each
// layer takes on one device, as if every device of a stage did its even part.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "minka/cluster/cluster.h"

namespace minka {

// The stage of each layer, consecutive, so that the largest load per device is least. `load` by
// layer, `sizes` the devices of each stage; as many layers as stages at least.
std::vector<int> BalanceLayers(const std::vector<double>& load, const std::vector<int>& sizes);

// Which number of devices each stage gets: powers of two that are all devices of the cluster
// together and lie each within a host, or are whole ones. By number of stages, two at least: the
// sizes and layers of which the largest load per device is least. Those of equal sizes are left
// out, as are clusters of many devices and steps of many layers, for which that would take long.
std::map<int, std::vector<int>> BalanceSubmeshes(const std::vector<double>& load,
                                                 const Cluster& cluster);

// Of a step of stages of the sizes with balanced layers: the way of one micro-batch through all
// stages, and the largest stage for every other one.
double EstimateStepTime(const std::vector<double>& load, const std::vector<int>& sizes,
                        int64_t num_micro_batches);

}  // namespace minka
