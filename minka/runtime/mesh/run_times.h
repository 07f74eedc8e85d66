// Wall times of equal runs and what they say together.
#pragma once

#include <span>
#include <vector>

namespace minka {

// In microseconds; all zero where there are none.
struct RunStatistics {
  int num_runs = 0;
  double mean_us = 0, std_us = 0;
  double lower_quartile_us = 0, median_us = 0, upper_quartile_us = 0;  // linear between runs
};
RunStatistics StatisticsOf(std::span<const double> us);

// Wall times of runs, each from the launch until all devices are done.
struct RunTimes {
  std::vector<double> us;
  // Without the first `num_warm_up` runs, in which memory is touched for the first time.
  RunStatistics Warm(int num_warm_up) const;
};

}  // namespace minka
