// Random valid plans: the property-test engine draws how every operation is split and lets the
// reshards follow.
#pragma once

#include <cstdint>

#include "minka/ir/module.h"
#include "minka/plan/plan.h"
#include "minka/sharding/mesh.h"

namespace minka {

struct RandomPlanOptions {
  double follow = 0.5;     // how often an operation takes the strategy that fits its operands best
  double duplicate = 0.1;  // how often a version is made again although it exists
  double isolate = 0.1;    // how often a reshard gets a barrier
  double combine = 0.6;    // how often a reshard joins its combine group
  CalledPrices called_prices = kTrialPrices;  // what plans the insides of loops and branches
};

// Equal arguments give equal plans; CheckPlan accepts them. Precondition: no dead code in the
// module.
Plan RandomPlan(const Module& module, const Mesh& mesh, uint64_t seed,
                const RandomPlanOptions& options = {});

// The plan in which operations run as given and every operand is resharded just before its reader,
// each time anew; results stay as made, completed where they are partial. Fills all that follows
// (reshards, versions, collectives).
Plan PlanOfStrategies(const Module& module, const Mesh& mesh, std::vector<Strategy> strategies);

// All operations whole on every device.
std::vector<Strategy> WholeStrategies(const Module& module, const Mesh& mesh);

}  // namespace minka
