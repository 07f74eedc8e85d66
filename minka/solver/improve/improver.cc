#include "minka/solver/improve/improver.h"

namespace minka {
namespace {

// Of the bound: below, an older excess is as good.
constexpr double kRiseToRenew = 2e-4;

}  // namespace

const ChoiceExcess& KnownExcess::Of(const Known& known, int64_t& work) {
  const double rise = static_cast<double>(known.lower_bound) - static_cast<double>(bound_);
  if (!excess_ || rise > kRiseToRenew * static_cast<double>(known.lower_bound)) {
    excess_.emplace(known.messages);
    bound_ = known.lower_bound;
    work += known.messages.graph().num_cells();
  }
  return *excess_;
}

}  // namespace minka
