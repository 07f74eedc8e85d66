// The plan of a pipeline as people read it.
#pragma once

#include <string>
#include <vector>

#include "minka/ir/step.h"
#include "minka/plan/pipeline_plan.h"
#include "minka/schedule/schedule.h"
#include "minka/simulator/timeline.h"

namespace minka {

// Headline, a row per stage (layers, mesh, predicted times, memory, weights), what is sent from
// mesh to mesh, one step as a grid, notes.
std::string PipelineTable(const Step& prepared, const PipelinePlan& plan, const Schedule& schedule,
                          const Timeline& timeline);

// A line per mesh, time from left to right: the last digit of the micro-batch in forward tasks, a
// letter (a for 0) in backward ones, w where gradients of weights are put off, # for the update,
// . where the mesh waits.
std::string TimelineGrid(const Timeline& timeline, int width);

// What a mesh did in a measured step, in microseconds.
struct TracedEvent {
  std::string name, category;
  double begin_us = 0, end_us = 0;
};

// The step for chrome://tracing and Perfetto: a row per mesh, an event per task as it is predicted.
// `measured`, by mesh: the same of a step that ran, below it.
std::string ChromeTrace(const Timeline& timeline,
                        const std::vector<std::vector<TracedEvent>>& measured = {});

}  // namespace minka
