#include "minka/planner/intra_op/reshard_prices.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/base/parallel.h"

namespace minka {
namespace {

class ReshardPricesTest : public testing::Test {
 protected:
  static std::vector<Sharding> Shardings(const Mesh& mesh) {
    std::vector<Sharding> shardings;
    for (const char* text : {"[-,-]", "[x,-]", "[-,x]", "[y,x]", "[x+y,-]", "[x+y,z]", "[-,z+x]"}) {
      shardings.push_back(ParseSharding(text, mesh).value());
      if (shardings.back().split_axes().contains(1)) continue;
      shardings.push_back(shardings.back());
      shardings.back().partial.Insert(1);
    }
    return shardings;
  }

  const Mesh mesh_ = *Mesh::Parse("x=2,y=2,z=2");
  const std::unique_ptr<CostModel> cost_ =
      MakeRooflineCostModel(*Cluster::Preset("p3.16xlarge"), mesh_);
  const Shape shape_ = {.type = ElementType::kF32, .dims = {64, 256}};
};

// Whoever asks for what before, on however many threads.
TEST_F(ReshardPricesTest, TablesSayWhatTheCheapestPathCosts) {
  const std::vector<Sharding> shardings = Shardings(mesh_);
  const auto num_shardings = static_cast<int>(shardings.size());
  for (const ReshardRules& rules :
       {ReshardRules(), ReshardRules{.no_all_gather = true},
        ReshardRules{.discourages_gathers = true, .combining = CombiningRules{}}}) {
    const ReshardPrice price = PriceUnder(rules, *cost_, mesh_, shape_.type);
    ReshardCostTables tables(mesh_, *cost_);
    std::vector<double> found(num_shardings * num_shardings);
    ForEachInParallel(num_shardings * num_shardings, 4, [&](int i) {
      const int pair = i * 37 % (num_shardings * num_shardings);
      found[pair] = tables.Of(shape_, rules)
                        .Between(shardings[pair / num_shardings], shardings[pair % num_shardings]);
    });
    for (int pair = 0; pair < num_shardings * num_shardings; ++pair) {
      const Sharding &from = shardings[pair / num_shardings], &to = shardings[pair % num_shardings];
      const AxisSet added = to.partial.Minus(from.partial);
      if (added.Minus(from.split_axes()) != added) continue;
      EXPECT_EQ(found[pair], CheapestReshard(shape_, from, to, mesh_, price).cost)
          << ToString(from, mesh_) << " " << ToString(to, mesh_);
    }
  }
}

TEST_F(ReshardPricesTest, EqualShapesUnderEqualRulesShareATable) {
  ReshardCostTables tables(mesh_, *cost_);
  const auto table = [&](const Shape& shape, const ReshardRules& rules) {
    return &tables.Of(shape, rules);
  };
  const auto* plain = table(shape_, {});
  EXPECT_EQ(table(shape_, {}), plain);
  EXPECT_NE(table({.type = ElementType::kBF16, .dims = shape_.dims}, {}), plain);
  EXPECT_NE(table({.type = shape_.type, .dims = {256, 64}}, {}), plain);
  EXPECT_NE(table(shape_, {.fixed_axes = AxisSet::Of(0)}), plain);
  const auto* combined = table(shape_, {.combining = CombiningRules{.num_combinable = 2}});
  EXPECT_NE(combined, plain);
  EXPECT_NE(table(shape_, {.combining = CombiningRules{.num_combinable = 3}}), combined);
}

}  // namespace
}  // namespace minka
