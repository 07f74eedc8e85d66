// Interleaved 1F1B (Narayanan et al., 2021): v stages on each mesh. Micro-batches go through in
// groups of as many as there are meshes, one stage of the mesh after the other, so that filling and
// draining takes 1 / v of the time of 1F1B. Transfers are v times as many.
#include <algorithm>
#include <vector>

#include "minka/base/status.h"
#include "minka/schedule/kinds.h"

namespace minka {
namespace {

std::vector<Task> InGroups(TaskKind kind, const PipelineShape& shape, int mesh) {
  std::vector<Task> tasks;
  for (int group = 0; group < shape.num_micro_batches; group += shape.num_meshes) {
    for (int i = 0; i < shape.stages_per_mesh; ++i) {
      const int chunk = kind == TaskKind::kForward ? i : shape.stages_per_mesh - 1 - i;
      for (int batch = group; batch < group + shape.num_meshes; ++batch) {
        tasks.push_back({kind, chunk * shape.num_meshes + mesh, batch});
      }
    }
  }
  return tasks;
}

std::vector<Task> InterleavedTasks(const PipelineShape& shape, int mesh) {
  const int behind = shape.num_meshes - 1 - mesh;
  const int num_first = 2 * behind + (shape.stages_per_mesh - 1) * shape.num_meshes;
  return Alternate(InGroups(TaskKind::kForward, shape, mesh),
                   InGroups(TaskKind::kBackward, shape, mesh),
                   shape.stages_per_mesh == 1 ? behind : num_first);
}

absl::Status DividesGroups(const PipelineShape& shape) {
  if (shape.num_micro_batches % shape.num_meshes == 0) return absl::OkStatus();
  return InvalidArgument("{} micro-batches are no multiple of the {} meshes",
                         shape.num_micro_batches, shape.num_meshes);
}

}  // namespace

constexpr ScheduleKind kInterleaved = {
    .name = "interleaved-1f1b",
    .summary = "1f1b with several stages on each mesh; less waiting, more transfers",
    .tasks_of_mesh = InterleavedTasks,
    .check = DividesGroups};

}  // namespace minka
