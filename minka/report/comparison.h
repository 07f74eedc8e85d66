// Plans of one step side by side.
#pragma once

#include <string>
#include <vector>

#include "minka/plan/plan.h"

namespace minka {

struct ComparisonRow {
  std::string method;
  std::string mesh;
  const Plan* plan = nullptr;  // null: there is none
  bool fits = true;            // within the memory limit
  bool chosen = false;
  std::string why_not;  // where there is no plan
};

// Step time, peak memory, state, collectives per step and gap of each; '*' marks the chosen one.
std::string ComparisonTable(const std::vector<ComparisonRow>& rows);

}  // namespace minka
