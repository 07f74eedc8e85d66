// Words of plan.json that writing and reading share; the schema is documented in docs/plan.md.
#pragma once

#include <array>
#include <string_view>

#include "minka/plan/plan.h"

namespace minka {

inline constexpr int kPlanSchemaVersion = 1;

inline constexpr std::array<std::string_view, 3> kPhaseNames = {"forward", "backward", "apply"};
inline constexpr std::array<std::string_view, 2> kMemoryTierNames = {"estimated", "compiled"};

// `before` of a reshard that serves a result.
inline constexpr std::string_view kAtEnd = "end";

}  // namespace minka
