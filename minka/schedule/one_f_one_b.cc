// 1F1B with a flush (PipeDream-Flush; Narayanan et al., 2021): each mesh runs as many forward tasks
// ahead as there are meshes behind it. Takes as long as GPipe, and keeps one micro-batch in flight
// for each mesh from its own to the last.
#include "minka/schedule/kinds.h"

namespace minka {

constexpr ScheduleKind kOneFOneB = {
    .name = "1f1b",
    .summary = "one forward, one backward in turn; the least memory",
    .tasks_of_mesh =
        [](const PipelineShape& shape, int mesh) {
          return Alternate(OfAllMicroBatches(TaskKind::kForward, mesh, shape),
                           OfAllMicroBatches(TaskKind::kBackward, mesh, shape),
                           shape.num_meshes - 1 - mesh);
        },
    .check = NeedsOneStagePerMesh};

}  // namespace minka
