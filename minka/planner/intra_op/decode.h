// From the solver's choices to a stage plan: strategies, versions, reshards, combined collectives.
#pragma once

#include <span>

#include "minka/plan/plan.h"
#include "minka/planner/intra_op/formulation.h"

namespace minka {

// `save_memory`: only all-reduces are combined, because other kinds are joined by copying their
// operands together. Costs and times of the plan are filled, memory is not (memory_estimate.h).
StagePlan DecodeChoices(const StepFacts& facts, const ChoiceTables& tables,
                        const Formulation& formulation, const ReshardCosts& reshards,
                        const Mesh& mesh, const CostModel& cost, std::span<const int32_t> choice,
                        bool save_memory);

}  // namespace minka
