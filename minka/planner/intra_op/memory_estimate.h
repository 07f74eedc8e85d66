// Bytes that a plan holds on one device over the step: the estimated tier where no compiler is
// imitated (IntraOpOptions::peak_memory_bytes).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "minka/plan/plan.h"
#include "minka/planner/intra_op/formulation.h"

namespace minka {

struct MemoryEstimate {
  int64_t peak_bytes = 0;
  InstructionId peak_at = 0;
  int64_t argument_bytes = 0;  // parameters, held throughout
  int64_t state_bytes = 0;     // of these: state
};

// Liveness over fusion groups in instruction order: parameters throughout, every version from when
// it is made to its last reader, new state in the buffer that it replaces.
MemoryEstimate EstimateMemory(const StepFacts& facts, const StagePlan& plan);

// Of a step whose instructions run in several programs, by program: the most that it holds at once
// of versions that no other program reads. `programs` has the number of each instruction's.
std::vector<int64_t> EstimateTemporaries(const StepFacts& facts, const StagePlan& plan,
                                         std::span<const int> programs, int num_programs);

}  // namespace minka
