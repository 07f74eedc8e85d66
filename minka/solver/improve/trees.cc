#include "minka/solver/improve/trees.h"

#include <algorithm>
#include <cmath>
#include <ranges>
#include <vector>

namespace minka {
namespace {

constexpr int kRunsFromBest = 2;   // for each one from a choice that was decoded
constexpr double kColdest = -2.5;  // power of ten of the temperature's unit

}  // namespace

// By turns from the best and from what messages led to, which has other parts.
void Trees::Start(const Known& known) {
  search_.SetPrices(known.prices);
  if (num_runs_++ % (kRunsFromBest + 1) == 0) {
    for (const std::vector<int32_t>& decoded : std::views::reverse(known.decoded)) {
      if (decoded.empty()) continue;
      search_.Start(decoded);
      if (search_.feasible()) return;
    }
  }
  search_.Start(known.best->choice);
}

void Trees::Run(const Known& known, int64_t work, const std::function<bool()>& stop) {
  const int64_t before = search_.work();
  Start(known);
  const double gap = static_cast<double>(known.best->cost - known.lower_bound);
  // The mean gap per node is the scale of what is still to gain; hotter and colder walks find
  // different things.
  const double temperature =
      std::pow(10.0, kColdest * random_.Unit()) * std::max(0.0, gap) / graph_.num_nodes();
  const int64_t quarter = work / 4;
  const LocalSearch::ImproveOptions walks[] = {
      {.price_weight = 1, .work = quarter},
      {.price_weight = 0, .work = quarter},
      {.price_weight = 1, .temperature = temperature, .work = quarter},
      {.price_weight = 1, .work = quarter / 2},
      {.price_weight = 0, .work = quarter / 2}};
  for (const LocalSearch::ImproveOptions& walk : walks) {
    search_.Improve(walk);
    if (stop()) break;
  }
  work_ += search_.work() - before;
  if (search_.best()) Take(*search_.best());
}

}  // namespace minka
