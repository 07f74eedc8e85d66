// Finds the schedule of a pipeline where none is named.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/driver/pipeline_planner.h"

namespace minka {

// What another schedule would make of the stages of a pipeline, by simulation.
struct SchedulePromise {
  Assignment assignment;
  double step_time_us = 0;
};

// Those that are tried beside the first one; none for a pipeline of one mesh, or that trains
// nothing.
std::span<const std::string_view> SchedulesBeside(std::string_view first, int num_meshes);

// By each of these that can have the pipeline's stages, the fastest first.
absl::StatusOr<std::vector<SchedulePromise>> Promises(PipelinePlanner& planner,
                                                      const FittedPipeline& found);

// Is a step of another schedule so much shorter that it is taken instead?
bool IsWorthwhile(double step_time_us, double instead_of_us);

// "not planned: estimated to take 3 ms".
std::string NotPlanned(double step_time_us);

// Not chosen yet: why it is not, if another one is.
TriedSchedule TriedBy(const PlannedPipeline& planned, const PlanRequest& request);

// What is shown of the schedules looked at, the first one first, of which `chosen` was taken:
// nothing where no other one was worth planning.
std::vector<TriedSchedule> Shown(std::vector<TriedSchedule> tried, const std::string& chosen);

// Where the meshes are given: the pipeline as it is or, with the same stages on the same meshes, by
// a schedule that makes it faster and fits into the memory limit. What promises to be faster is
// planned, and reshaped where it does not fit.
absl::StatusOr<PlannedPipeline> SearchSchedules(PipelinePlanner& planner,
                                                const PlanRequest& request, FittedPipeline found);

}  // namespace minka
