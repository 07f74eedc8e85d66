#include "minka/sharding/sharding.h"

#include <ostream>
#include <string_view>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace minka {
namespace {

using ::testing::ElementsAre;

const Shape kShape{ElementType::kF32, {12, 12}};

TEST(Mesh, TextFormsParseBack) {
  EXPECT_EQ(Mesh::Parse("data=2,model=4")->ToString(), "data=2,model=4");
  EXPECT_EQ(Mesh::Parse("2x4")->ToString(), "x=2,y=4");
  EXPECT_EQ(Mesh::Parse("8")->ToString(), "x=8");
}

TEST(Mesh, MistakesAreNamed) {
  EXPECT_EQ(Mesh::Parse("data=0").status().message(),
            "mesh axis 'data=0' needs a positive size, for example data=2");
  EXPECT_EQ(Mesh::Parse("a=2,a=2").status().message(), "mesh 'a=2,a=2' names the axis a twice");
  EXPECT_EQ(Mesh::Parse("a-b=2").status().message(),
            "mesh axis 'a-b=2' needs a name of letters, digits and _");
  EXPECT_EQ(Mesh::Parse("1x1x1x1x1x1x1x1x1").status().message(),
            "mesh '1x1x1x1x1x1x1x1x1' has 9 axes; at most 8 are possible");
  EXPECT_FALSE(Mesh::Parse("").ok());
  EXPECT_FALSE(Mesh::Parse("2x").ok());
  EXPECT_FALSE(Mesh::Parse("99999x99999").ok());
}

TEST(Mesh, GroupsDifferAlongTheirAxesInTheOrderGiven) {
  const Mesh mesh = *Mesh::Parse("2x3");
  EXPECT_THAT(mesh.Groups(std::vector<int>{0}),
              ElementsAre(ElementsAre(0, 3), ElementsAre(1, 4), ElementsAre(2, 5)));
  EXPECT_THAT(mesh.Groups(std::vector<int>{1}),
              ElementsAre(ElementsAre(0, 1, 2), ElementsAre(3, 4, 5)));
  EXPECT_THAT(mesh.Groups(std::vector<int>{1, 0}), ElementsAre(ElementsAre(0, 3, 1, 4, 2, 5)));
  EXPECT_EQ(mesh.Coordinate(5, 0), 1);
  EXPECT_EQ(mesh.Coordinate(5, 1), 2);
}

// The tile assignment of GSPMD: how many tiles per dimension, how many devices hold each tile, and
// the devices in the order of the tiles that they hold, replicas last.
struct TileAssignment {
  std::vector<int64_t> grid;
  int64_t num_replicas = 1;
  std::vector<int64_t> devices;
  bool operator==(const TileAssignment&) const = default;
};

std::ostream& operator<<(std::ostream& out, const TileAssignment& tiles) {
  return out << testing::PrintToString(tiles.grid) << " " << tiles.num_replicas << " "
             << testing::PrintToString(tiles.devices);
}

TileAssignment TilesOf(std::string_view text, const char* mesh_text = "2x3") {
  const Mesh mesh = *Mesh::Parse(mesh_text);
  const Sharding sharding = *ParseSharding(text, mesh);
  TileAssignment tiles;
  std::vector<int> axes;
  for (const AxisList& list : sharding.dims) {
    tiles.grid.push_back(NumParts(list, mesh));
    for (int i = 0; i < list.size(); ++i) axes.push_back(list[i]);
  }
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    if (sharding.used_axes().contains(axis)) continue;
    tiles.num_replicas *= mesh.size(axis);
    axes.push_back(axis);
  }
  tiles.devices = mesh.Groups(axes)[0];
  return tiles;
}

TEST(Sharding, TileAssignmentsAreThoseOfAlpa) {
  const std::vector<int64_t> in_rows = {0, 1, 2, 3, 4, 5}, in_columns = {0, 3, 1, 4, 2, 5};
  EXPECT_EQ(TilesOf("[x,y]"), (TileAssignment{{2, 3}, 1, in_rows}));
  EXPECT_EQ(TilesOf("[y,x]"), (TileAssignment{{3, 2}, 1, in_columns}));
  EXPECT_EQ(TilesOf("[x,-]"), (TileAssignment{{2, 1}, 3, in_rows}));
  EXPECT_EQ(TilesOf("[y,-]"), (TileAssignment{{3, 1}, 2, in_columns}));
  EXPECT_EQ(TilesOf("[-,y]"), (TileAssignment{{1, 3}, 2, in_columns}));
  EXPECT_EQ(TilesOf("[-,x]"), (TileAssignment{{1, 2}, 3, in_rows}));
  EXPECT_EQ(TilesOf("[x,y,-]"), (TileAssignment{{2, 3, 1}, 1, in_rows}));
  EXPECT_EQ(TilesOf("[y,x,-]"), (TileAssignment{{3, 2, 1}, 1, in_columns}));
  EXPECT_EQ(TilesOf("[-,x,-]"), (TileAssignment{{1, 2, 1}, 3, in_rows}));
}

TEST(Sharding, ASplitOverAnAxisOfOneDeviceIsNone) {
  const std::vector<int64_t> devices = {0, 1, 2, 3};
  EXPECT_EQ(TilesOf("[-,y]", "1x4"), (TileAssignment{{1, 4}, 1, devices}));
  EXPECT_EQ(TilesOf("[-,x]", "1x4"), (TileAssignment{{1, 1}, 4, devices}));
  EXPECT_EQ(TilesOf("[-,x]", "4x1"), (TileAssignment{{1, 4}, 1, devices}));
  EXPECT_EQ(TilesOf("[-,y]", "4x1"), (TileAssignment{{1, 1}, 4, devices}));
}

TEST(Sharding, LocalShapeDividesByTheAxesOfEachDim) {
  const Mesh mesh = *Mesh::Parse("x=2,y=3");
  const Sharding sharding = *ParseSharding("[y+x,-]", mesh);
  EXPECT_EQ(LocalShape(kShape, sharding, mesh).dims, (std::vector<int64_t>{2, 12}));
  EXPECT_EQ(LocalBytes(kShape, sharding, mesh), 96);
}

TEST(Sharding, TextFormsParseBack) {
  const Mesh mesh = *Mesh::Parse("data=2,model=4,z=2");
  for (const char* text : {"[]", "[-]", "[data,-]", "[z+data,model]", "[-,-]{partial: model}",
                           "[z,-]{partial: data,model}", "[]{partial: data}"}) {
    EXPECT_EQ(ToString(*ParseSharding(text, mesh), mesh), text);
  }
}

TEST(Sharding, MistakesAreNamed) {
  const Mesh mesh = *Mesh::Parse("data=2,model=4");
  EXPECT_EQ(ParseSharding("[date]", mesh).status().message(),
            "sharding '[date]': the mesh data=2,model=4 has no axis 'date'");
  EXPECT_EQ(ParseSharding("[data]{partial: data}", mesh).status().message(),
            "sharding '[data]{partial: data}' uses the axis data twice");
  EXPECT_EQ(ParseSharding("[data,-", mesh).status().message(),
            "sharding '[data,-': expected ']' before ''; the form is [data,-]{partial: model}");
  EXPECT_EQ(ParseSharding("[data] x", mesh).status().message(),
            "sharding '[data] x': 'x' after its end");
  EXPECT_EQ(Validate(*ParseSharding("[data]", mesh), kShape, mesh).message(),
            "the sharding has 1 dimensions, but f32[12,12] has 2");
  EXPECT_EQ(Validate(*ParseSharding("[data+model,-]", mesh), kShape, mesh).message(),
            "dimension 0 of f32[12,12] is not divided by its axes data+model of the mesh "
            "data=2,model=4");
  EXPECT_TRUE(Validate(*ParseSharding("[model,data]", mesh), kShape, mesh).ok());
}

}  // namespace
}  // namespace minka
