#include "minka/frontend/random.h"

#include <gtest/gtest.h>

#include <cmath>

#include "minka/base/status.h"
#include "minka/ir/testing/evaluator.h"

namespace minka {
namespace {

using testing::Array;
using testing::Evaluate;

Array Mask(const std::vector<int64_t>& dims, uint64_t site, double probability) {
  Graph graph("test");
  const Tensor key = graph.Parameter({ElementType::kU32, {2}}, "key");
  const Tensor mask = RandomMask(MixKey(key), site, dims, probability);
  graph.builder().SetResults({mask.value()});
  absl::StatusOr<Module> module = std::move(graph.module()).Finish();
  EXPECT_TRUE(module.ok()) << Message(module.status());
  return Evaluate(*module, {{{ElementType::kU32, {2}}, {7, 4000000000.0L}}}).front();
}

TEST(RandomTest, MaskIsTheHostGeneratorOfTheGlobalIndex) {
  const uint64_t site = SiteConstant("layer_0/dropout");
  const uint64_t key = SiteKey(MixKey(7 + (uint64_t{4000000000} << 32)), site);
  const Array mask = Mask({3, 5, 7}, site, 0.75);
  for (size_t i = 0; i < mask.elements.size(); ++i) {
    EXPECT_EQ(mask.elements[i], SquaresBits(i, key) < 0xc0000000) << i;
  }
}

TEST(RandomTest, KeyZeroIsAKeyLikeAnyOther) {
  const uint64_t key = SiteKey(MixKey(uint64_t{0}), SiteConstant("a"));
  int ones = 0;
  for (int i = 0; i < 1000; ++i) ones += SquaresBits(i, key) >> 31;
  EXPECT_GT(ones, 400);
  EXPECT_LT(ones, 600);
}

TEST(RandomTest, BitsAreBalancedAndSitesAndNeighboursAreIndependent) {
  const int count = 1 << 16;
  const uint64_t mixed = MixKey(12345);
  const uint64_t a = SiteKey(mixed, SiteConstant("a")), b = SiteKey(mixed, SiteConstant("b"));
  double mean = 0, neighbours = 0, sites = 0;
  for (int i = 0; i < count; ++i) {
    const auto centred = [](uint32_t bits) { return bits * 0x1p-32 - 0.5; };
    const double x = centred(SquaresBits(i, a));
    mean += x;
    neighbours += x * centred(SquaresBits(i + 1, a));
    sites += x * centred(SquaresBits(i, b));
  }
  // Five standard deviations of sums of independent uniform numbers.
  EXPECT_LT(std::abs(mean / count), 5 * std::sqrt(1.0 / 12 / count));
  EXPECT_LT(std::abs(neighbours / count), 5.0 / 12 / std::sqrt(count));
  EXPECT_LT(std::abs(sites / count), 5.0 / 12 / std::sqrt(count));
}

}  // namespace
}  // namespace minka
