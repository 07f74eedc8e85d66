#include "minka/runtime/mesh/split_array.h"

#include <cstring>
#include <numeric>

#include "gtest/gtest.h"

namespace minka {
namespace {

std::string Counting(int64_t count) {
  std::vector<int32_t> values(count);
  std::iota(values.begin(), values.end(), 0);
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(int32_t)};
}

std::vector<int32_t> Values(const std::string& bytes) {
  std::vector<int32_t> values(bytes.size() / sizeof(int32_t));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

TEST(TakePart, CutsInnerAndOuterDimensions) {
  const Mesh mesh = *Mesh::Parse("a=2,b=2");
  const Shape shape{ElementType::kS32, {2, 4}};
  const std::string whole = Counting(8);
  const auto part = [&](const char* sharding, int64_t device) {
    return Values(TakePart(whole, shape, *ParseSharding(sharding, mesh), mesh, device));
  };
  EXPECT_EQ(part("[a,b]", 3), (std::vector<int32_t>{6, 7}));
  EXPECT_EQ(part("[-,b]", 1), (std::vector<int32_t>{2, 3, 6, 7}));
  EXPECT_EQ(part("[-,a+b]", 2), (std::vector<int32_t>{2, 6}));
  EXPECT_EQ(part("[b,-]", 2), (std::vector<int32_t>{0, 1, 2, 3}));
}

TEST(PartInOnePiece, IsWhatTakePartCopies) {
  const Mesh mesh = *Mesh::Parse("a=2,b=2,c=2");
  const Shape shape{ElementType::kS32, {4, 3, 8}};
  const std::string whole = Counting(96);
  const auto num_in_place = [&](const char* text) {
    const Sharding sharding = *ParseSharding(text, mesh);
    int num_pieces = 0;
    for (int64_t device = 0; device < mesh.num_devices(); ++device) {
      const auto piece = PartInOnePiece(shape, sharding, mesh, device);
      if (!piece) continue;
      ++num_pieces;
      EXPECT_EQ(whole.substr(piece->begin, piece->size),
                TakePart(whole, shape, sharding, mesh, device))
          << text << " " << device;
    }
    return num_pieces;
  };
  for (const char* text : {"[-,-,-]", "[a,-,-]", "[c+b,-,-]"}) EXPECT_EQ(num_in_place(text), 8);
  for (const char* text : {"[-,-,c]", "[b,-,a]", "[c+b,-,a]"}) EXPECT_EQ(num_in_place(text), 0);
}

// A dimension of one position before the one that is cut.
TEST(PartInOnePiece, LooksThroughSinglePositions) {
  const Mesh mesh = *Mesh::Parse("a=2");
  const Sharding sharding = *ParseSharding("[-,a]", mesh);
  const auto piece = PartInOnePiece({ElementType::kS32, {1, 4}}, sharding, mesh, 1);
  ASSERT_TRUE(piece);
  EXPECT_EQ(piece->begin, 8U);
  EXPECT_EQ(piece->size, 8U);
  EXPECT_FALSE(PartInOnePiece({ElementType::kS32, {2, 4}}, sharding, mesh, 1));
}

TEST(PutPart, CoveringDevicesRebuildTheWhole) {
  const Mesh mesh = *Mesh::Parse("a=2,b=2,c=2");
  const Shape shape{ElementType::kS32, {4, 3, 8}};
  const std::string whole = Counting(96);
  for (const char* text : {"[-,-,-]", "[a,-,-]", "[-,-,c+a]", "[b,-,a]", "[c+b,-,a]"}) {
    const Sharding sharding = *ParseSharding(text, mesh);
    std::string built(whole.size(), '\xff');
    const std::vector<int64_t> devices = CoveringDevices(sharding, mesh);
    for (const int64_t device : devices) {
      PutPart(TakePart(whole, shape, sharding, mesh, device), shape, sharding, mesh, device, built);
    }
    EXPECT_EQ(built, whole) << text;
    EXPECT_EQ(static_cast<int64_t>(devices.size()), mesh.size(sharding.split_axes())) << text;
  }
}

TEST(TakePart, ScalarsAndEmptyArraysWork) {
  const Mesh mesh = *Mesh::Parse("a=2");
  EXPECT_EQ(TakePart("abcd", {ElementType::kS32, {}}, Sharding::Replicated(0), mesh, 1), "abcd");
  EXPECT_EQ(TakePart("", {ElementType::kS32, {0, 4}}, *ParseSharding("[-,a]", mesh), mesh, 1), "");
}

}  // namespace
}  // namespace minka
