#include "minka/solver/improve/part_search.h"

#include "minka/base/check.h"

namespace minka {

CoreAnswer ExpandAnswer(const Core& whole, const Reduction& part, std::span<const int32_t> choice) {
  CoreAnswer answer = {Expand(part, choice), 0};
  const std::optional<int64_t> cost = CoreCost(whole, answer.choice);
  MINKA_CHECK(cost.has_value(), "a part's answer is forbidden in the whole");
  answer.cost = *cost;
  return answer;
}

}  // namespace minka
