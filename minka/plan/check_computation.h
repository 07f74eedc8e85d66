// What CheckPlan asks of any computation, the entry or one that is called. Messages name the
// operation: "dot 'dot.3'".
#pragma once

#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "minka/ir/module.h"
#include "minka/sharding/called_plan.h"
#include "minka/sharding/mesh.h"
#include "minka/sharding/op_rule.h"
#include "minka/sharding/reshard.h"

namespace minka {

std::string NameOf(const Computation& computation, InstructionId id);

absl::Status CheckValue(const Computation& computation, Value value);

// Does the strategy name factors that exist, and leave operands and results in valid shardings?
absl::Status CheckStrategy(const Computation& computation, InstructionId id, const OpRule& rule,
                           const Strategy& strategy, const Mesh& mesh);

// Do the steps lead from one sharding to the other, by valid ones?
absl::Status CheckSteps(const Shape& shape, const Sharding& from, const Sharding& to,
                        std::span<const ReshardStep> steps, const Mesh& mesh);

// Is there a plan for each computation that the operation calls as control flow, and can it be
// lowered: parameters and results as the strategy says, a loop's condition whole, every operand as
// its strategy wants it, and the same of what is called inside? Precondition: CheckStrategy.
absl::Status CheckCalled(const Module& module, const Computation& computation, InstructionId id,
                         const OpRule& rule, const Strategy& strategy,
                         std::span<const CalledPlan> called, const Mesh& mesh);

}  // namespace minka
