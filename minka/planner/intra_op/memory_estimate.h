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

// What a layer by itself adds to a step that runs as one program.
struct LayerMemory {
  int64_t static_bytes = 0;  // throughout: parameters, what the loop over micro-batches carries
  int64_t owned_bytes = 0;   // of these: state and sums
  // Beside these of a micro-batch, when the backward pass of the last layer begins, and when that
  // of the first one has ended.
  int64_t kept_bytes = 0, updated_bytes = 0;
  int64_t peak_bytes = 0;  // of all
};

// `received`: parameters that other layers make; results from num_own_results on are made for them
// (lowering/stages.h).
LayerMemory EstimateLayerMemory(const StepFacts& facts, const StagePlan& plan,
                                std::span<const int> received, int num_own_results);

// Of a step whose instructions run in several programs, by program: the most that it holds at once
// of versions that no other program reads. `programs` has the number of each instruction's.
std::vector<int64_t> EstimateTemporaries(const StepFacts& facts, const StagePlan& plan,
                                         std::span<const int> programs, int num_programs);

}  // namespace minka
