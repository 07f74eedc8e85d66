#include "minka/schedule/schedule.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "minka/base/status.h"

namespace minka {
namespace {

std::vector<Task> AllTasks(const Schedule& schedule) {
  std::vector<Task> tasks;
  for (int stage = 0; stage < schedule.num_stages(); ++stage) {
    for (int batch = 0; batch < schedule.shape.num_micro_batches; ++batch) {
      tasks.push_back({TaskKind::kForward, stage, batch});
      if (!schedule.trains) continue;
      tasks.push_back({TaskKind::kBackward, stage, batch});
      if (schedule.splits_backward) tasks.push_back({TaskKind::kWeightGradient, stage, batch});
    }
    if (schedule.trains) tasks.push_back({TaskKind::kApply, stage});
  }
  return tasks;
}

bool IsOf(const Schedule& schedule, const Task& task) {
  const bool is_once = task.kind == TaskKind::kApply;
  const int num_batches = is_once ? 1 : schedule.shape.num_micro_batches;
  return task.stage >= 0 && task.stage < schedule.num_stages() && task.micro_batch >= 0 &&
         task.micro_batch < num_batches && (task.kind == TaskKind::kForward || schedule.trains) &&
         (task.kind != TaskKind::kWeightGradient || schedule.splits_backward);
}

// The task behind which nothing reads any more what the forward task saved.
TaskKind LastReader(const Schedule& schedule) {
  if (!schedule.trains) return TaskKind::kForward;
  return schedule.splits_backward ? TaskKind::kWeightGradient : TaskKind::kBackward;
}

}  // namespace

std::string_view TaskKindName(TaskKind kind) {
  switch (kind) {
    case TaskKind::kForward:
      return "forward";
    case TaskKind::kBackward:
      return "backward";
    case TaskKind::kWeightGradient:
      return "weight-gradient";
    case TaskKind::kApply:
      return "apply";
  }
  return "";
}

std::string ToString(const Task& task) {
  if (task.kind == TaskKind::kApply) return fmt::format("apply on stage {}", task.stage);
  return fmt::format("{} of micro-batch {} on stage {}", TaskKindName(task.kind), task.micro_batch,
                     task.stage);
}

std::vector<Task> TasksBefore(const Schedule& schedule, const Task& task) {
  const auto [kind, stage, batch] = task;
  std::vector<Task> before;
  switch (kind) {
    case TaskKind::kForward:
      if (stage > 0) before.push_back({TaskKind::kForward, stage - 1, batch});
      break;
    case TaskKind::kBackward:
      before.push_back({TaskKind::kForward, stage, batch});
      if (stage + 1 < schedule.num_stages()) {
        before.push_back({TaskKind::kBackward, stage + 1, batch});
      }
      break;
    case TaskKind::kWeightGradient:
      before.push_back({TaskKind::kBackward, stage, batch});
      break;
    case TaskKind::kApply:
      for (int i = 0; i < schedule.shape.num_micro_batches; ++i) {
        before.push_back({LastReader(schedule), stage, i});
      }
      break;
  }
  return before;
}

absl::StatusOr<std::vector<TaskPlace>> RunOrder(const Schedule& schedule) {
  std::vector<bool> is_over(schedule.num_numbers());
  std::vector<TaskPlace> order;
  std::vector<size_t> next(schedule.tasks.size());
  const auto awaited = [&](const Task& task) -> std::optional<Task> {
    for (const Task& before : TasksBefore(schedule, task)) {
      if (!is_over[schedule.NumberOf(before)]) return before;
    }
    return std::nullopt;
  };
  for (bool moves = true; moves;) {
    moves = false;
    for (size_t mesh = 0; mesh < schedule.tasks.size(); ++mesh) {
      const std::vector<Task>& tasks = schedule.tasks[mesh];
      for (; next[mesh] < tasks.size() && !awaited(tasks[next[mesh]]); ++next[mesh]) {
        is_over[schedule.NumberOf(tasks[next[mesh]])] = true;
        order.push_back({static_cast<int>(mesh), static_cast<int>(next[mesh])});
        moves = true;
      }
    }
  }
  for (size_t mesh = 0; mesh < schedule.tasks.size(); ++mesh) {
    if (next[mesh] == schedule.tasks[mesh].size()) continue;
    const Task& task = schedule.tasks[mesh][next[mesh]];
    return FailedPrecondition(
        "schedule {}: mesh {} waits for ever in front of its task {}, {}, for {}", schedule.name,
        mesh, next[mesh], ToString(task), ToString(*awaited(task)));
  }
  return order;
}

absl::Status Verify(const Schedule& schedule) {
  if (static_cast<int>(schedule.tasks.size()) != schedule.shape.num_meshes) {
    return InvalidArgument("schedule {}: {} lists of tasks for {} meshes", schedule.name,
                           schedule.tasks.size(), schedule.shape.num_meshes);
  }
  const std::vector<Task> all = AllTasks(schedule);
  std::vector<int> missing(schedule.num_numbers());
  for (const Task& task : all) missing[schedule.NumberOf(task)] = 1;
  for (int mesh = 0; mesh < schedule.shape.num_meshes; ++mesh) {
    for (const Task& task : schedule.tasks[mesh]) {
      if (!IsOf(schedule, task)) {
        return InvalidArgument("schedule {}: mesh {} runs {}, which the step does not have",
                               schedule.name, mesh, ToString(task));
      }
      if (schedule.MeshOf(task.stage) != mesh) {
        return InvalidArgument("schedule {}: mesh {} runs {}, which lies on mesh {}", schedule.name,
                               mesh, ToString(task), schedule.MeshOf(task.stage));
      }
      if (--missing[schedule.NumberOf(task)] < 0) {
        return InvalidArgument("schedule {}: mesh {} runs {} twice", schedule.name, mesh,
                               ToString(task));
      }
    }
  }
  for (const Task& task : all) {
    if (missing[schedule.NumberOf(task)] == 0) continue;
    return InvalidArgument("schedule {}: no mesh runs {}", schedule.name, ToString(task));
  }
  return RunOrder(schedule).status();
}

std::vector<MicroBatchesHeld> MostHeld(const Schedule& schedule) {
  std::vector<MicroBatchesHeld> most_held;
  for (const std::vector<Task>& tasks : schedule.tasks) {
    MicroBatchesHeld now, most;
    for (const Task& task : tasks) {
      if (task.kind == TaskKind::kForward) ++now.in_flight;
      if (task.kind != TaskKind::kWeightGradient) most = std::max(most, now);
      if (task.kind == TaskKind::kBackward && schedule.splits_backward) ++now.put_off;
      if (task.kind == TaskKind::kWeightGradient) --now.put_off;
      if (task.kind == LastReader(schedule)) --now.in_flight;
    }
    most_held.push_back(most);
  }
  return most_held;
}

}  // namespace minka
