#include "minka/planner/inter_op/fit_stages.h"

#include <algorithm>
#include <map>
#include <random>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/base/status.h"

namespace minka {
namespace {

using enum RematPolicy;
using testing::ElementsAre;
using testing::IsEmpty;

// Two stages of three layers on a mesh each. What a layer keeps of a micro-batch, and what it costs
// to compute it again, is equal for all; the first stage holds two micro-batches, the other one.
class FitStagesTest : public testing::Test {
 protected:
  static constexpr int64_t kState = 1000, kKept = 100, kKeptOfDots = 40, kLeastState = 600;
  // Limits that are tried for a stage: powers of 0.97 of its state.
  static constexpr int64_t kBelow900 = 885, kBelow800 = 783, kBelow650 = 633, kLeastLimit = 218;
  static constexpr double kLayerUs = 10, kDotsUs = 1, kAllUs = 4;

  FitStagesTest() {
    options_.stage_of_layer = {0, 0, 0, 1, 1, 1};
    options_.mesh_of_stage = {0, 1};
    options_.candidates.assign(6, kAll);
  }

  // Without a limit a stage needs its state; under one its search makes that smaller, for a price.
  absl::StatusOr<DemandedPipeline> Plan(const StageDemands& demands) {
    ++num_plans_;
    DemandedPipeline out;
    for (int stage = 0; stage < 2; ++stage) {
      DemandedPipeline::Stage of_stage{.searched_bytes = kState, .busy_us = 3 * kLayerUs};
      int64_t kept = 0;
      for (size_t layer = 3 * stage; layer < 3U * stage + 3; ++layer) {
        const RematPolicy policy = demands.remat.empty() ? kNone : demands.remat[layer];
        kept += policy == kNone ? kKept : policy == kDots ? kKeptOfDots : 0;
        of_stage.busy_us += policy == kNone ? 0 : policy == kDots ? kDotsUs : kAllUs;
      }
      if (!demands.limit_bytes.empty() && demands.limit_bytes[stage]) {
        of_stage.searched_bytes = std::max(kLeastState, *demands.limit_bytes[stage]);
        of_stage.busy_us += us_per_byte_[stage] * (kState - of_stage.searched_bytes);
      }
      of_stage.peak_bytes = of_stage.searched_bytes + (2 - stage) * kept;
      out.step_time_us = std::max(out.step_time_us, of_stage.busy_us);
      out.stages.push_back(of_stage);
    }
    if (options_.mesh_of_stage[0] == options_.mesh_of_stage[1]) {
      const int64_t both = out.stages[0].peak_bytes + out.stages[1].peak_bytes;
      for (DemandedPipeline::Stage& stage : out.stages) stage.peak_bytes = both;
    }
    return out;
  }

  StageDemands Fit(int64_t limit_bytes, const StageDemands& first = {}) {
    return Fit(std::vector<int64_t>(2, limit_bytes), first);
  }

  StageDemands Fit(std::vector<int64_t> limit_of_mesh, const StageDemands& first = {}) {
    options_.limit_of_mesh = std::move(limit_of_mesh);
    return FitStages(first, options_, [this](const StageDemands& demands) { return Plan(demands); })
        .value();
  }

  FitOptions options_;
  double us_per_byte_[2] = {1, 1};
  int num_plans_ = 0;
};

TEST_F(FitStagesTest, WhatFitsIsTakenAsItIs) {
  EXPECT_EQ(Fit(1600), StageDemands());
  EXPECT_EQ(num_plans_, 1);
}

// 1,600 and 1,300 bytes without.
TEST_F(FitStagesTest, LayersAreRecomputedAsFarAsNeeded) {
  EXPECT_THAT(Fit(1500).remat, ElementsAre(kDots, kNone, kNone, kNone, kNone, kNone));
  EXPECT_THAT(Fit(1480).remat, ElementsAre(kDots, kNone, kNone, kNone, kNone, kNone));
  EXPECT_THAT(Fit(1479).remat, ElementsAre(kDots, kDots, kNone, kNone, kNone, kNone));
  EXPECT_THAT(Fit(1100).remat, ElementsAre(kAll, kAll, kDots, kAll, kDots, kDots));
}

TEST_F(FitStagesTest, SearchesUnderALimitWhereThatIsFaster) {
  us_per_byte_[0] = 0.001;
  const StageDemands demands = Fit(1500);
  EXPECT_THAT(demands.remat, IsEmpty());
  EXPECT_THAT(demands.limit_bytes, ElementsAre(kBelow900, std::nullopt));
}

// Each mesh for itself.
TEST_F(FitStagesTest, EachMeshTakesItsFasterWay) {
  us_per_byte_[0] = 0.001;
  const StageDemands demands = Fit(1250);
  EXPECT_THAT(demands.remat, ElementsAre(kNone, kNone, kNone, kDots, kNone, kNone));
  EXPECT_EQ(demands.limit_bytes[0], kBelow650);
  EXPECT_EQ(demands.limit_bytes[1], std::nullopt);
}

TEST_F(FitStagesTest, BothAreDoneWhereNeitherIsEnough) {
  const StageDemands demands = Fit(650);
  EXPECT_THAT(demands.remat, ElementsAre(kAll, kAll, kAll, kAll, kAll, kAll));
  EXPECT_THAT(demands.limit_bytes, ElementsAre(kBelow650, kBelow650));
}

TEST_F(FitStagesTest, EachMeshKeepsItsOwnLimit) {
  EXPECT_EQ(Fit({1600, 1300}), StageDemands());
  EXPECT_THAT(Fit({1600, 1200}).remat, ElementsAre(kNone, kNone, kNone, kDots, kDots, kNone));
  EXPECT_THAT(Fit({1500, 1300}).remat, ElementsAre(kDots, kNone, kNone, kNone, kNone, kNone));
}

TEST_F(FitStagesTest, WhatNeedsLeastWhereNothingFits) {
  EXPECT_THAT(Fit(100).remat, ElementsAre(kAll, kAll, kAll, kAll, kAll, kAll));
  options_.candidates.clear();
  const RematChoice dots(6, kDots);
  EXPECT_EQ(Fit(100, {.remat = dots}).remat, dots);
}

TEST_F(FitStagesTest, LimitsAreTriedAsOftenAsAsked) {
  options_.candidates.clear();
  options_.most_tightenings = 1;
  EXPECT_THAT(Fit(100).limit_bytes, ElementsAre(kLeastLimit, kLeastLimit));
  EXPECT_EQ(num_plans_, 2);
}

// Stages of one mesh share its excess.
TEST_F(FitStagesTest, StagesOfAMeshShareItsExcess) {
  options_.mesh_of_stage = {0, 0};
  options_.candidates.clear();
  EXPECT_THAT(Fit(2500).limit_bytes, ElementsAre(kBelow800, kBelow800));
}

// Searches under limits stop early, so that one under a smaller limit may need more. What is found
// under some limit of the pipeline is found under every larger one all the same, and what is needed
// where nothing fits is enough.
TEST_F(FitStagesTest, WhatDoesIsFoundUnderEveryLargerLimit) {
  std::mt19937 random(1);
  for (int i = 0; i < 200; ++i) {
    std::map<std::pair<int64_t, bool>, int64_t> searched_bytes;
    const auto plan = [&](const StageDemands& demands) -> absl::StatusOr<DemandedPipeline> {
      ASSIGN_OR_RETURN(DemandedPipeline out, Plan(demands));
      for (int stage = 0; stage < 2; ++stage) {
        DemandedPipeline::Stage& of_stage = out.stages[stage];
        const bool is_limited = !demands.limit_bytes.empty() && demands.limit_bytes[stage];
        if (!is_limited) continue;
        const auto [known, is_new] =
            searched_bytes.try_emplace({*demands.limit_bytes[stage], stage == 0});
        if (is_new) known->second = of_stage.searched_bytes + random() % 300;
        of_stage.peak_bytes += known->second - of_stage.searched_bytes;
        of_stage.searched_bytes = known->second;
      }
      return out;
    };
    const auto needed = [&](int64_t limit_bytes) {
      options_.limit_of_mesh.assign(2, limit_bytes);
      const absl::StatusOr<StageDemands> demands = FitStages({}, options_, plan);
      const DemandedPipeline planned = plan(demands.value()).value();
      return std::max(planned.stages[0].peak_bytes, planned.stages[1].peak_bytes);
    };
    int64_t least = INT64_MAX;
    for (int64_t limit_bytes = 600; limit_bytes <= 1600; limit_bytes += 7) {
      const int64_t bytes = needed(limit_bytes);
      if (least <= limit_bytes) {
        EXPECT_LE(bytes, limit_bytes) << "though one was found that needs " << least;
      }
      least = std::min(least, bytes);
      if (bytes > limit_bytes) {
        EXPECT_LE(needed(bytes), bytes);
      }
    }
  }
}

TEST_F(FitStagesTest, ErrorsOfTheFirstPlanAreTheResult) {
  const auto fails = [](const StageDemands&) -> absl::StatusOr<DemandedPipeline> {
    return InvalidArgument("no plan");
  };
  EXPECT_EQ(FitStages({}, options_, fails).status().message(), "no plan");
}

}  // namespace
}  // namespace minka
