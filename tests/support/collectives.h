// The collective instructions of a program, for comparison with those of its plan.
#pragma once

#include <compare>
#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "minka/ir/module.h"
#include "minka/plan/plan.h"

namespace minka {

struct CollectiveInstruction {
  std::string kind;  // HLO name
  ElementType type = ElementType::kInvalid;
  int64_t bytes = 0;  // as in PlannedCollective
  auto operator<=>(const CollectiveInstruction&) const = default;
};

// "all-gather f32 4096 bytes", for failures of tests.
void PrintTo(const CollectiveInstruction& collective, std::ostream* out);

// Sorted.
std::vector<CollectiveInstruction> CollectivesOf(const Module& module);
// Those that the plan's only stage will have; `module` is the prepared one.
std::vector<CollectiveInstruction> CollectivesOf(const Plan& plan, const Module& module);

}  // namespace minka
