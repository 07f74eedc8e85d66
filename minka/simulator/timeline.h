// When every task of a schedule runs, given how long tasks and transfers take.
#pragma once

#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/schedule/schedule.h"

namespace minka {

// In any one unit of time.
struct TaskTimes {
  // Alone.
  std::function<double(const Task& task)> task;
  // How long what a task made is on its way to another mesh; the meshes go on meanwhile. Those from
  // one mesh to another go one after the other. Empty: none.
  std::function<double(const Task& from, const Task& to)> transfer;
  // All meshes compute with one pool of cores, which a task alone keeps busy: of n tasks at once
  // each takes n times as long.
  bool meshes_share_cores = false;
};

struct TimedTask {
  Task task;
  double begin = 0, end = 0;
};

struct Timeline {
  std::vector<std::vector<TimedTask>> meshes;  // in the order in which each runs them
  double step_time = 0;                        // when the last task ends
  // How long each mesh does nothing during the step.
  std::vector<double> idle;
};

// Every mesh runs its tasks in their order, each as soon as what it waits for is there.
// FailedPrecondition where one waits for ever.
absl::StatusOr<Timeline> Simulate(const Schedule& schedule, const TaskTimes& times);

}  // namespace minka
