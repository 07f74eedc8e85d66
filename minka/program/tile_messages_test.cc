#include "minka/program/tile_messages.h"

#include <algorithm>
#include <string>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "gtest/gtest.h"
#include "minka/program/pipeline_program.h"

namespace minka {
namespace {

ArrayOnMesh OnHost(const char* mesh_text, const char* sharding, int host) {
  const Mesh mesh = *Mesh::Parse(mesh_text);
  return {*ParseSharding(sharding, mesh), mesh, std::vector<int>(mesh.num_devices(), host)};
}

// Boxes by message.
std::string Packed(const std::vector<int64_t>& dims, const char* from, const char* to) {
  const Shape shape{ElementType::kF32, dims};
  const ArrayOnMesh source = OnHost("2", from, 0), destination = OnHost("2", to, 1);
  const TileLists lists =
      PackTiles(PlanCrossMesh(shape, source, destination), shape, source, destination);
  EXPECT_EQ(lists.sent.messages.size(), lists.received.messages.size());
  EXPECT_EQ(BytesOf(lists.sent, shape.type), BytesOf(lists.received, shape.type));
  std::string text;
  for (const TileMessage& message : lists.sent.messages) {
    for (const Tile& tile : message.tiles) text += ToString(tile.box);
    text += "; ";
  }
  return text;
}

TEST(PackTiles, LargeTilesGoAloneWhereTheyAreOneRunOfMemory) {
  EXPECT_EQ(Packed({512, 64}, "[x,-]", "[-,-]"), "[0:256,0:64]; [256:512,0:64]; ");
}

TEST(PackTiles, SmallTilesGoTogether) {
  EXPECT_EQ(Packed({4, 8}, "[x,-]", "[-,-]"), "[0:2,0:8][2:4,0:8]; ");
  EXPECT_EQ(Packed({}, "[]", "[]"), "[]; ");
  EXPECT_EQ(Packed({0}, "[x]", "[-]"), "[0:0]; ");
}

// 512 KiB each: two of them make up a megabyte.
TEST(PackTiles, TilesThatAreCopiedAnyhowGoByMegabytes) {
  EXPECT_EQ(Packed({512, 1024}, "[-,x]", "[x,-]"),
            "[0:256,0:512][0:256,512:1024]; [256:512,0:512][256:512,512:1024]; ");
}

TEST(IsOneRun, SaysWhetherABoxIsWithoutGaps) {
  const Box part{{0, 0, 0}, {4, 8, 2}};
  EXPECT_TRUE(IsOneRun({{1, 0, 0}, {3, 8, 2}}, part));
  EXPECT_TRUE(IsOneRun({{1, 2, 0}, {2, 4, 2}}, part));
  EXPECT_TRUE(IsOneRun({{1, 2, 1}, {2, 3, 2}}, part));
  EXPECT_FALSE(IsOneRun({{0, 2, 0}, {2, 4, 2}}, part));
  EXPECT_FALSE(IsOneRun({{1, 2, 1}, {2, 4, 2}}, part));
  EXPECT_TRUE(IsOneRun({}, {}));
}

TEST(OffsetIn, CountsElementsOfThePart) {
  const Box part{{4, 8}, {8, 16}};
  EXPECT_EQ(OffsetIn(part, {{5, 10}, {6, 12}}), 10);
  EXPECT_EQ(OffsetIn({}, {}), 0);
}

// x goes from two devices to two others that hold it whole, for each of two micro-batches, z once.
PipelineProgram ThreeTransfers() {
  PipelineProgram program{.meshes = std::vector<MeshProgram>(2)};
  const Shape shape{ElementType::kF32, {4, 8}};
  for (MeshProgram& mesh : program.meshes) mesh.mesh = *Mesh::Parse("2");
  const Sharding rows = *ParseSharding("[x,-]", program.meshes[0].mesh);
  for (int i = 0; i < 3; ++i) {
    const std::string name = i < 2 ? "x" : "z";
    program.meshes[0].slots.push_back({name, shape, i < 2 ? rows : Sharding::Replicated(2)});
    program.meshes[1].slots.push_back({name, shape, Sharding::Replicated(2)});
    program.meshes[0].instructions.emplace_back(SendInstruction{i, i});
    program.meshes[1].instructions.emplace_back(ReceiveInstruction{i, i});
    program.channels.push_back({.from = {0, i}, .to = {1, i}});
  }
  return program;
}

TEST(SetTiles, MicroBatchesShareTheirLists) {
  PipelineProgram program = ThreeTransfers();
  SetTiles(program);
  EXPECT_EQ(program.meshes[0].tile_lists.size(), 2u);
  EXPECT_EQ(program.meshes[1].tile_lists.size(), 2u);
  EXPECT_EQ(std::get<SendInstruction>(program.meshes[0].instructions[1]).tiles, 0);
  EXPECT_EQ(std::get<ReceiveInstruction>(program.meshes[1].instructions[2]).tiles, 1);
}

TEST(TransfersText, NamesEveryTileOnce) {
  PipelineProgram program = ThreeTransfers();
  SetTiles(program);
  EXPECT_EQ(TransfersText(program),
            "mesh 0 to mesh 1: x f32[4,8], [x,-] -> [-,-], 128 bytes in 1 messages, 2 times\n"
            "0 -> 0,1: [0:2,0:8]\n"
            "1 -> 1,0: [2:4,0:8]\n"
            "mesh 0 to mesh 1: z f32[4,8], [-,-] -> [-,-], 128 bytes in 1 messages, 1 times\n"
            "0 -> 0,1: [0:4,0:8]\n");
}

}  // namespace
}  // namespace minka
