// The schedules by name. Each is a file of its own that says what every mesh does; what is common
// to them stands in generate.cc.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/schedule/schedule.h"

namespace minka {

struct ScheduleKind {
  std::string_view name, summary;
  bool trains = true, splits_backward = false;
  // The tasks of a mesh in their order, without `apply`. What meshes hold must be settled by twice
  // as many micro-batches as there are stages, or be all (see MostHeldBy).
  std::vector<Task> (*tasks_of_mesh)(const PipelineShape& shape, int mesh) = nullptr;
  // Not OK: the shape that it cannot do, and what it needs. Multiples of the number of meshes are
  // micro-batches that every kind can have.
  absl::Status (*check)(const PipelineShape& shape) = nullptr;
};

// All, by name: gpipe, 1f1b, eager-1f1b, interleaved-1f1b, zero-bubble-h1, inference.
std::span<const ScheduleKind> ScheduleKinds();

// Has it backward passes? Not one that there is not.
bool Trains(std::string_view schedule);

// Are gradients of weights tasks of their own by it? Not by one that there is not.
bool SplitsBackward(std::string_view schedule);

// InvalidArgument names an unknown schedule and those that there are, or what the shape lacks. What
// it returns passes Verify.
absl::StatusOr<Schedule> MakeSchedule(std::string_view name, const PipelineShape& shape);

// MostHeld of that schedule, without making it where fewer micro-batches say it. Errors as of
// MakeSchedule.
absl::StatusOr<std::vector<MicroBatchesHeld>> MostHeldBy(std::string_view name,
                                                         const PipelineShape& shape);

// The same schedule of fewer micro-batches, where its meshes hold as many at once: enough to know
// what memory it needs. Itself where there are few, or it holds all.
Schedule ShortestAlike(const Schedule& schedule);

}  // namespace minka
