#include "minka/solver/improve/part_search.h"

namespace minka {

std::optional<CoreAnswer> ExpandAnswer(const Core& whole, const Reduction& part,
                                       std::span<const int32_t> choice) {
  CoreAnswer answer = {Expand(part, choice), 0};
  const std::optional<int64_t> cost = CoreCost(whole, answer.choice);
  if (!cost) return std::nullopt;
  answer.cost = *cost;
  return answer;
}

}  // namespace minka
