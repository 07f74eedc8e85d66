#include "minka/runtime/mesh/mesh_executor.h"

#include <gtest/gtest.h>

namespace minka {
namespace {

TEST(RunTimesTest, WarmUpIsApartAndQuartilesLieBetweenRuns) {
  const RunTimes times{.us = {900, 40, 14, 10, 12, 20}};
  const RunStatistics warm = times.Warm(/*num_warm_up=*/2);
  EXPECT_EQ(warm.num_runs, 4);
  EXPECT_DOUBLE_EQ(warm.mean_us, 14);
  EXPECT_NEAR(warm.std_us, 4.3205, 1e-4);  // sqrt((16 + 4 + 0 + 36) / 3)
  EXPECT_DOUBLE_EQ(warm.lower_quartile_us, 11.5);
  EXPECT_DOUBLE_EQ(warm.median_us, 13);
  EXPECT_DOUBLE_EQ(warm.upper_quartile_us, 15.5);
}

TEST(RunTimesTest, OneRunHasNoSpreadAndNoneHasNoTime) {
  const RunTimes times{.us = {900, 40}};
  EXPECT_DOUBLE_EQ(times.Warm(1).median_us, 40);
  EXPECT_DOUBLE_EQ(times.Warm(1).std_us, 0);
  EXPECT_EQ(times.Warm(2).num_runs, 0);
  EXPECT_EQ(times.Warm(5).num_runs, 0);
}

}  // namespace
}  // namespace minka
