// The kinds of schedule, each defined in the file of its name, and what they are made with.
#pragma once

#include <vector>

#include "minka/schedule/generate.h"

namespace minka {

extern const ScheduleKind kGpipe;
extern const ScheduleKind kOneFOneB;
extern const ScheduleKind kEagerOneFOneB;
extern const ScheduleKind kInterleaved;
extern const ScheduleKind kZeroBubbleH1;
extern const ScheduleKind kInference;

// One task of a stage for every micro-batch, in their order.
std::vector<Task> OfAllMicroBatches(TaskKind kind, int stage, const PipelineShape& shape);

// So many forward tasks (at most all), then one forward and one backward in turn, then the
// backward tasks that are left.
std::vector<Task> Alternate(const std::vector<Task>& forward, const std::vector<Task>& backward,
                            int num_first);

absl::Status NeedsOneStagePerMesh(const PipelineShape& shape);

}  // namespace minka
