#include "minka/cost/torus_links.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace minka {
namespace {

constexpr double kRate = 1000;  // bytes per us of a link, each way
constexpr Link kLink = {.latency_us = 0, .bytes_per_us = kRate};
constexpr double kMebibyte = 1 << 20;

double GatherUs(std::vector<int> torus, const Mesh& mesh, AxisSet axes) {
  return TorusLinks({.sizes = std::move(torus)}, kLink, mesh)
      .CollectiveUs(ReshardKind::kAllGather, kMebibyte, axes);
}

TEST(TorusLinks, ShortDimensionsMayNotWrap) {
  const Mesh mesh({{"x", 4}});
  const TorusLinks links({.sizes = {4}, .wraps_at = 16}, kLink, mesh);
  EXPECT_DOUBLE_EQ(links.CollectiveUs(ReshardKind::kAllGather, kMebibyte, AxisSet::Of(0)),
                   kMebibyte * 3 / 4 / kRate);
}

// Both links of a ring; of a line, whose ends are not linked, the one that leads there.
TEST(TorusLinks, ARingIsTwiceAsFastAsALine) {
  const double parts = 3.0 / 4;
  EXPECT_DOUBLE_EQ(GatherUs({4}, Mesh({{"x", 4}}), AxisSet::Of(0)),
                   parts * kMebibyte / (2 * kRate));
  EXPECT_DOUBLE_EQ(GatherUs({8}, Mesh({{"x", 4}}), AxisSet::Of(0)), parts * kMebibyte / kRate);
}

TEST(TorusLinks, SeveralDimensionsWorkAtOnce) {
  const Mesh mesh({{"x", 4}, {"y", 4}});
  const double one = GatherUs({4, 4}, mesh, AxisSet::Of(0));
  AxisSet both = AxisSet::Of(0);
  both.Insert(1);
  const double two = GatherUs({4, 4}, mesh, both);
  EXPECT_DOUBLE_EQ(one, 3.0 / 4 * kMebibyte / (2 * kRate));
  EXPECT_DOUBLE_EQ(two, 15.0 / 16 * kMebibyte / (4 * kRate));
}

// Of 8 x 2 on a torus of 4 x 4, the second axis is half of the second dimension, and the first one
// the first dimension and every second place of the second one.
TEST(TorusLinks, GroupsThatShareLinksAreSlower) {
  const Mesh mesh({{"x", 8}, {"y", 2}});
  EXPECT_DOUBLE_EQ(GatherUs({4, 4}, mesh, AxisSet::Of(1)), kMebibyte / 2 / kRate);
  // A ring of four at 2 kRate, then two of stride two, which wrap, at kRate: the slow one first.
  const double in_turns = kMebibyte / 8 / kRate + kMebibyte / 4 * 3 / (2 * kRate);
  const double at_once = kMebibyte * 7 / 8 / (2 * kRate);
  EXPECT_DOUBLE_EQ(GatherUs({4, 4}, mesh, AxisSet::Of(0)), std::min(in_turns, at_once));
}

// Every device sends each of the others its part; the mean way around a ring of n is n / 4 long.
TEST(TorusLinks, AllToAllsLoadLinksByDistance) {
  const auto us = [](std::vector<int> torus, int size) {
    return TorusLinks({.sizes = std::move(torus)}, kLink, Mesh({{"x", size}}))
        .CollectiveUs(ReshardKind::kAllToAll, kMebibyte, AxisSet::Of(0));
  };
  EXPECT_DOUBLE_EQ(us({8}, 8), kMebibyte * 8 / 8 / kRate);
  EXPECT_DOUBLE_EQ(us({16}, 8), kMebibyte * 8 / 4 / kRate);
}

TEST(TorusLinks, AllReducesScatterAndGather) {
  const Mesh mesh({{"x", 4}});
  const TorusLinks links({.sizes = {4}}, {.latency_us = 1, .bytes_per_us = kRate}, mesh);
  const double gather = links.CollectiveUs(ReshardKind::kAllGather, kMebibyte, AxisSet::Of(0));
  EXPECT_DOUBLE_EQ(links.CollectiveUs(ReshardKind::kAllReduce, kMebibyte, AxisSet::Of(0)),
                   2 * gather);
  EXPECT_DOUBLE_EQ(links.CollectiveUs(ReshardKind::kAllGather, 0, AxisSet::Of(0)), 2);
}

// Six of a row of four and the next one.
TEST(TorusLinks, GroupsThatAreNoBoxesAreLines) {
  EXPECT_DOUBLE_EQ(GatherUs({4, 4}, Mesh({{"x", 6}}), AxisSet::Of(0)), kMebibyte * 5 / 6 / kRate);
}

}  // namespace
}  // namespace minka
