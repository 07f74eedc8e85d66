#include "minka/simulator/timeline.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "minka/base/status.h"

namespace minka {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

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

// Goes from event to event: a task ends, or what one made arrives.
class Simulation {
 public:
  Simulation(const Schedule& schedule, const TaskTimes& times)
      : schedule_(schedule),
        times_(times),
        readers_(ReadersElsewhere(schedule)),
        meshes_(schedule.tasks.size()),
        ends_(schedule.num_numbers(), kNever),
        arrivals_(schedule.num_numbers(), kNever),
        links_(meshes_.size(), std::vector<double>(meshes_.size())),
        timeline_{.meshes = std::vector<std::vector<TimedTask>>(meshes_.size()),
                  .idle = std::vector<double>(meshes_.size())} {}

  Timeline Run() && {
    for (BeginTasks(); (now_ = NextEvent()) < kNever; BeginTasks()) EndTasks();
    timeline_.step_time = last_end_;
    for (size_t mesh = 0; mesh < meshes_.size(); ++mesh) {
      double busy = 0;
      for (const TimedTask& timed : timeline_.meshes[mesh]) busy += timed.end - timed.begin;
      timeline_.idle[mesh] = last_end_ - busy;
    }
    return std::move(timeline_);
  }

 private:
  struct Mesh {
    size_t next = 0;  // task in its list
    bool is_busy = false;
    double end = 0;         // of the task that runs, as things are
    double ready = kNever;  // when the next one has all that it reads, as far as that is known
  };

  void BeginTasks() {
    for (size_t mesh = 0; mesh < meshes_.size(); ++mesh) {
      Mesh& at = meshes_[mesh];
      if (at.is_busy || at.next == schedule_.tasks[mesh].size()) continue;
      const Task& task = schedule_.tasks[mesh][at.next];
      at.ready = 0;
      for (const Task& before : TasksBefore(schedule_, task)) {
        const bool is_sent = schedule_.MeshOf(before.stage) != static_cast<int>(mesh);
        at.ready = std::max(at.ready, (is_sent ? arrivals_ : ends_)[schedule_.NumberOf(before)]);
      }
      if (at.ready > now_) continue;
      SetNumRunning(num_running_ + 1);
      at.is_busy = true;
      at.end = now_ + times_.task(task) * Slowness();
      timeline_.meshes[mesh].push_back({task, now_, at.end});
    }
  }

  double NextEvent() const {
    double next = kNever;
    for (size_t mesh = 0; mesh < meshes_.size(); ++mesh) {
      const Mesh& at = meshes_[mesh];
      if (at.is_busy) {
        next = std::min(next, at.end);
      } else if (at.next < schedule_.tasks[mesh].size()) {
        next = std::min(next, at.ready);
      }
    }
    return next;
  }

  void EndTasks() {
    for (size_t mesh = 0; mesh < meshes_.size(); ++mesh) {
      Mesh& at = meshes_[mesh];
      if (!at.is_busy || at.end > now_) continue;
      const Task& task = schedule_.tasks[mesh][at.next++];
      const int number = schedule_.NumberOf(task);
      timeline_.meshes[mesh].back().end = now_;
      ends_[number] = arrivals_[number] = last_end_ = now_;
      if (times_.transfer && readers_[number]) {
        double& link = links_[mesh][schedule_.MeshOf(readers_[number]->stage)];
        link = arrivals_[number] = std::max(now_, link) + times_.transfer(task, *readers_[number]);
      }
      at.is_busy = false;
      SetNumRunning(num_running_ - 1);
    }
  }

  double Slowness() const { return times_.meshes_share_cores ? num_running_ : 1; }

  // What is left of the tasks that run takes longer or shorter from now on.
  void SetNumRunning(int num_running) {
    const double before = std::max(Slowness(), 1.0);
    num_running_ = num_running;
    const double change = std::max(Slowness(), 1.0) / before;
    if (change == 1) return;
    for (Mesh& at : meshes_) {
      if (at.is_busy && at.end > now_) at.end = now_ + (at.end - now_) * change;
    }
  }

  const Schedule& schedule_;
  const TaskTimes& times_;
  const std::vector<std::optional<Task>> readers_;
  std::vector<Mesh> meshes_;
  std::vector<double> ends_, arrivals_;  // by task number; the latter at the reader elsewhere
  // By the meshes that it leads from and to: when the link is free again.
  std::vector<std::vector<double>> links_;
  double now_ = 0, last_end_ = 0;
  int num_running_ = 0;
  Timeline timeline_;
};

}  // namespace

absl::StatusOr<Timeline> Simulate(const Schedule& schedule, const TaskTimes& times) {
  RETURN_IF_ERROR(RunOrder(schedule).status());  // none waits for ever
  return Simulation(schedule, times).Run();
}

}  // namespace minka
