// The plan of a pipeline: which layers run on which mesh, how each stage runs there, and in which
// order.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/ir/layer_choice.h"
#include "minka/plan/plan.h"

namespace minka {

inline constexpr std::string_view kPipelineMethod = "pipeline";

struct PipelineStagePlan {
  Plan plan;            // of the stage's own step (lowering/stages.h), on its mesh
  int mesh_number = 0;  // stages of equal numbers share a mesh
  // Where the cluster has hosts of several kinds: those that it lies on, in the order in which the
  // cluster names them, and what their devices are called. Empty: there is one kind.
  int kind = 0;
  std::string device;
  // Predicted, for one micro-batch; weight_gradient_us is in backward_us where the schedule does
  // not split them.
  double forward_us = 0, backward_us = 0, weight_gradient_us = 0;
  double apply_us = 0;  // once per step
  // From the end of a forward task until the next stage has what it reads of it, of a backward task
  // until the stage before has.
  double send_forward_us = 0, send_backward_us = 0;
};

// What one mesh sends another one in a step.
struct PlannedTransfers {
  int from_mesh = 0, to_mesh = 0;
  bool per_micro_batch = false;
  int64_t num_values = 0;    // different ones
  int64_t num_messages = 0;  // values on the way, per step
  int64_t bytes = 0;         // of the tiles that they go in, per step
  bool operator==(const PlannedTransfers&) const = default;
};

struct PipelinePlan {
  int schema_version = 1;
  std::string module_hash;  // of the prepared step, before it is cut
  std::map<std::string, std::string> options;
  std::string cost_model;
  double step_time_us = 0;  // predicted
  // No pipeline of these layers in as many micro-batches takes less, of those that
  // planner/inter_op/stage_bound.h covers, and by how much of the step time that is less; empty:
  // not known.
  std::optional<double> lower_bound_us, gap;
  double bubble = 0;  // part of the step in which a mesh is idle, over all meshes
  // All meshes compute with the cores of one machine, so that tasks at once slow each other.
  bool meshes_share_cores = false;
  int64_t peak_memory_bytes = 0;
  MemoryTier memory_tier = MemoryTier::kEstimated;
  double search_seconds = 0;
  int num_micro_batches = 1;
  bool per_micro_batch = false, narrow_sums = false;
  RematChoice remat;
  std::string schedule;
  LayerChoice layers;
  std::vector<int> stage_of_layer;
  std::vector<PipelineStagePlan> stages;
  std::vector<PlannedTransfers> transfers;
  std::vector<std::string> notes;
};

// plan.json of a pipeline, documented in docs/plan.md. `modules` are those of the stages. Reading
// checks everything against itself and the modules.
std::string PipelinePlanToJson(const PipelinePlan& plan, std::span<const Module* const> modules);
absl::StatusOr<PipelinePlan> PipelinePlanFromJson(std::string_view json, const Module& module,
                                                  std::span<const Module* const> modules);

}  // namespace minka
