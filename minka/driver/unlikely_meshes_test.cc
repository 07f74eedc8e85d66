#include "minka/driver/unlikely_meshes.h"

#include <map>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/base/status.h"

namespace minka {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<MeshOfKind> Meshes(const std::vector<std::string>& names, int kind = 0) {
  std::vector<MeshOfKind> out;
  for (const std::string& name : names) out.push_back({kind, Mesh::Parse(name).value()});
  return out;
}

// What layers take by the name of the mesh; 100 us and bytes where nothing is said.
struct Layers {
  std::map<std::string, RepeatedLayers> on;
  std::vector<std::string> asked;

  FindRepeatedLayers Find() {
    return [this](const std::vector<MeshOfKind>& meshes) {
      std::vector<std::optional<RepeatedLayers>> out;
      for (const MeshOfKind& mesh : meshes) {
        asked.push_back(mesh.mesh.ToString());
        const auto said = on.find(asked.back());
        out.emplace_back(said == on.end() ? RepeatedLayers{.us = 100, .bytes = 100} : said->second);
      }
      return out;
    };
  }
};

std::vector<std::string> NamesOfLikely(const UnlikelyMeshes& unlikely,
                                       const std::vector<MeshOfKind>& meshes) {
  std::vector<std::string> out;
  for (const MeshOfKind& mesh : meshes) {
    if (unlikely.WhyNot(mesh).ok()) out.push_back(mesh.mesh.ToString());
  }
  return out;
}

TEST(UnlikelyMeshes, ThreeAxesHaveToBeFasterOrSmallerThanAllOfFewer) {
  const std::vector<MeshOfKind> meshes = Meshes({"16", "4x4", "2x2x4", "2x4x2", "4x2x2"});
  Layers layers{.on = {{"x=4,y=4", {.us = 90, .bytes = 120}},
                       {"x=2,y=2,z=4", {.us = 89.9, .bytes = 100}},
                       {"x=2,y=4,z=2", {.us = 80, .bytes = 100}},
                       {"x=4,y=2,z=2", {.us = 200, .bytes = 79}}}};
  UnlikelyMeshes unlikely;
  unlikely.Find(meshes, layers.Find());
  EXPECT_THAT(NamesOfLikely(unlikely, meshes),
              ElementsAre("x=16", "x=4,y=4", "x=2,y=4,z=2", "x=4,y=2,z=2"));
  EXPECT_THAT(Message(unlikely.WhyNot(meshes[2])),
              HasSubstr("take 89.9 us there, 90.0 us on fewer"));
}

TEST(UnlikelyMeshes, WhereTheFirstGainNothingOthersAreNotLookedAt) {
  const std::vector<MeshOfKind> meshes =
      Meshes({"64", "2x4x8", "4x2x8", "8x2x4", "8x4x2", "2x2x16", "4x4x4"});
  for (const bool gains : {false, true}) {
    Layers layers;
    layers.on["x=4,y=4,z=4"] = {.us = 50, .bytes = 100};
    if (gains) layers.on["x=8,y=4,z=2"] = {.us = 60, .bytes = 100};
    UnlikelyMeshes unlikely;
    unlikely.Find(meshes, layers.Find());
    EXPECT_EQ(layers.asked.size(), gains ? 7U : 5U);
    EXPECT_EQ(unlikely.WhyNot(meshes.back()).ok(), gains);
    EXPECT_FALSE(unlikely.WhyNot(meshes[5]).ok());
  }
}

TEST(UnlikelyMeshes, AreOfSubmeshesThatHaveOthers) {
  std::vector<MeshOfKind> meshes = Meshes({"2x2x2", "4"});
  for (const MeshOfKind& mesh : Meshes({"8"}, /*kind=*/1)) meshes.push_back(mesh);
  Layers layers;
  UnlikelyMeshes unlikely;
  unlikely.Find(meshes, layers.Find());
  EXPECT_THAT(layers.asked, IsEmpty());
  EXPECT_EQ(NamesOfLikely(unlikely, meshes).size(), 3U);
}

TEST(UnlikelyMeshes, NothingIsAskedTwice) {
  const std::vector<MeshOfKind> meshes = Meshes({"8", "2x2x2"});
  Layers layers;
  UnlikelyMeshes unlikely;
  unlikely.Find(meshes, layers.Find());
  unlikely.Find(meshes, layers.Find());
  EXPECT_THAT(layers.asked, ElementsAre("x=8", "x=2,y=2,z=2"));
}

// Not enough layers repeat, for one.
TEST(UnlikelyMeshes, WhatIsNotKnownIsNotUnlikely) {
  const std::vector<MeshOfKind> meshes = Meshes({"8", "2x2x2"});
  UnlikelyMeshes unlikely;
  unlikely.Find(meshes, [](const std::vector<MeshOfKind>& on) {
    return std::vector<std::optional<RepeatedLayers>>(on.size());
  });
  EXPECT_TRUE(unlikely.WhyNot(meshes.back()).ok());
}

}  // namespace
}  // namespace minka
