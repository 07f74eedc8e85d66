// The ways to run the layers of a step that a search over stages chooses from.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "minka/planner/inter_op/stage_search.h"
#include "minka/sharding/mesh.h"

namespace minka {

// A mesh on hosts of a kind (PlanRequest::HostsOf).
struct MeshOfKind {
  int kind = 0;
  Mesh mesh;
  bool operator==(const MeshOfKind&) const = default;
};

// Where a way of the search over stages runs.
struct MeshOfWay {
  MeshOfKind on;
  double memory_price = 0;  // see StageRequest

  const Mesh& mesh() const { return on.mesh; }
};

// A way in which layers cannot be planned.
struct RefusedWay {
  MeshOfWay where;
  absl::Status why;
};

struct LayerWays {
  std::vector<StageWay> ways;
  std::vector<MeshOfWay> meshes;  // by way
  std::vector<RefusedWay> refused;
};

// What a search over stages chose from. Without meshes no layer could be planned by itself, and it
// went by the work of layers alone.
struct SearchedLayers {
  LayerWays ways;
  StageSearchInput input;
};

}  // namespace minka
