// How the forward pass of a step is parted into layers.
#pragma once

#include <string>
#include <variant>
#include <vector>

namespace minka {

// At the boundaries that the step marks or that are found in it (analysis/layers.h).
struct MarkedLayers {
  bool operator==(const MarkedLayers&) const = default;
};

// Into so many of about equal compute, whatever the boundaries (analysis/part_into_layers.h).
struct AutoLayers {
  int num_layers = 1;
  bool operator==(const AutoLayers&) const = default;
};

// At what is named (analysis/layer_starts.h).
struct ManualLayers {
  std::vector<std::string> starts;
  bool operator==(const ManualLayers&) const = default;
};

using LayerChoice = std::variant<MarkedLayers, AutoLayers, ManualLayers>;

}  // namespace minka
