#include "minka/simulator/timeline.h"

#include <algorithm>

#include "minka/base/status.h"

namespace minka {

absl::StatusOr<Timeline> Simulate(const Schedule& schedule, const TaskTimes& times) {
  ASSIGN_OR_RETURN(const std::vector<TaskPlace> order, RunOrder(schedule));
  const auto num_meshes = schedule.tasks.size();
  Timeline timeline{.meshes = std::vector<std::vector<TimedTask>>(num_meshes),
                    .idle = std::vector<double>(num_meshes)};
  std::vector<double> ends(schedule.num_numbers());
  std::vector<double> busy(num_meshes);
  for (const auto& [mesh, number] : order) {
    const Task& task = schedule.tasks[mesh][number];
    std::vector<TimedTask>& timed = timeline.meshes[mesh];
    double begin = timed.empty() ? 0 : timed.back().end;
    for (const Task& before : TasksBefore(schedule, task)) {
      const bool is_sent = times.transfer && schedule.MeshOf(before.stage) != mesh;
      begin = std::max(
          begin, ends[schedule.NumberOf(before)] + (is_sent ? times.transfer(before, task) : 0));
    }
    const double end = begin + times.task(task);
    timed.push_back({task, begin, end});
    ends[schedule.NumberOf(task)] = end;
    busy[mesh] += end - begin;
    timeline.step_time = std::max(timeline.step_time, end);
  }
  for (size_t mesh = 0; mesh < num_meshes; ++mesh) {
    timeline.idle[mesh] = timeline.step_time - busy[mesh];
  }
  return timeline;
}

}  // namespace minka
