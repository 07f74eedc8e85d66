#include "minka/planner/inter_op/balance_stages.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace minka {
namespace {

using testing::ElementsAre;

TEST(BalanceLayers, LargestLoadPerDeviceIsLeast) {
  EXPECT_THAT(BalanceLayers({1, 1, 1, 1}, {1, 1}), ElementsAre(0, 0, 1, 1));
  EXPECT_THAT(BalanceLayers({1, 1, 1, 1}, {1, 3}), ElementsAre(0, 1, 1, 1));
  EXPECT_THAT(BalanceLayers({5, 1, 1, 1}, {1, 1}), ElementsAre(0, 1, 1, 1));
}

}  // namespace
}  // namespace minka
