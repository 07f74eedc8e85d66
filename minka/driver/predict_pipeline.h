// What the plan of a pipeline says about its steps: times of tasks and transfers, memory, bytes
// sent.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "minka/cluster/cluster.h"
#include "minka/driver/pipeline.h"
#include "minka/lowering/stages.h"
#include "minka/program/task.h"

namespace minka {

// Of a step, what a program of a stage takes.
struct ProgramCost {
  double us = 0;
  double collectives_us = 0;  // the part of it in which devices wait for each other
};
std::map<ProgramKind, ProgramCost> CostsByProgram(const StageStep& staged, const StagePlan& plan);

// Are all meshes within one host whose devices compute with one pool of cores?
bool MeshesShareCores(const PlanRequest& request);

// Fills it in from the plans of the stages.
absl::Status PredictPipeline(const PlanRequest& request, PlannedPipeline& planned);

// Times of a stage's tasks: what its plan predicts of its operations and reshards, by the program
// that they run in.
void SetTaskTimes(const StageStep& staged, int num_micro_batches, PipelineStagePlan& stage);

// What each program of a stage holds besides its arguments and results, where no compiler is
// imitated.
std::map<ProgramTask, int64_t> TemporariesOf(const StageStep& staged, const StagePlan& plan,
                                             Platform platform);

// By mesh and program, what each holds besides its arguments and results, as PlanStep estimates it:
// XLA:CPU is imitated, other compilers are not. On so many threads.
std::vector<std::vector<int64_t>> TemporariesOfPrograms(Platform platform,
                                                        const PlannedPipeline& planned,
                                                        const PipelineProgram& program,
                                                        int num_threads);

// What every mesh needs per device, from what each of its programs holds besides its arguments and
// results (by mesh and program).
void SetMemory(const PipelineProgram& program,
               std::span<const std::vector<int64_t>> temporary_bytes, PipelinePlan& plan);

}  // namespace minka
