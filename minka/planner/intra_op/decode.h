// From the solver's choices to a stage plan: strategies, versions, reshards, combined collectives.
#pragma once

#include <span>

#include "minka/plan/plan.h"
#include "minka/planner/intra_op/formulation.h"

namespace minka {

struct DecodeChoicesOptions {
  bool save_memory = false;           // see kMostPackedSavingMemory
  int64_t combine_gathers_bytes = 0;  // see SearchLimits
};

// Costs and times of the plan are filled, memory is not (memory_estimate.h).
StagePlan DecodeChoices(const StepFacts& facts, const ChoiceTables& tables,
                        const Formulation& formulation, const ReshardCosts& reshards,
                        const Mesh& mesh, const CostModel& cost, std::span<const int32_t> choice,
                        const DecodeChoicesOptions& options);

}  // namespace minka
