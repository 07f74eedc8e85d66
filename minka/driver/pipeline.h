// Plans and compiles a step for several meshes: layers become stages, each on a mesh of its own,
// and micro-batches flow through them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/driver/plan_step.h"
#include "minka/ir/step.h"
#include "minka/lowering/stages.h"
#include "minka/plan/pipeline_plan.h"
#include "minka/program/pipeline_program.h"
#include "minka/schedule/schedule.h"

namespace minka {

// What a pipeline is asked for; what is left out is chosen.
struct PipelineOptions {
  // 0: as many as are predicted to be fastest, on meshes of equal size, one each.
  int num_stages = 0;
  // The stage of every layer, never falling, from 0 on, without gaps. Empty: stages of equal work
  // per device.
  std::vector<int> stage_of_layer;
  // Consecutive stages lie on them, round and round. Empty: the cluster's devices in equal parts,
  // each in its fastest shape.
  std::vector<Mesh> meshes;
  std::string schedule = "1f1b";  // see ScheduleKinds
  bool operator==(const PipelineOptions&) const = default;
};

// A plan with what it says of the step, taken apart.
struct PlannedPipeline {
  Step prepared;  // in micro-batches, before it is cut
  StagedStep staged;
  Schedule schedule;
  PipelinePlan plan;

  std::vector<const Module*> modules() const;
  std::vector<Mesh> meshes() const;  // by mesh number
};

// `planning` says the cluster, micro-batches, rematerialisation (none unless given), costs and how
// each stage is searched; its meshes are not read. Every stage is one search over its forward and
// backward pass and its update.
absl::StatusOr<PlannedPipeline> PlanPipeline(const Step& step, const PlanRequest& planning,
                                             const PipelineOptions& options);

// A plan.json of a pipeline, checked against the step.
absl::StatusOr<PlannedPipeline> LoadPipeline(const Step& step, std::string_view plan_json);

// The number of layers of a step, of which each stage has at least one.
absl::StatusOr<int> NumLayers(const Step& step);

absl::StatusOr<PipelineProgram> LowerPipeline(const PlannedPipeline& planned);

}  // namespace minka
