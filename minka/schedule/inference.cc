// Forward tasks only.
#include "minka/schedule/kinds.h"

namespace minka {

constexpr ScheduleKind kInference = {
    .name = "inference",
    .summary = "forward only",
    .trains = false,
    .tasks_of_mesh = [](const PipelineShape& shape,
                        int mesh) { return OfAllMicroBatches(TaskKind::kForward, mesh, shape); },
    .check = NeedsOneStagePerMesh};

}  // namespace minka
