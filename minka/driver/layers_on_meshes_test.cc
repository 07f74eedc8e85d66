#include "minka/driver/layers_on_meshes.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace minka {
namespace {

using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

// One layer, which takes so long for a micro-batch on each of the meshes.
LayerWays WaysOf(const std::vector<std::pair<std::string, double>>& us_on) {
  LayerWays ways;
  for (const auto& [shape, us] : us_on) {
    const Mesh mesh = Mesh::Parse(shape).value();
    ways.ways.push_back({.num_devices = static_cast<int>(mesh.num_devices()),
                         .mesh = static_cast<int>(ways.meshes.size()),
                         .kept = {{.micro_batch_us = us}}});
    ways.meshes.push_back({.on = {.mesh = mesh}});
  }
  return ways;
}

std::vector<std::string> Names(const std::vector<MeshOfKind>& meshes) {
  std::vector<std::string> names;
  for (const MeshOfKind& on : meshes) names.push_back(on.mesh.ToString());
  return names;
}

TEST(FastestMeshes, HaveNoMoreAxesThanMakeThemFaster) {
  const LayerWays ways =
      WaysOf({{"x=8", 100}, {"x=2,y=4", 99.9}, {"x=4,y=2", 100}, {"x=2,y=2,z=2", 90}});
  EXPECT_THAT(Names(FastestMeshes(ways, {})), UnorderedElementsAre("x=8", "x=2,y=2,z=2"));
}

TEST(FastestMeshes, AreTwoOfEachNumberOfDevicesAndThoseAsFast) {
  const LayerWays ways =
      WaysOf({{"x=2,y=8", 100}, {"x=4,y=4", 120}, {"x=8,y=2", 200}, {"x=2,y=4,z=2", 99}});
  EXPECT_THAT(Names(FastestMeshes(ways, {})), UnorderedElementsAre("x=2,y=4,z=2", "x=2,y=8"));
}

LayerWays WastingSixteen() {
  return WaysOf({{"x=2", 100}, {"x=4", 60}, {"x=8", 40}, {"x=16", 36}});
}

TEST(FastestMeshes, WasteNoDevices) {
  EXPECT_THAT(Names(FastestMeshes(WastingSixteen(), {})), ElementsAre("x=2", "x=4"));
}

TEST(FastestMeshes, AreOfAllSizesWhereTheNumberOfStagesIsGiven) {
  EXPECT_THAT(Names(FastestMeshes(WastingSixteen(), {.num_stages = 2})),
              ElementsAre("x=2", "x=4", "x=8", "x=16"));
}

TEST(FastestMeshes, AreNotComparedWithThoseThatHoldNoLayer) {
  LayerWays ways = WastingSixteen();
  for (const int too_small : {0, 1}) ways.ways[too_small].kept[0].owned_bytes = 1000;
  EXPECT_THAT(Names(FastestMeshes(ways, {.hosts = {{.limit_bytes = 999}}})),
              ElementsAre("x=2", "x=4", "x=8"));
}

}  // namespace
}  // namespace minka
