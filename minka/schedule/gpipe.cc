// GPipe (Huang et al., 2019): all forward tasks, then all backward tasks. Keeps all micro-batches
// in flight.
#include "minka/schedule/kinds.h"

namespace minka {

constexpr ScheduleKind kGpipe = {.name = "gpipe",
                                 .summary = "all forward, then all backward",
                                 .tasks_of_mesh =
                                     [](const PipelineShape& shape, int mesh) {
                                       return Alternate(
                                           OfAllMicroBatches(TaskKind::kForward, mesh, shape),
                                           OfAllMicroBatches(TaskKind::kBackward, mesh, shape),
                                           shape.num_micro_batches);
                                     },
                                 .check = NeedsOneStagePerMesh};

}  // namespace minka
