#include "minka/ir/box.h"

#include <string>

#include "gtest/gtest.h"

namespace minka {
namespace {

// The elements of the box of an array whose element i is the byte i.
std::string Contents(const Box& box, const std::vector<int64_t>& dims) {
  std::string bytes;
  std::vector<int64_t> index = box.begin;
  for (int64_t count = box.num_elements(); count > 0; --count) {
    int64_t at = 0;
    for (size_t dim = 0; dim < dims.size(); ++dim) at = at * dims[dim] + index[dim];
    bytes.push_back(static_cast<char>(at));
    for (size_t dim = dims.size(); dim-- > 0;) {
      if (++index[dim] < box.end[dim]) break;
      index[dim] = box.begin[dim];
    }
  }
  return bytes;
}

TEST(CopyBox, TilesOfOneGridMakeUpThoseOfAnother) {
  const std::vector<int64_t> dims = {4, 6, 2};
  const auto boxes = [&](const std::vector<int64_t>& size) {
    std::vector<Box> all;
    for (int64_t i = 0; i < dims[0]; i += size[0]) {
      for (int64_t j = 0; j < dims[1]; j += size[1]) {
        for (int64_t k = 0; k < dims[2]; k += size[2]) {
          all.push_back({{i, j, k}, {i + size[0], j + size[1], k + size[2]}});
        }
      }
    }
    return all;
  };
  const std::vector<std::vector<int64_t>> sizes = {{4, 6, 2}, {2, 6, 2}, {1, 2, 2},
                                                   {4, 3, 1}, {2, 2, 1}, {4, 6, 1}};
  for (const std::vector<int64_t>& from : sizes) {
    for (const std::vector<int64_t>& to : sizes) {
      for (const Box& target : boxes(to)) {
        std::string bytes(Contents(target, dims).size(), '\xff');
        for (const Box& source : boxes(from)) {
          const std::optional<Box> common = Overlap(source, target);
          if (!common) continue;
          const std::string contents = Contents(source, dims);
          CopyBox(*common, 1, {contents.data(), &source}, {bytes.data(), &target});
        }
        EXPECT_EQ(bytes, Contents(target, dims));
      }
    }
  }
}

TEST(CopyBox, ScalarsAreCopiedAndEmptyBoxesAreNot) {
  std::string to = "....";
  const Box scalar;
  CopyBox(scalar, 4, {"abcd", &scalar}, {to.data(), &scalar});
  EXPECT_EQ(to, "abcd");
  const Box empty{{0, 0}, {0, 3}};
  CopyBox(empty, 4, {"abcd", &empty}, {nullptr, &empty});
}

TEST(Box, OverlapsAreWhatBothHave) {
  EXPECT_EQ(Overlap({{0}, {2}}, {{2}, {4}}), std::nullopt);
  EXPECT_EQ(Overlap({{0, 1}, {3, 9}}, {{2, 0}, {4, 5}}), (Box{{2, 1}, {3, 5}}));
  EXPECT_EQ(Overlap({}, {}), Box{});
  // Of f32[0,4], two devices hold the rows of nothing.
  EXPECT_EQ(Overlap({{0, 0}, {0, 4}}, {{0, 2}, {0, 4}}), (Box{{0, 2}, {0, 4}}));
  EXPECT_EQ(Overlap({{0, 0}, {0, 2}}, {{0, 2}, {0, 4}}), std::nullopt);
}

TEST(Box, IsReadAsRangesOfItsDimensions) {
  EXPECT_EQ(ToString(BoxOf({ElementType::kF32, {4, 8}})), "[0:4,0:8]");
  EXPECT_EQ(ToString(Box{{0, 8}, {4, 16}}), "[0:4,8:16]");
  EXPECT_EQ(ToString(Box{}), "[]");
}

}  // namespace
}  // namespace minka
