#include "minka/planner/inter_op/remat_search.h"

#include <algorithm>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/base/status.h"
#include "minka/planner/intra_op/intra_op.h"

namespace minka {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Lt;

using enum RematPolicy;

// Layers that keep 10 bytes each; dots keep 4 of them for 1 us more, all keep 1 for 3 us. Besides
// 100 bytes are needed, of which sharding saves as many as it must, at most 50, for 1 us per byte.
class Planner {
 public:
  explicit Planner(bool shards, int num_layers = kLayers)
      : shards_(shards), num_layers_(num_layers) {}

  SearchResult<Plan> operator()(const RematChoice& choice, std::optional<int64_t> limit) {
    tried.push_back(choice);
    Plan plan;
    plan.remat = choice;
    plan.objective = 100;
    plan.peak_memory_bytes = 100 + 10 * num_layers_;
    for (const RematPolicy policy : choice) {
      if (policy == kDots) plan.objective += 1;
      if (policy == kAll) plan.objective += 3;
      if (policy == kDots) plan.peak_memory_bytes -= 6;
      if (policy == kAll) plan.peak_memory_bytes -= 9;
    }
    if (!shards_ || !limit || plan.peak_memory_bytes <= *limit) return plan;
    const int64_t missing = plan.peak_memory_bytes - *limit;
    if (missing > 50) {
      return Refusal{.why = ResourceExhausted("does not fit"),
                     .smallest_limit_bytes = plan.peak_memory_bytes - 50};
    }
    plan.peak_memory_bytes = *limit;
    plan.objective += static_cast<double>(missing);
    plan.memory_price = 1;
    return plan;
  }

  static constexpr int kLayers = 8;
  std::vector<RematChoice> tried;

 private:
  const bool shards_;
  const int num_layers_;
};

SearchResult<Plan> Search(Planner& planner, std::optional<int64_t> limit) {
  return SearchRemat(std::ref(planner),
                     {.candidates = {kNone, kAll, kAll, kAll, kAll, kAll, kAll, kAll, kAll, kNone},
                      .memory_limit_bytes = limit});
}

TEST(SearchRemat, PlansOnceWhereNothingPresses) {
  Planner planner(/*shards=*/true);
  const Plan plan = *Search(planner, 180);
  EXPECT_THAT(plan.remat, IsEmpty());
  EXPECT_TRUE(plan.gap.has_value());
  EXPECT_THAT(planner.tried, ElementsAre(RematChoice()));
  EXPECT_TRUE(Search(planner, std::nullopt)->gap.has_value());
}

// Bisecting both rows of 128 and 64 choices takes 13 trials behind the first three.
TEST(SearchRemat, TriesFewChoicesWhereLayersSaveAlike) {
  constexpr int kMany = 64;
  for (const int num_dots : {5, 17, 30, 59}) {
    Planner planner(/*shards=*/false, kMany);
    const Plan plan =
        *SearchRemat(std::ref(planner), {.candidates = RematChoice(kMany, kAll),
                                         .memory_limit_bytes = 100 + 10 * kMany - 6 * num_dots});
    EXPECT_EQ(std::ranges::count(plan.remat, kDots), num_dots);
    EXPECT_EQ(std::ranges::count(plan.remat, kAll), 0);
    EXPECT_LE(planner.tried.size(), 14);
  }
}

TEST(SearchRemat, TakesTheCheapestRecomputationThatFits) {
  // 180 bytes by themselves: 3 layers of dots save 18 for 3 us, 2 of all 18 for 6 us.
  Planner planner(/*shards=*/false);
  const Plan plan = *Search(planner, 163);
  EXPECT_THAT(plan.remat,
              ElementsAre(kNone, kDots, kDots, kDots, kNone, kNone, kNone, kNone, kNone, kNone));
  EXPECT_FALSE(plan.gap.has_value()) << "no bound covers the choice";
  EXPECT_LE(planner.tried.size(), 12u);
  // More than dots of all layers (48) can save: some layers are recomputed whole.
  const Plan tight = *Search(planner, 180 - 52);
  EXPECT_LE(tight.peak_memory_bytes, 180 - 52);
  EXPECT_EQ(std::ranges::count(tight.remat, kAll), 2);
  EXPECT_EQ(std::ranges::count(tight.remat, kDots), 6);
}

TEST(SearchRemat, ShardsTheRestWhereThatIsCheaper) {
  // 5 bytes missing: sharding alone costs 5 us, one layer of dots 1 us.
  Planner planner(/*shards=*/true);
  EXPECT_EQ(Search(planner, 175)->objective, 101);
  // 7 missing: one layer of dots and 1 byte of sharding cost 2 us, as two layers of dots do.
  EXPECT_EQ(Search(planner, 173)->objective, 102);
}

TEST(SearchRemat, AnErrorNamesTheSmallestLimit) {
  Planner planner(/*shards=*/true);
  EXPECT_EQ(Search(planner, 50).status().smallest_limit_bytes, 180 - 72 - 50);
  Planner rigid(/*shards=*/false);
  EXPECT_EQ(Search(rigid, 50)->peak_memory_bytes, 180 - 72);
}

}  // namespace
}  // namespace minka
