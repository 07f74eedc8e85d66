// The plan of a pipeline as people read it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "minka/ir/shape.h"
#include "minka/ir/step.h"
#include "minka/plan/pipeline_plan.h"
#include "minka/schedule/schedule.h"
#include "minka/simulator/timeline.h"

namespace minka {

// A value that a stage makes and another one, on another mesh, reads.
struct SentValue {
  std::string name;
  Shape shape;
  int from_mesh = 0, to_mesh = 0;
  std::string sent_as, received_as;  // shardings, each on its mesh
  bool per_micro_batch = false;
};

// What the plan does not say by itself.
struct PipelineContents {
  std::vector<int64_t> weight_bytes;  // by stage, per device: state without that of the optimizer
  std::vector<SentValue> sent;
};

// Headline, a row per stage (layers, mesh, predicted times, memory, weights), what is sent from
// mesh to mesh in which sharding, one step as a grid, notes.
std::string PipelineTable(const Step& prepared, const PipelinePlan& plan, const Schedule& schedule,
                          const Timeline& timeline, const PipelineContents& contents);

// The stage's mesh: "x=2,y=2", or "x=4 of v100-16gb" where devices are of several kinds.
std::string MeshText(const PipelineStagePlan& stage);

// Consecutive layers: "0-3", "4".
std::string LayersText(const std::vector<int>& layers);

// A line per mesh, time from left to right: the last digit of the micro-batch in forward tasks, a
// letter (a for 0) in backward ones, w where gradients of weights are put off, # for the update,
// . where the mesh waits.
std::string TimelineGrid(const Timeline& timeline, int width);

}  // namespace minka
