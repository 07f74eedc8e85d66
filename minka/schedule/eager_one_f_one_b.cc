// Eager 1F1B ("overlap-friendly" in Alpa; Zhuang et al., 2023): twice as many forward tasks ahead
// as 1F1B, so that a transfer between two meshes takes place while both work on other
// micro-batches. Nearly twice as many are in flight.
#include "minka/schedule/kinds.h"

namespace minka {

constexpr ScheduleKind kEagerOneFOneB = {
    .name = "eager-1f1b",
    .summary = "1f1b with more forward tasks ahead, which hides transfers",
    .tasks_of_mesh =
        [](const PipelineShape& shape, int mesh) {
          return Alternate(OfAllMicroBatches(TaskKind::kForward, mesh, shape),
                           OfAllMicroBatches(TaskKind::kBackward, mesh, shape),
                           2 * (shape.num_meshes - 1 - mesh));
        },
    .check = NeedsOneStagePerMesh};

}  // namespace minka
