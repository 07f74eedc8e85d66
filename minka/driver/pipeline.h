// Plans and compiles a step for several meshes: layers become stages, each on a mesh of its own,
// and micro-batches flow through them.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/driver/plan_step.h"
#include "minka/ir/step.h"
#include "minka/lowering/stages.h"
#include "minka/plan/plan.h"
#include "minka/program/pipeline_program.h"
#include "minka/schedule/schedule.h"

namespace minka {

// What a pipeline is asked for.
struct PipelineRequest {
  PlanRequest planning;             // micro-batches, rematerialisation, cost model, search
  std::vector<int> stage_of_layer;  // never falling, from 0 on, without gaps
  std::vector<Mesh> meshes;         // consecutive stages lie on them, round and round
  std::string schedule = "1f1b";
};

struct PlannedPipeline {
  Step prepared;  // in micro-batches, before it is cut
  StagedStep staged;
  Schedule schedule;
  std::vector<StagePlan> stages;
};

absl::StatusOr<PlannedPipeline> PlanPipeline(const Step& step, const PipelineRequest& request);

absl::StatusOr<PipelineProgram> LowerPipeline(const PlannedPipeline& planned);

}  // namespace minka
