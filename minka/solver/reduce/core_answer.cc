#include "minka/solver/reduce/core_answer.h"

namespace minka {

std::optional<int64_t> CoreCost(const Core& core, std::span<const int32_t> choice) {
  int64_t cost = core.base_cost;
  for (int32_t node = 0; node < core.num_nodes(); ++node)
    cost = AddCosts(cost, core.costs(node)[choice[node]]);
  for (const CoreEdge& edge : core.edges)
    cost = AddCosts(cost, core.algebra.table(edge.table).at(choice[edge.a], choice[edge.b]));
  if (cost == kForbidden) return std::nullopt;
  return cost;
}

bool FitsLimit(const Core& core, std::span<const int32_t> choice) {
  std::vector<int64_t> change(core.limit_bytes.size() + 1, 0);
  for (int32_t node = 0; node < core.num_nodes(); ++node) {
    for (const CoreUsage& usage : core.usages[node]) {
      const int64_t bytes = core.algebra.row(usage.row)[choice[node]];
      for (const TimeRange& range : usage.ranges) {
        change[range.begin] += bytes;
        change[range.end] -= bytes;
      }
    }
  }
  int64_t bytes = 0;
  for (size_t t = 0; t < core.limit_bytes.size(); ++t) {
    bytes += change[t];
    if (bytes > core.limit_bytes[t]) return false;
  }
  return true;
}

void TakeCheaper(const CoreAnswer& answer, std::optional<CoreAnswer>& best) {
  if (!best || answer.cost < best->cost) best = answer;
}

}  // namespace minka
