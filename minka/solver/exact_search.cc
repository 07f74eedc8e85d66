#include "minka/solver/exact_search.h"

namespace minka {
namespace {

// Larger cores are never searched to the end.
constexpr int32_t kMaxNodes = 512;

}  // namespace

ExactOutcome SearchExactly(const MessagePassing& messages, std::optional<int64_t> cost_to_beat,
                           int64_t max_work, const std::function<bool()>& stop) {
  if (messages.graph().num_nodes() > kMaxNodes) return {};
  const BoundTerms terms(messages);
  HotTimes hot_times(messages.graph());
  ExactOutcome outcome = DepthFirst(terms, hot_times).SearchAll(cost_to_beat, max_work, stop);
  outcome.work += messages.graph().num_cells();
  return outcome;
}

}  // namespace minka
