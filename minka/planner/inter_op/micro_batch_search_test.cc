#include "minka/planner/inter_op/micro_batch_search.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <span>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/base/status.h"
#include "minka/planner/inter_op/stage_search.h"

namespace minka {
namespace {

using ::testing::AllOf;
using ::testing::Ge;
using ::testing::Le;

std::vector<int64_t> Divisors(int64_t number) {
  std::vector<int64_t> out;
  for (int64_t count = 1; count <= number; ++count) {
    if (number % count == 0) out.push_back(count);
  }
  return out;
}

// What estimates one number after the other.
template <typename Estimate>
auto OneByOne(Estimate estimate) {
  return [estimate](std::span<const int64_t> counts) {
    std::vector<absl::StatusOr<CountEstimate>> estimates;
    for (const int64_t count : counts) estimates.push_back(estimate(count));
    return estimates;
  };
}

// Layers of equal work on 8 devices, which take so much for each example and so much beside.
struct Workload {
  int64_t batch = 64;
  int num_layers = 6;
  double us_per_example = 10, us_per_micro_batch = 5;
  double planned_part = 1;  // of what is estimated, what a plan takes

  FoundPipeline Find(int64_t count, int num_micro_batches) const {
    std::vector<StageWay> ways;
    for (const int size : {1, 2, 4}) {
      const double examples = static_cast<double>(batch) / static_cast<double>(count);
      // Fewer examples than devices leave some idle.
      const double us = us_per_example * std::max(examples / size, 1.0) + us_per_micro_batch;
      StageWay way{.num_devices = size};
      way.kept.assign(num_layers, {.forward_us = us / 3, .micro_batch_us = us});
      ways.push_back(std::move(way));
    }
    return FindStages(ways, {.hosts = {{.num_devices = 8, .devices_per_host = 8}},
                             .num_micro_batches = num_micro_batches})
        .front();
  }
  CountEstimate Estimate(int64_t count) const {
    const FoundPipeline found = Find(count, static_cast<int>(count));
    const double work_us =
        Find(count, 1'000'000).step_time_us / 1'000'000 * static_cast<double>(count);
    const bool holds_all = static_cast<int64_t>(found.stages.size()) * 2 > count;
    return {.step_time_us = found.step_time_us,
            .work_us = work_us,
            .waits_us = holds_all ? 0 : found.step_time_us - work_us};
  }
  double Planned(int64_t count) const { return planned_part * Estimate(count).step_time_us; }
};

const TriedCount& Fastest(const std::vector<TriedCount>& tried) {
  const auto time = [](const TriedCount& count) {
    return count.plan && count.plan->fits ? count.plan->step_time_us
                                          : std::numeric_limits<double>::infinity();
  };
  return *std::ranges::min_element(tried, {}, time);
}

// First one in the middle, then those beside it, never more than two; where the middle has no
// estimate, another one there comes next.
TEST(SearchCounts, EstimatesTwoSideBySide) {
  for (const bool middle_fails : {false, true}) {
    std::vector<std::vector<int64_t>> asked;
    SearchCounts({.counts = Divisors(64),
                  .estimate =
                      [&](std::span<const int64_t> counts) {
                        asked.emplace_back(counts.begin(), counts.end());
                        std::vector<absl::StatusOr<CountEstimate>> estimates;
                        for (const int64_t count : counts) {
                          if (middle_fails && count == 16) {
                            estimates.emplace_back(InvalidArgument("no 16"));
                          } else {
                            estimates.emplace_back(CountEstimate{.step_time_us = 10, .work_us = 1});
                          }
                        }
                        return estimates;
                      },
                  .estimate_fitting = [](int64_t) { return 10.0; },
                  .plan = [](int64_t) { return CountPlan{.step_time_us = 10}; }});
    ASSERT_GE(asked.size(), 2U);
    EXPECT_THAT(asked[0], testing::ElementsAre(16));
    EXPECT_EQ(asked[1], middle_fails ? std::vector<int64_t>({8}) : std::vector<int64_t>({8, 32}));
    for (const std::vector<int64_t>& counts : asked) EXPECT_LE(counts.size(), 2U);
  }
}

TEST(SearchCounts, FindsTheFastestWithoutPlanningAll) {
  std::mt19937 random(1);
  const auto draw = [&](double least, double most) {
    return std::uniform_real_distribution<double>(least, most)(random);
  };
  int num_counts = 0, num_estimated = 0, num_planned = 0;
  for (int round = 0; round < 200; ++round) {
    const Workload work{.batch = std::vector<int64_t>{64, 96, 256}[round % 3],
                        .num_layers = 2 + round % 7,
                        .us_per_micro_batch = draw(0, 100),
                        .planned_part = draw(1, 1.1)};
    const std::vector<int64_t> counts = Divisors(work.batch);
    const std::vector<TriedCount> tried = SearchCounts(
        {.counts = counts,
         .estimate = OneByOne([&](int64_t count) { return work.Estimate(count); }),
         .estimate_fitting = [&](int64_t count) { return work.Estimate(count).step_time_us; },
         .plan = [&](int64_t count) { return CountPlan{.step_time_us = work.Planned(count)}; }});
    ASSERT_EQ(tried.size(), counts.size());
    double least = std::numeric_limits<double>::infinity();
    for (const TriedCount& count : tried) {
      const double planned = work.Planned(count.num_micro_batches);
      least = std::min(least, planned);
      // What is known of others says too much by no more than searches are off.
      EXPECT_LE(count.at_least_us, planned * 1.02);
      num_estimated += count.state != CountState::kUnknown;
      num_planned += count.plan.has_value();
    }
    EXPECT_LE(Fastest(tried).plan->step_time_us, least / 0.99);
    num_counts += static_cast<int>(counts.size());
  }
  EXPECT_LT(num_estimated, 0.8 * num_counts);
  EXPECT_LT(num_planned, 0.4 * num_counts);
}

// One micro-batch, two, four.
class SmallSearch {
 public:
  std::vector<double> step_us = {10.5, 10, 11};
  std::function<bool(int64_t)> fits = [](int64_t) { return true; };
  bool knows_what_fits = true;

  std::vector<TriedCount> Run() {
    return SearchCounts({.counts = {1, 2, 4},
                         .estimate = OneByOne([&](int64_t count) -> absl::StatusOr<CountEstimate> {
                           if (StepOf(count) <= 0) return InvalidArgument("no {}", count);
                           return CountEstimate{.step_time_us = StepOf(count)};
                         }),
                         .estimate_fitting = [&](int64_t count) -> std::optional<double> {
                           if (knows_what_fits && !fits(count)) return std::nullopt;
                           return StepOf(count);
                         },
                         .plan =
                             [&](int64_t count) {
                               planned.push_back(count);
                               return CountPlan{.step_time_us = StepOf(count), .fits = fits(count)};
                             },
                         .is_over = [&] { return num_asked++ == most_asked; }});
  }

  std::vector<int64_t> planned;  // in their order
  int num_asked = 0, most_asked = 100;

 private:
  double StepOf(int64_t count) const { return step_us[count == 4 ? 2 : count - 1]; }
};

TEST(SearchCounts, WhatDoesNotFitRefusesLargerMicroBatches) {
  for (const bool knows_what_fits : {true, false}) {
    SmallSearch search;
    search.fits = [](int64_t count) { return count > 2; };
    search.knows_what_fits = knows_what_fits;
    EXPECT_EQ(Fastest(search.Run()).num_micro_batches, 4);
    const std::vector<int64_t> expected =
        knows_what_fits ? std::vector<int64_t>{4} : std::vector<int64_t>{2, 4};
    EXPECT_EQ(search.planned, expected);
  }
}

// A step takes its work and what one micro-batch waits: from one micro-batch to the fastest it only
// gets faster, so that two need not be looked at.
TEST(SearchCounts, TheChordSaysWhatFewMicroBatchesTake) {
  std::vector<int64_t> asked;
  const auto step_us = [](int64_t count) {
    return 100 + 100 / static_cast<double>(count) + 3 * static_cast<double>(count);
  };
  SearchCounts({.counts = {1, 2, 4, 8, 16, 32, 64},
                .estimate = OneByOne([&](int64_t count) {
                  asked.push_back(count);
                  // Stages may hold all that there are: nothing is known of more.
                  return CountEstimate{.step_time_us = step_us(count), .work_us = 100};
                }),
                .estimate_fitting = [&](int64_t count) { return step_us(count); },
                .plan = [&](int64_t count) { return CountPlan{.step_time_us = step_us(count)}; }});
  EXPECT_THAT(asked, testing::IsSupersetOf({1, 4, 8}));
  EXPECT_THAT(asked, testing::Not(testing::Contains(2)));
}

TEST(SearchCounts, MoreMicroBatchesTakeMoreWork) {
  std::vector<int64_t> asked;
  const auto work_us = [](int64_t count) { return 100 + 0.1 * static_cast<double>(count); };
  const auto step_us = [&](int64_t count) {
    return work_us(count) + 1000 / static_cast<double>(count);
  };
  SearchCounts({.counts = Divisors(1024),
                .estimate = OneByOne([&](int64_t count) {
                  asked.push_back(count);
                  return CountEstimate{.step_time_us = step_us(count), .work_us = work_us(count)};
                }),
                .estimate_fitting = [&](int64_t count) { return step_us(count); },
                .plan = [&](int64_t count) { return CountPlan{.step_time_us = step_us(count)}; }});
  EXPECT_THAT(asked, testing::UnorderedElementsAre(64, 32, 128, 256));
}

TEST(SearchCounts, NumbersAreEstimatedFromTheBestOutwards) {
  const auto step_time = [](int64_t count) {
    return 100 + 10 * std::abs(std::log2(static_cast<double>(count)) - 7);
  };
  std::vector<int64_t> estimated;
  const std::vector<TriedCount> tried = SearchCounts(
      {.counts = Divisors(1024),
       .estimate = OneByOne([&](int64_t count) -> absl::StatusOr<CountEstimate> {
         estimated.push_back(count);
         return CountEstimate{.step_time_us = step_time(count), .work_us = 10};
       }),
       .estimate_fitting = [&](int64_t count) -> absl::StatusOr<std::optional<double>> {
         return step_time(count);
       },
       .plan = [&](int64_t count) { return CountPlan{.step_time_us = step_time(count)}; }});
  EXPECT_EQ(Fastest(tried).num_micro_batches, 128);
  ASSERT_GE(estimated.size(), 4U);
  // Beyond 32 and 256, which are slower than their neighbours, none is but for what is estimated
  // beside them.
  EXPECT_THAT(estimated, testing::Each(AllOf(Ge(32), Le(512))));
}

// Two micro-batches take 3 more to fit, so that one does, too.
TEST(SearchCounts, WhatSavingMemoryTakesIsKnownOfLargerMicroBatches) {
  const std::map<int64_t, double> free_us = {{1, 10.3}, {2, 10}, {4, 10.4}};
  const std::map<int64_t, double> fitting_us = {{1, 14}, {2, 13}, {4, 11}};
  std::vector<int64_t> asked;
  const std::vector<TriedCount> tried = SearchCounts(
      {.counts = {1, 2, 4},
       .estimate = OneByOne(
           [&](int64_t count) { return CountEstimate{.step_time_us = free_us.at(count)}; }),
       .estimate_fitting =
           [&](int64_t count) {
             asked.push_back(count);
             return fitting_us.at(count);
           },
       .plan = [&](int64_t count) { return CountPlan{.step_time_us = fitting_us.at(count)}; }});
  EXPECT_THAT(asked, testing::ElementsAre(2, 4));
  EXPECT_EQ(Fastest(tried).num_micro_batches, 4);
  EXPECT_DOUBLE_EQ(tried[0].at_least_us, 10.3 + 3);
}

// One micro-batch, estimated to be the fastest, needs twenty times the limit, sixteen a little more
// than it. These are asked about first, then fewer, one after the other: where four do not fit,
// even fewer are not asked about; where they do, what that takes says enough of fewer.
TEST(SearchCounts, WhatNeedsManyTimesTheLimitIsNotLookedAtByItself) {
  for (const bool four_fit : {false, true}) {
    std::vector<int64_t> estimated, asked;
    const auto step_us = [](int64_t count) { return 100 + static_cast<double>(count); };
    const std::vector<TriedCount> tried = SearchCounts(
        {.counts = {1, 2, 4, 8, 16},
         .estimate = OneByOne([&](int64_t count) {
           estimated.push_back(count);
           return CountEstimate{.step_time_us = step_us(count),
                                .part_of_limits = 20 / static_cast<double>(count)};
         }),
         .estimate_fitting = [&](int64_t count) -> absl::StatusOr<std::optional<double>> {
           asked.push_back(count);
           if (count < (four_fit ? 4 : 8)) return std::nullopt;
           return step_us(count) + 80 / static_cast<double>(count);
         },
         .plan =
             [&](int64_t count) {
               return CountPlan{.step_time_us = step_us(count) + 80 / static_cast<double>(count)};
             }});
    EXPECT_THAT(asked, testing::ElementsAre(16, 8, 4));
    if (!four_fit) EXPECT_THAT(estimated, testing::Not(testing::Contains(testing::AnyOf(1, 2))));
    EXPECT_EQ(Fastest(tried).num_micro_batches, 8);
  }
}

// Two micro-batches need two and a half times the limit however much is saved: three and four need
// more than it, too.
TEST(SearchCounts, WhatTooFewNeedLeavesOutMore) {
  std::vector<int64_t> estimated;
  const auto step_us = [](int64_t count) { return 100 + static_cast<double>(count); };
  const std::vector<TriedCount> tried = SearchCounts(
      {.counts = {1, 2, 3, 4, 6, 12},
       .estimate = OneByOne([&](int64_t count) {
         estimated.push_back(count);
         return CountEstimate{
             .step_time_us = step_us(count), .work_us = step_us(count), .part_of_limits = 3};
       }),
       .estimate_fitting = [&](int64_t count) -> absl::StatusOr<std::optional<double>> {
         if (count < 6) return std::nullopt;
         return step_us(count);
       },
       .least_part = [](int64_t count) { return 5 / static_cast<double>(count); },
       .plan = [&](int64_t count) { return CountPlan{.step_time_us = step_us(count)}; },
       .smallest_first = true});
  EXPECT_EQ(estimated.front(), 1);
  EXPECT_THAT(estimated, testing::Not(testing::Contains(testing::AnyOf(3, 4))));
  EXPECT_EQ(Fastest(tried).num_micro_batches, 6);
  EXPECT_EQ(tried[2].state, CountState::kTooLarge);
}

// What saving takes of twelve micro-batches of ten examples it takes of six of twenty, and of eight
// of fifteen, which no two devices share; not of ten of twelve, of which four devices have three.
TEST(SearchCounts, WhatSavingTakesIsKnownOfWhatSplitsNoBetter) {
  std::vector<int64_t> asked;
  const std::vector<TriedCount> tried = SearchCounts(
      {.counts = {6, 8, 10, 12, 120},
       .num_devices = 4,
       .estimate = OneByOne([&](int64_t count) {
         return CountEstimate{
             .step_time_us = count < 120 ? 100.0 : 200,
             .work_us = 50,
             .part_of_limits = count < 12 ? 2 : 12 / static_cast<double>(count) * 1.1};
       }),
       .estimate_fitting = [&](int64_t count) -> absl::StatusOr<std::optional<double>> {
         asked.push_back(count);
         return count == 12 ? 110 : 102;
       },
       .plan = [&](int64_t) { return CountPlan{.step_time_us = 102}; },
       .smallest_first = true});
  EXPECT_THAT(asked, testing::ElementsAre(12, 10));
  EXPECT_DOUBLE_EQ(tried[0].at_least_us, 110);
  EXPECT_DOUBLE_EQ(tried[1].at_least_us, 110);
}

// Thirty-two micro-batches are the first that are planned. Sixteen, which need five times the
// limit, turn out not to be worth a look: eight do not wait for them.
TEST(SearchCounts, NothingWaitsForWhatIsNotLookedAt) {
  const std::map<int64_t, double> free_us = {{8, 90}, {16, 99.5}, {32, 100}, {64, 104}};
  const std::map<int64_t, double> fitting_us = {{8, 106}, {16, 112}, {32, 112}, {64, 114}};
  const auto of = [](const std::map<int64_t, double>& us, int64_t count) {
    return us.contains(count) ? us.at(count) : 200;
  };
  const std::vector<TriedCount> tried = SearchCounts(
      {.counts = Divisors(64),
       .estimate = OneByOne([&](int64_t count) {
         return CountEstimate{.step_time_us = of(free_us, count),
                              .work_us = 50,
                              .part_of_limits = 80 / static_cast<double>(count)};
       }),
       .estimate_fitting = [&](int64_t count) { return of(fitting_us, count); },
       .plan = [&](int64_t count) { return CountPlan{.step_time_us = of(fitting_us, count)}; }});
  EXPECT_EQ(Fastest(tried).num_micro_batches, 8);
}

// Sixteen micro-batches of fifteen examples, and twenty of twelve, are slower than fifteen of
// sixteen because eight devices do not share them: thirty of eight may still be faster.
TEST(SearchCounts, WhatSplitsUnevenlySaysNothingOfNumbersBeyond) {
  for (const int num_devices : {1, 8}) {
    const std::map<int64_t, double> step_us = {{15, 100}, {16, 108}, {20, 103}, {30, 96}};
    const std::vector<TriedCount> tried = SearchCounts(
        {.counts = {15, 16, 20, 30, 240},
         .num_devices = num_devices,
         .estimate = OneByOne([&](int64_t count) {
           const double us = count < 240 ? step_us.at(count) : 300;
           return CountEstimate{.step_time_us = us, .work_us = 0.9 * us};
         }),
         .estimate_fitting = [&](int64_t count) { return step_us.at(count); },
         .plan = [&](int64_t count) { return CountPlan{.step_time_us = step_us.at(count)}; },
         .smallest_first = true});
    EXPECT_EQ(Fastest(tried).num_micro_batches, num_devices == 1 ? 15 : 30);
  }
}

// The plan of four takes a tenth more than estimated: two, which have to save memory, are not
// expected to beat it, which says nothing of one. That takes what was estimated, as two may then.
TEST(SearchCounts, WhatIsNotWorthALookHidesNothing) {
  const std::map<int64_t, double> free_us = {{1, 105}, {2, 100.5}, {4, 100}};
  std::vector<int64_t> planned;
  SearchCounts({.counts = {1, 2, 4},
                .estimate = OneByOne([&](int64_t count) {
                  return CountEstimate{.step_time_us = free_us.at(count),
                                       .part_of_limits = count == 2 ? 2.0 : 0.5};
                }),
                .estimate_fitting = [&](int64_t count) { return free_us.at(count); },
                .plan =
                    [&](int64_t count) {
                      planned.push_back(count);
                      return CountPlan{.step_time_us = count == 4 ? 110 : free_us.at(count)};
                    }});
  EXPECT_THAT(planned, testing::ElementsAre(4, 1, 2));
}

// How four micro-batches would save memory takes time to find: eight fit as they are, and are less
// than a hundredth slower.
TEST(SearchCounts, WhatNeedsNoSavingComesFirstWhereItIsNearlyAsFast) {
  std::vector<int64_t> asked;
  const std::vector<TriedCount> tried = SearchCounts(
      {.counts = {4, 8},
       .estimate = OneByOne([&](int64_t count) {
         return CountEstimate{.step_time_us = count == 4 ? 100 : 100.5,
                              .work_us = 100,
                              .part_of_limits = 6 / static_cast<double>(count)};
       }),
       .estimate_fitting = [&](int64_t count) -> absl::StatusOr<std::optional<double>> {
         asked.push_back(count);
         return 100.5;
       },
       .plan = [&](int64_t) { return CountPlan{.step_time_us = 100.5}; }});
  EXPECT_THAT(asked, testing::ElementsAre(8));
  EXPECT_EQ(Fastest(tried).num_micro_batches, 8);
}

TEST(SearchCounts, OnlyWhatIsFasterThanAskedForIsLookedFor) {
  for (const double faster_than_us : {2.5, 20.0}) {
    std::vector<int64_t> planned;
    const auto step_us = [](int64_t count) { return 4 - std::log2(static_cast<double>(count)); };
    SearchCounts({.counts = {1, 2},
                  .estimate = OneByOne(
                      [&](int64_t count) { return CountEstimate{.step_time_us = step_us(count)}; }),
                  .estimate_fitting = [&](int64_t count) { return step_us(count); },
                  .plan =
                      [&](int64_t count) {
                        planned.push_back(count);
                        return CountPlan{.step_time_us = step_us(count)};
                      },
                  .faster_than_us = faster_than_us});
    EXPECT_EQ(planned.size(), faster_than_us > 3 ? 1 : 0);
  }
}

// Two micro-batches turn out to be too slow, so that four, estimated to take longer, are not tried.
TEST(SearchCounts, WhatIsEstimatedToBeSlowerThanWhatIsTooSlowIsNotLookedFor) {
  std::vector<int64_t> planned;
  const std::map<int64_t, double> estimates = {{1, 30}, {2, 10}, {4, 11}};
  const std::vector<TriedCount> tried =
      SearchCounts({.counts = {1, 2, 4},
                    .estimate = OneByOne([&](int64_t count) {
                      return CountEstimate{.step_time_us = estimates.at(count)};
                    }),
                    .estimate_fitting = [&](int64_t count) { return estimates.at(count); },
                    .plan = [&](int64_t count) -> absl::StatusOr<CountPlan> {
                      planned.push_back(count);
                      return absl::AbortedError("too slow");
                    },
                    .faster_than_us = 20});
  EXPECT_THAT(planned, testing::ElementsAre(2));
  EXPECT_EQ(tried[1].state, CountState::kFailed);
  EXPECT_EQ(tried[2].state, CountState::kEstimated);
}

// None fits, as estimated, and none has a plan: numbers that were refused without an estimate, as
// larger ones that need less do not fit, are not planned.
TEST(SearchCounts, WhatHasNoEstimateIsNotPlanned) {
  std::vector<int64_t> estimated, planned;
  SearchCounts({.counts = Divisors(64),
                .estimate = OneByOne([&](int64_t count) {
                  estimated.push_back(count);
                  return CountEstimate{.step_time_us = 100, .part_of_limits = 2};
                }),
                .estimate_fitting = [](int64_t) -> absl::StatusOr<std::optional<double>> {
                  return std::nullopt;
                },
                .plan = [&](int64_t count) -> absl::StatusOr<CountPlan> {
                  planned.push_back(count);
                  return absl::UnknownError("no plan");
                }});
  EXPECT_THAT(planned, testing::IsSubsetOf(estimated));
  EXPECT_FALSE(planned.empty());
}

// One micro-batch needs too much, whatever it was estimated to need, and there is no plan to beat:
// two, estimated to take longer, are tried.
TEST(SearchCounts, WhatIsTooLargeSaysNothingOfTimesWhereNoneIsToBeat) {
  std::vector<int64_t> planned;
  const std::map<int64_t, double> estimates = {{1, 10}, {2, 20}};
  SearchCounts({.counts = {1, 2},
                .estimate = OneByOne([&](int64_t count) {
                  return CountEstimate{.step_time_us = estimates.at(count)};
                }),
                .estimate_fitting = [&](int64_t count) { return estimates.at(count); },
                .plan = [&](int64_t count) -> absl::StatusOr<CountPlan> {
                  planned.push_back(count);
                  if (count == 1) return absl::AbortedError("estimated to need too much memory");
                  return CountPlan{.step_time_us = 20};
                }});
  EXPECT_THAT(planned, testing::ElementsAre(1, 2));
}

TEST(SearchCounts, TheSmallestComesFirstWhereNothingWaits) {
  std::vector<int64_t> asked;
  const auto step_us = [](int64_t count) { return 100 + static_cast<double>(count); };
  const std::vector<TriedCount> tried = SearchCounts(
      {.counts = Divisors(64),
       .estimate = OneByOne([&](int64_t count) {
         asked.push_back(count);
         return CountEstimate{.step_time_us = step_us(count), .work_us = step_us(count)};
       }),
       .estimate_fitting = [&](int64_t count) { return step_us(count); },
       .plan = [&](int64_t count) { return CountPlan{.step_time_us = step_us(count)}; },
       .smallest_first = true});
  EXPECT_THAT(asked, testing::ElementsAre(1));
  EXPECT_EQ(Fastest(tried).num_micro_batches, 1);
}

TEST(SearchCounts, WhereNothingFitsTheMostMicroBatchesArePlanned) {
  SmallSearch search;
  search.fits = [](int64_t) { return false; };
  const std::vector<TriedCount> tried = search.Run();
  EXPECT_THAT(search.planned, testing::ElementsAre(4));
  EXPECT_FALSE(tried[2].plan->fits);
}

TEST(SearchCounts, FailuresOfSomeLeaveTheOthers) {
  SmallSearch search;
  search.step_us = {7, 0, 0};
  const std::vector<TriedCount> tried = search.Run();
  EXPECT_EQ(Fastest(tried).num_micro_batches, 1);
  EXPECT_EQ(Message(tried[1].failure), "no 2");
  EXPECT_EQ(Message(tried[2].failure), "no 4");
}

TEST(SearchCounts, EndsWhereItIsOver) {
  SmallSearch search;
  search.most_asked = 2;
  const std::vector<TriedCount> tried = search.Run();
  EXPECT_EQ(tried[0].state, CountState::kEstimated);
  EXPECT_TRUE(search.planned.empty());
}

}  // namespace
}  // namespace minka
