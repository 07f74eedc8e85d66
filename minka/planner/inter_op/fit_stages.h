// How a pipeline is made to fit into the memory of its devices: by what its layers compute again,
// and by plans of its stages that need less.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/ir/step.h"

namespace minka {

struct StageDemands {
  RematChoice remat;  // by layer
  // Of each stage's search, which knows neither the other stages of its mesh nor how many
  // micro-batches it holds at once.
  std::vector<std::optional<int64_t>> limit_bytes;
  auto operator<=>(const StageDemands&) const = default;
};

// A pipeline planned as demanded.
struct DemandedPipeline {
  double step_time_us = 0;
  struct Stage {
    int64_t searched_bytes = 0;  // what its search takes it to need
    int64_t peak_bytes = 0;      // what its mesh needs
    double busy_us = 0;          // of a step
  };
  std::vector<Stage> stages;
};

struct FitOptions {
  std::vector<int64_t> limit_of_mesh;  // in bytes, per device
  std::vector<int> stage_of_layer;
  std::vector<int> mesh_of_stage;
  // As EffectiveRemat gives it for kAll: layers that may be rematerialised. Empty: none but those
  // of the first demands.
  RematChoice candidates;
  // So many limits are tried for each stage, the likeliest ones; unset: until it is known what a
  // stage cannot do without.
  std::optional<int> most_tightenings;
};

using PlanDemanded = std::function<absl::StatusOr<DemandedPipeline>(const StageDemands&)>;

// What to demand for the fastest pipeline found that fits; if none does, for the one that needs
// least. `first` is taken where it fits. Else two ways are tried for all meshes that need too much,
// and for each mesh the faster one of both: searches under smaller limits, and ever more layers
// that are rematerialised, first their cheap operations, then all, from the first layer on, which
// is kept longest.
//
// Limits are fixed parts of what a stage's search takes it to need without one. Where their number
// is not limited, they are tried in an order that does not depend on the limits of the meshes: so
// what is found under some limits, or said to be needed, is found under all larger ones.
//
// Where no plan of a stage keeps its limit, `plan` shall take the one that needs least. The error
// is that of `first`.
absl::StatusOr<StageDemands> FitStages(const StageDemands& first, const FitOptions& options,
                                       const PlanDemanded& plan);

}  // namespace minka
