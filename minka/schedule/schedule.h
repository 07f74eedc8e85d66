// Pipeline schedules as data: what every mesh does, in which order. Which task waits for which
// follows from what the tasks are, so one verifier, one simulator (simulator/timeline.h) and one
// emitter serve all schedules, and a new one is one file (generate.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace minka {

enum class TaskKind : uint8_t {
  kForward,
  kBackward,        // of a schedule that splits it, the part that other stages wait for
  kWeightGradient,  // the rest: what only the weights' update reads
  kApply,           // once per stage and step
};

// "forward", "backward", "weight-gradient", "apply".
std::string_view TaskKindName(TaskKind kind);

struct Task {
  TaskKind kind = TaskKind::kForward;
  int stage = 0;
  int micro_batch = 0;  // kApply: 0
  auto operator<=>(const Task&) const = default;
};

// "forward of micro-batch 3 on stage 1".
std::string ToString(const Task& task);

// What a schedule is asked for.
struct PipelineShape {
  int num_meshes = 1;
  int num_micro_batches = 1;
  int stages_per_mesh = 1;  // more than one: interleaved
  bool operator==(const PipelineShape&) const = default;
};

struct Schedule {
  std::string name;
  PipelineShape shape;
  bool trains = true;                    // false: forward tasks only
  bool splits_backward = false;          // into backward and weight gradient
  std::vector<std::vector<Task>> tasks;  // by mesh, in the order in which it runs them

  int num_stages() const { return shape.num_meshes * shape.stages_per_mesh; }
  // Consecutive stages lie on consecutive meshes, round and round.
  int MeshOf(int stage) const { return stage % shape.num_meshes; }
  // Of a task of the shape, among as many numbers; for tables.
  size_t NumberOf(const Task& task) const {
    const auto row = static_cast<size_t>(task.kind) * num_stages() + task.stage;
    return row * shape.num_micro_batches + task.micro_batch;
  }
  size_t num_numbers() const { return size_t{4} * num_stages() * shape.num_micro_batches; }
};

// What must be over before the task begins, wherever it runs.
std::vector<Task> TasksBefore(const Schedule& schedule, const Task& task);

// A task of a mesh's list.
struct TaskPlace {
  int mesh = 0, number = 0;
};

// All tasks, each behind what it waits for and behind what its mesh runs before it.
// FailedPrecondition names a task that waits for ever. Precondition: they are tasks of the shape.
absl::StatusOr<std::vector<TaskPlace>> RunOrder(const Schedule& schedule);

// Every task stands once, on the mesh of its stage, and none waits for ever. The message names the
// culprit.
absl::Status Verify(const Schedule& schedule);

// Of pairs of stage and micro-batch of a mesh.
struct MicroBatchesHeld {
  // That keep what the forward task saves, from that task on until the last one that reads it.
  int in_flight = 0;
  // Of these, that are behind their backward task: gradients of weights are put off.
  int put_off = 0;
  auto operator<=>(const MicroBatchesHeld&) const = default;
};

// By mesh, while it runs the forward or backward task at which it has the most in flight, and of
// such tasks the most put off. Precondition: Verify.
std::vector<MicroBatchesHeld> MostHeld(const Schedule& schedule);

}  // namespace minka
