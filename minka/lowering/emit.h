// From a schedule and the programs of every stage to what each mesh does, instruction by
// instruction.
#pragma once

#include <span>
#include <vector>

#include "minka/lowering/stages.h"
#include "minka/lowering/task_programs.h"
#include "minka/plan/plan.h"
#include "minka/program/pipeline_program.h"
#include "minka/schedule/schedule.h"

namespace minka {

// `plans` and `programs` are by stage; stages of one mesh have equal meshes. Values are sent as
// soon as they are made and received in front of the first program that takes them; what nothing
// reads any more is freed.
//
// What was `kept` of each stage (see LowerTasks) are results behind those of the step, stage by
// stage: of a value that exists during one micro-batch only, one for each of them.
PipelineProgram Emit(const Schedule& schedule, const StagedStep& staged,
                     std::span<const StagePlan> plans,
                     std::span<const std::vector<TaskProgram>> programs,
                     std::span<const std::vector<ValueVersion>> kept = {});

}  // namespace minka
