#include "minka/runtime/mesh/run_times.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace minka {
namespace {

// Of ascending values, which are not empty.
double Quantile(const std::vector<double>& values, double fraction) {
  const double place = fraction * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (place - static_cast<double>(below)) * (values[above] - values[below]);
}

}  // namespace

RunStatistics StatisticsOf(std::span<const double> us) {
  if (us.empty()) return {};
  std::vector<double> sorted(us.begin(), us.end());
  std::ranges::sort(sorted);
  const auto count = static_cast<double>(sorted.size());
  const double mean = std::accumulate(sorted.begin(), sorted.end(), 0.0) / count;
  double squares = 0;
  for (const double x : sorted) squares += (x - mean) * (x - mean);
  return {.num_runs = static_cast<int>(sorted.size()),
          .mean_us = mean,
          .std_us = sorted.size() < 2 ? 0 : std::sqrt(squares / (count - 1)),
          .lower_quartile_us = Quantile(sorted, 0.25),
          .median_us = Quantile(sorted, 0.5),
          .upper_quartile_us = Quantile(sorted, 0.75)};
}

RunStatistics RunTimes::Warm(int num_warm_up) const {
  return StatisticsOf(std::span(us).subspan(std::min<size_t>(num_warm_up, us.size())));
}

}  // namespace minka
