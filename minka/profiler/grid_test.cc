#include "minka/profiler/grid.h"

#include <algorithm>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace minka {
namespace {

double FlopsOf(const DotShape& dot) {
  return 2.0 * static_cast<double>(dot.batch * dot.m * dot.n) * static_cast<double>(dot.k);
}

double MostFlops(const std::vector<DotShape>& dots) {
  return FlopsOf(*std::ranges::max_element(dots, {}, FlopsOf));
}

TEST(GridTest, HasEveryFormOnEveryPlatform) {
  for (const Platform platform : {Platform::kCpu, Platform::kCuda}) {
    const ProfileGrid grid = GridFor(platform, /*num_devices=*/8);
    for (const DotForm form : kDotForms) {
      EXPECT_GE(std::ranges::count(grid.dots, form, &DotShape::form), 6);
      EXPECT_GE(std::ranges::count(grid.half_dots, form, &DotShape::form), 6);
    }
    for (const DotShape& dot : grid.dots) EXPECT_GT(FlopsOf(dot), 0);
  }
}

// Few of those spread evenly have rows that share places in a cache (DotModel).
TEST(GridTest, ProcessorsMultiplyRowsThatLieApartByPowersOfTwo) {
  const ProfileGrid grid = GridFor(Platform::kCpu, /*num_devices=*/8);
  for (const DotForm form : kDotForms) {
    for (const std::vector<DotShape>* const dots : {&grid.dots, &grid.cached_dots}) {
      EXPECT_GE(std::ranges::count_if(*dots,
                                      [form](const DotShape& dot) {
                                        const int64_t row = form == DotForm::kNT ? dot.k : dot.n;
                                        return dot.form == form && row % 512 == 0;
                                      }),
                3)
          << ToString(form);
    }
  }
}

TEST(GridTest, ProcessorsMultiplyHalvesAsTheyDoSomeOfTheOthers) {
  const ProfileGrid grid = GridFor(Platform::kCpu, /*num_devices=*/8);
  EXPECT_FALSE(grid.has_half_units);
  EXPECT_LT(grid.half_dots.size(), grid.dots.size());
  for (const DotShape& half : grid.half_dots) EXPECT_THAT(grid.dots, testing::Contains(half));
  EXPECT_LE(MostFlops(grid.dots), 0.5e9);
}

TEST(GridTest, FewerDevicesTouchAsMuch) {
  const ProfileGrid many = GridFor(Platform::kCpu, 8), one = GridFor(Platform::kCpu, 1);
  // Eight share cores, and have programs three times as long.
  EXPECT_EQ(3 * one.num_streamed * one.streamed_elements,
            8 * many.num_streamed * many.streamed_elements);
  EXPECT_EQ(one.most_dots, 8 * many.most_dots);
  const ProfileGrid sixteen = GridFor(Platform::kCpu, 16);
  EXPECT_EQ(2 * sixteen.num_streamed, many.num_streamed);
  EXPECT_EQ(2 * sixteen.fewest_dots, many.fewest_dots);
  EXPECT_EQ(GridFor(Platform::kCpu, 64).num_streamed, 8);
}

TEST(GridTest, GpusMultiplyWhatTakesThemAsLong) {
  const ProfileGrid grid = GridFor(Platform::kCuda, /*num_devices=*/1);
  EXPECT_TRUE(grid.has_half_units);
  EXPECT_GT(MostFlops(grid.half_dots), 1e11);
  constexpr int64_t kMostElements = int64_t{1} << 30;
  for (const DotShape& dot : grid.half_dots) {
    EXPECT_LE(dot.batch * std::max({dot.m * dot.k, dot.k * dot.n, dot.m * dot.n}), kMostElements);
  }
}

}  // namespace
}  // namespace minka
