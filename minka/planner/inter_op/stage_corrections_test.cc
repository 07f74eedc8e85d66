#include "minka/planner/inter_op/stage_corrections.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace minka {
namespace {

using testing::ElementsAre;

// Three equal layers and another one.
StageWay Way(int num_devices) {
  return {.num_devices = num_devices,
          .kept = {{.micro_batch_us = 2, .static_bytes = 10},
                   {.micro_batch_us = 2, .static_bytes = 10},
                   {.micro_batch_us = 2, .static_bytes = 10},
                   {.micro_batch_us = 3, .static_bytes = 10}}};
}

TEST(StageCorrector, TimesStandForAllStagesOfSuchLayers) {
  const std::vector<StageWay> ways = {Way(1)};
  StageCorrector corrector(ways, {});
  const StageEstimates estimates(ways);
  const std::vector<FoundStage> found = {estimates.StageOf(0, 0, 2, 0, {1}),
                                         estimates.StageOf(0, 2, 4, 0, {1})};
  // The second one is as estimated, nearly.
  corrector.Correct(found, std::vector<StageFigures>{{{5, 7}, 20}, {{5.01, 7}, 20}});
  const auto& times = corrector.corrections().times;
  ASSERT_EQ(times.size(), 1U);
  EXPECT_EQ(times.begin()->first, (StageKey{.way = 0, .layers = {0, 0}}));
  EXPECT_EQ(times.begin()->second.micro_batch_us, 5);
  EXPECT_EQ(times.begin()->second.step_us, 7);
}

TEST(StageCorrector, WhatIsNotKnownOfAWayIsTakenFromTheLikest) {
  const std::vector<StageWay> ways = {Way(1), Way(1), Way(2), Way(2), Way(2)};
  StageCorrector corrector(ways, {0.5, 8, 0.5, 8, 0.5});
  EXPECT_TRUE(corrector.corrections().more_bytes.empty());
  const StageEstimates estimates(ways);
  const std::vector<FoundStage> found = {estimates.StageOf(0, 0, 2, 0, {1}),
                                         estimates.StageOf(2, 2, 4, 0, {1})};
  corrector.Correct(found, std::vector<StageFigures>{{{4, 0}, 23}, {{5, 0}, 25}});
  // At another price the most of all; of as many devices as that; of that itself.
  EXPECT_THAT(corrector.corrections().more_bytes, ElementsAre(3, 5, 5, 5, 5));
  // What was corrected counts once, and never less than before.
  std::vector<FoundStage> again = {estimates.StageOf(0, 0, 2, 0, {1})};
  again[0].bytes += 3;
  corrector.Correct(again, std::vector<StageFigures>{{{4, 0}, 22}});
  EXPECT_EQ(corrector.corrections().more_bytes[0], 3);
}

}  // namespace
}  // namespace minka
