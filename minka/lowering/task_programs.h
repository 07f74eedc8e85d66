// Writes the programs of a pipeline stage: what one mesh runs as a loop over micro-batches
// (spmd.h), cut by task, so that a schedule can run them in its own order.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "minka/lowering/planned_stage.h"
#include "minka/lowering/spmd.h"
#include "minka/lowering/stages.h"
#include "minka/plan/plan.h"
#include "minka/program/task.h"

namespace minka {

// A local program with what its parameters and results are, by number. A sum or stack over
// micro-batches is both in every program that adds to it, in the same memory; the front program
// makes what it begins with. The loop's index (MicroLoop::index) is a parameter like others, s32[].
struct TaskProgram {
  ProgramTask task;
  SpmdProgram program;
  std::vector<ValueVersion> parameters, results;
};

// The same without its code.
struct TaskSignature {
  ProgramTask task;
  std::vector<ValueVersion> parameters, results;
  std::vector<Shape> parameter_shapes;  // of a device's parts
};

// In the order of their tasks; without those that have nothing to do. Precondition: CheckPlan of
// the stage's module. What is `kept` is a result of the program that makes it.
absl::StatusOr<std::vector<TaskProgram>> LowerTasks(const StageStep& stage, const StagePlan& plan,
                                                    Platform platform,
                                                    const std::vector<ValueVersion>& kept = {});

// Of the programs that LowerTasks writes, in half its time, where instructions belong to `tasks`.
std::vector<TaskSignature> SignaturesOfTasks(const StageStep& stage,
                                             const std::vector<ProgramTask>& tasks,
                                             const StagePlan& plan, Platform platform);

}  // namespace minka
