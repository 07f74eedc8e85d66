// An improvement found in one of many equal layers is worth as much in the others, where a search
// of regions would have to find it again.
#pragma once

#include <cstdint>
#include <span>

#include "minka/solver/core_graph.h"
#include "minka/solver/local_search.h"

namespace minka {

// Makes in other places the changes that led from choice `before` to `answer`, wherever that is
// cheaper. Each connected set of changed nodes is laid upon nodes of equal costs that are joined by
// equal tables and choose as it did. Keeps the limit. Adds what it costs to `work`.
CoreAnswer RepeatChange(const CoreGraph& graph, std::span<const int32_t> before, CoreAnswer answer,
                        int64_t& work);

}  // namespace minka
