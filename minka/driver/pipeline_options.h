// What a pipeline is asked for.
#pragma once

#include <string>
#include <vector>

#include "minka/sharding/mesh.h"

namespace minka {

// Enough for stages of about equal times where layers are not.
inline constexpr int kLayersPerStage = 4;

// What is left out is chosen.
struct PipelineOptions {
  // 0: the layers between the boundaries that the step marks or that are found in it; where there
  // are none, kLayersPerStage for each of the stages asked for, or as many as stage_of_layer has.
  // Else so many, of about equal compute, whatever the boundaries (analysis/part_into_layers.h).
  int num_layers = 0;
  // 0: as many as are predicted to be fastest, one on each mesh.
  int num_stages = 0;
  // The stage of every layer, never falling, from 0 on, without gaps. Empty: stages of equal work
  // per device.
  std::vector<int> stage_of_layer;
  // Consecutive stages lie on them, round and round. Empty: each mesh in its fastest shape.
  std::vector<Mesh> meshes;
  // Without meshes: the number of devices of each. Empty: all of the cluster's, one mesh for each
  // stage, in equal parts or, where stage_of_layer is empty, in powers of two, whatever is
  // predicted to be faster (balance_stages.h).
  std::vector<int> submeshes;
  std::string schedule = "1f1b";  // see ScheduleKinds
  // By stage, pins that hold there beside those of the search (SearchOptions::pins); or empty.
  std::vector<std::vector<std::string>> stage_pins;
  bool operator==(const PipelineOptions&) const = default;
};

}  // namespace minka
