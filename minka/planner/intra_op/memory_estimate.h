// Bytes that a plan holds on one device over the step: the estimated tier where no compiler is
// imitated (IntraOpOptions::peak_memory_bytes).
#pragma once

#include <cstdint>

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

}  // namespace minka
