#include "minka/simulator/timeline.h"

#include <algorithm>
#include <optional>

#include "minka/base/status.h"

namespace minka {
namespace {

// By task number: who waits on another mesh for what the task makes. At most one does.
std::vector<std::optional<Task>> ReadersElsewhere(const Schedule& schedule) {
  std::vector<std::optional<Task>> readers(schedule.num_numbers());
  for (const std::vector<Task>& tasks : schedule.tasks) {
    for (const Task& task : tasks) {
      for (const Task& before : TasksBefore(schedule, task)) {
        if (schedule.MeshOf(before.stage) == schedule.MeshOf(task.stage)) continue;
        readers[schedule.NumberOf(before)] = task;
      }
    }
  }
  return readers;
}

}  // namespace

absl::StatusOr<Timeline> Simulate(const Schedule& schedule, const TaskTimes& times) {
  ASSIGN_OR_RETURN(const std::vector<TaskPlace> order, RunOrder(schedule));
  const auto num_meshes = schedule.tasks.size();
  Timeline timeline{.meshes = std::vector<std::vector<TimedTask>>(num_meshes),
                    .idle = std::vector<double>(num_meshes)};
  const std::vector<std::optional<Task>> readers = ReadersElsewhere(schedule);
  std::vector<double> ends(schedule.num_numbers());
  std::vector<double> arrivals(schedule.num_numbers());  // at the reader elsewhere
  // By the meshes that it leads from and to: when the link is free again.
  std::vector<std::vector<double>> links(num_meshes, std::vector<double>(num_meshes));
  std::vector<double> busy(num_meshes);
  for (const auto& [mesh, number] : order) {
    const Task& task = schedule.tasks[mesh][number];
    std::vector<TimedTask>& timed = timeline.meshes[mesh];
    double begin = timed.empty() ? 0 : timed.back().end;
    for (const Task& before : TasksBefore(schedule, task)) {
      const bool is_sent = schedule.MeshOf(before.stage) != mesh;
      begin = std::max(begin, (is_sent ? arrivals : ends)[schedule.NumberOf(before)]);
    }
    const double end = begin + times.task(task);
    timed.push_back({task, begin, end});
    const size_t id = schedule.NumberOf(task);
    ends[id] = arrivals[id] = end;
    if (times.transfer && readers[id]) {
      double& link = links[mesh][schedule.MeshOf(readers[id]->stage)];
      link = arrivals[id] = std::max(end, link) + times.transfer(task, *readers[id]);
    }
    busy[mesh] += end - begin;
    timeline.step_time = std::max(timeline.step_time, end);
  }
  for (size_t mesh = 0; mesh < num_meshes; ++mesh) {
    timeline.idle[mesh] = timeline.step_time - busy[mesh];
  }
  return timeline;
}

}  // namespace minka
