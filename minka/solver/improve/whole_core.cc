#include "minka/solver/improve/whole_core.h"

#include <algorithm>

namespace minka {
namespace {

// Larger cores are never searched to the end.
constexpr int32_t kMostNodes = 512;
constexpr int64_t kMoreWork = 2;  // than the last time, before it is tried again

}  // namespace

bool WholeCore::CanRun(const Known& known, int64_t work) const {
  return !known.is_pruned && graph_.num_nodes() <= kMostNodes && work >= kMoreWork * most_work_;
}

void WholeCore::Run(const Known& known, int64_t work, const std::function<bool()>& stop) {
  const BoundTerms terms(known.messages);
  HotTimes hot_times(graph_);
  const std::optional<int64_t> cost = known.best ? std::optional(known.best->cost) : std::nullopt;
  const ExactOutcome outcome = DepthFirst(terms, hot_times).SearchAll(cost, work, stop);
  work_ += graph_.num_cells() + outcome.work;
  most_work_ = std::max(most_work_, work);
  complete_ = outcome.complete;
  if (outcome.answer) Take(*outcome.answer);
}

}  // namespace minka
