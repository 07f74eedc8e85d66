#include "minka/solver/improve/improver.h"

#include <cmath>

namespace minka {
namespace {

// Of the bound: below, an older excess is as good.
constexpr double kRiseToRenew = 2e-4;

}  // namespace

const ChoiceExcess& KnownExcess::Of(const Known& known, int64_t& work) {
  const auto bound = static_cast<double>(known.lower_bound);
  if (!excess_ || bound - static_cast<double>(bound_) > kRiseToRenew * std::abs(bound)) {
    excess_.emplace(known.messages);
    bound_ = known.lower_bound;
    work += known.messages.graph().num_cells();
  }
  return *excess_;
}

}  // namespace minka
