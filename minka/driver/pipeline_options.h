// What a pipeline is asked for.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "minka/ir/layer_choice.h"
#include "minka/planner/intra_op/intra_op.h"
#include "minka/sharding/mesh.h"

namespace minka {

// Enough for stages of about equal times where layers are not.
inline constexpr int kLayersPerStage = 4;
// Instead of a schedule's name: the one that is predicted to be fastest.
inline constexpr std::string_view kChooseSchedule = "auto";

// What is asked of a stage's search besides.
struct StageSearchOptions {
  std::vector<std::string> pins;       // beside those of the search (SearchOptions::pins)
  std::optional<SearchLimits> limits;  // instead of those of the search
  bool operator==(const StageSearchOptions&) const = default;
};

// What is left out is chosen.
struct PipelineOptions {
  // Where boundaries are neither marked nor found: kLayersPerStage for each of the stages asked
  // for, or as many as stage_of_layer has.
  LayerChoice layers;
  // 0: as many as are predicted to be fastest, one on each mesh.
  int num_stages = 0;
  // The stage of every layer, never falling, from 0 on, without gaps. Empty: stages of equal work
  // per device.
  std::vector<int> stage_of_layer;
  // Consecutive stages lie on them, round and round. Empty: each mesh in its fastest shape.
  std::vector<Mesh> meshes;
  // Without meshes: the number of devices of each. Empty: all of the cluster's, one mesh for each
  // stage, in equal parts or in powers of two, whatever is predicted to be faster
  // (planner/inter_op/stage_search.h).
  std::vector<int> submeshes;
  // Of either: the kind of hosts of each (PlanRequest::HostsOf). Empty: as many as there are places
  // for on the hosts of the first kind, then on those of the next.
  std::vector<int> kinds;
  // With neither, where hosts are of several kinds: what part of the work those of each kind get,
  // as shares of their sum, above 0. Empty: whatever is fastest.
  std::vector<double> shares;
  // With neither: the numbers of devices that a mesh may have. Empty: powers of two, and equal
  // parts of the cluster.
  std::vector<int> submesh_choices;
  std::string schedule{kChooseSchedule};         // or one of ScheduleKinds
  std::vector<StageSearchOptions> stage_search;  // by stage; or empty
  bool operator==(const PipelineOptions&) const = default;
};

// Does anything say on what meshes stages run?
inline bool GivesMeshes(const PipelineOptions& options) {
  return !options.meshes.empty() || !options.submeshes.empty();
}

}  // namespace minka
