#include "minka/sharding/sharding.h"

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

// The devices in the order of the tiles that they hold, replicas last: the tile assignment of
// GSPMD.
std::vector<int64_t> DeviceOrder(std::string_view text) {
  const Mesh mesh = *Mesh::Parse("2x3");
  const Sharding sharding = *ParseSharding(text, mesh);
  std::vector<int> axes;
  for (const AxisList& list : sharding.dims) {
    for (int i = 0; i < list.size(); ++i) axes.push_back(list[i]);
  }
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    if (!sharding.used_axes().contains(axis)) axes.push_back(axis);
  }
  return mesh.Groups(axes)[0];
}

TEST(Sharding, TileAssignmentsAreThoseOfAlpa) {
  EXPECT_THAT(DeviceOrder("[x,y]"), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(DeviceOrder("[y,x]"), ElementsAre(0, 3, 1, 4, 2, 5));
  EXPECT_THAT(DeviceOrder("[x,-]"), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(DeviceOrder("[y,-]"), ElementsAre(0, 3, 1, 4, 2, 5));
  EXPECT_THAT(DeviceOrder("[-,y]"), ElementsAre(0, 3, 1, 4, 2, 5));
  EXPECT_THAT(DeviceOrder("[-,x]"), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(DeviceOrder("[y,x,-]"), ElementsAre(0, 3, 1, 4, 2, 5));
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
