#include "minka/planner/inter_op/balance_stages.h"

#include <numeric>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace minka {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

Cluster Devices(int num_hosts, int devices_per_host) {
  Cluster cluster = Cluster::Local(devices_per_host);
  cluster.num_hosts = num_hosts;
  return cluster;
}

TEST(BalanceLayers, LargestLoadPerDeviceIsLeast) {
  EXPECT_THAT(BalanceLayers({1, 1, 1, 1}, {1, 1}), ElementsAre(0, 0, 1, 1));
  EXPECT_THAT(BalanceLayers({1, 1, 1, 1}, {1, 3}), ElementsAre(0, 1, 1, 1));
  EXPECT_THAT(BalanceLayers({5, 1, 1, 1}, {1, 1}), ElementsAre(0, 1, 1, 1));
}

TEST(BalanceSubmeshes, DevicesGoWhereTheWorkIs) {
  // The best three stages have two devices each.
  EXPECT_THAT(BalanceSubmeshes({1.1, 1, 1}, Devices(1, 6)),
              ElementsAre(Pair(2, ElementsAre(4, 2))));
  EXPECT_EQ(BalanceSubmeshes({1, 1, 2}, Devices(1, 4)).at(3), (std::vector<int>{1, 1, 2}));
  EXPECT_EQ(BalanceSubmeshes({1, 2, 1}, Devices(1, 4)).at(3), (std::vector<int>{1, 2, 1}));
  EXPECT_EQ(BalanceSubmeshes({4, 2, 1, 1}, Devices(1, 8)).at(4), (std::vector<int>{4, 2, 1, 1}));
}

TEST(BalanceSubmeshes, MeshesLieWithinHostsOrAreWholeOnes) {
  // 1 + 2 + 1 would have a mesh on both hosts.
  const auto found = BalanceSubmeshes({1, 2, 1}, Devices(2, 2));
  EXPECT_NE(found.at(3), (std::vector<int>{1, 2, 1}));
  EXPECT_EQ(BalanceSubmeshes({1, 1, 4}, Devices(2, 3)).size(), 0U) << "3 devices are no power";
}

TEST(BalanceSubmeshes, WhatWouldTakeLongIsLeftOut) {
  EXPECT_THAT(BalanceSubmeshes({1, 1, 1}, Devices(16, 8)), IsEmpty());
  EXPECT_THAT(BalanceSubmeshes(std::vector<double>(200, 1.0), Devices(1, 8)), IsEmpty());
}

TEST(EstimateStepTime, CountsTheWayThroughAndTheLargestStage) {
  EXPECT_DOUBLE_EQ(EstimateStepTime({1, 1, 1}, {3, 3}, 4), 1.0 + 3 * 2 / 3.0);
  EXPECT_DOUBLE_EQ(EstimateStepTime({1, 1, 1}, {4, 2}, 4), 1.0 + 3 * 0.5);
}

}  // namespace
}  // namespace minka
