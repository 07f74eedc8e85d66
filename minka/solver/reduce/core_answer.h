// A choice for every node of a core.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "minka/solver/reduce/core.h"

namespace minka {

struct CoreAnswer {
  std::vector<int32_t> choice;
  int64_t cost = 0;  // base cost included
};

// The exact cost of a core choice; nothing if it uses a forbidden entry.
std::optional<int64_t> CoreCost(const Core& core, std::span<const int32_t> choice);

// Whether its memory is within the limit at every time.
bool FitsLimit(const Core& core, std::span<const int32_t> choice);

// The cheaper of both is kept in `best`.
void TakeCheaper(const CoreAnswer& answer, std::optional<CoreAnswer>& best);

}  // namespace minka
