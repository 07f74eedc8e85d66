// ZB-H1 (Qi et al., 2023, "Zero Bubble Pipeline Parallelism"): 1F1B whose backward tasks are split.
// Other meshes wait for the gradients of activations only; the gradients of weights are put off, on
// mesh i by i micro-batches, into the time in which the pipeline drains. No mesh keeps more
// micro-batches in flight than the first one of 1F1B.
#include <vector>

#include "minka/schedule/kinds.h"

namespace minka {
namespace {

std::vector<Task> ZeroBubbleTasks(const PipelineShape& shape, int mesh) {
  const std::vector<Task> weights = OfAllMicroBatches(TaskKind::kWeightGradient, mesh, shape);
  std::vector<Task> tasks;
  size_t next = 0;
  int num_backward = 0;
  for (const Task& task : Alternate(OfAllMicroBatches(TaskKind::kForward, mesh, shape),
                                    OfAllMicroBatches(TaskKind::kBackward, mesh, shape),
                                    shape.num_meshes - 1 - mesh)) {
    tasks.push_back(task);
    if (task.kind != TaskKind::kBackward) continue;
    if (++num_backward > mesh) tasks.push_back(weights[next++]);
  }
  tasks.insert(tasks.end(), weights.begin() + static_cast<std::ptrdiff_t>(next), weights.end());
  return tasks;
}

}  // namespace

constexpr ScheduleKind kZeroBubbleH1 = {
    .name = "zero-bubble-h1",
    .summary = "1f1b with gradients of weights put off; a third of its waiting",
    .splits_backward = true,
    .tasks_of_mesh = ZeroBubbleTasks,
    .check = NeedsOneStagePerMesh};

}  // namespace minka
