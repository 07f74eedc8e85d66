// A plan as people read it.
#pragma once

#include <string>

#include "minka/ir/step.h"
#include "minka/plan/plan.h"

namespace minka {

struct PlanTableOptions {
  // The largest groups of activations; what is left out is summed up in a last row.
  int max_activations = 12;
};

// Headline (step time, memory, bound and gap), parameters and optimizer state, the activations kept
// for the backward pass, collectives per step, notes. Equal layers share a row: "layer_*" stands
// for all layers, "layer_{0-3}" for some.
std::string PlanTable(const Step& prepared, const Plan& plan, const PlanTableOptions& options = {});

// Of it what one stage of a pipeline needs: parameters, optimizer state and inputs, collectives.
std::string StoredAndCollectives(const Step& step, const Plan& plan);

}  // namespace minka
