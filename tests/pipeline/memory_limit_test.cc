// What becomes of a pipeline that does not fit into the memory of its devices.
#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <optional>
#include <set>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/base/status.h"
#include "minka/driver/pipeline.h"
#include "minka/frontend/trace.h"
#include "minka/models/gpt.h"

namespace minka {
namespace {

using testing::HasSubstr;

constexpr int64_t kMiB = 1 << 20;

const Step& FourEqualLayers() {
  static const Step step = Trace(Gpt({.batch = 64,
                                      .sequence = 128,
                                      .vocabulary = 512,
                                      .hidden = 256,
                                      .num_layers = 6,
                                      .num_heads = 4}),
                                 AdamW({}))
                               .value()
                               .step;
  return step;
}

absl::StatusOr<PlannedPipeline> PlanUnder(std::optional<int64_t> limit,
                                          const std::optional<RematChoice>& remat = std::nullopt) {
  const Cluster cluster = Cluster::Preset("p3.16xlarge:1x4").value();
  return PlanPipeline(FourEqualLayers(),
                      {.cluster = cluster,
                       .micro_batches = {.num_micro_batches = 8},
                       .remat = remat,
                       .pipeline = PipelineOptions{.num_stages = 2, .schedule = "1f1b"},
                       .search = {.memory_limit_bytes = limit, .work_limit = 1'000'000'000}});
}

TEST(PipelineMemoryLimit, OneThatFitsChangesNothing) {
  const auto free = PlanUnder(std::nullopt);
  ASSERT_TRUE(free.ok()) << Message(free.status());
  EXPECT_TRUE(free->plan.remat.empty());
  const auto limited = PlanUnder(free->plan.peak_memory_bytes);
  ASSERT_TRUE(limited.ok()) << Message(limited.status());
  EXPECT_TRUE(limited->plan.remat.empty());
  EXPECT_EQ(limited->plan.step_time_us, free->plan.step_time_us);
}

// Their stages are searched under limits first, which costs hardly any time.
TEST(PipelineMemoryLimit, ForALittleLessMemoryNothingIsRecomputed) {
  const auto free = PlanUnder(std::nullopt);
  ASSERT_TRUE(free.ok()) << Message(free.status());
  const auto limit = static_cast<int64_t>(0.95 * static_cast<double>(free->plan.peak_memory_bytes));
  const auto planned = PlanUnder(limit);
  ASSERT_TRUE(planned.ok()) << Message(planned.status());
  EXPECT_LE(planned->plan.peak_memory_bytes, limit);
  EXPECT_TRUE(planned->plan.remat.empty());
  EXPECT_LE(planned->plan.step_time_us, 1.02 * free->plan.step_time_us);
  EXPECT_EQ(planned->tried.size(), 1);
}

// The less memory, the longer the step, and never more than is allowed. The first stage, which
// holds most micro-batches, recomputes more than the last.
TEST(PipelineMemoryLimit, WhatDoesNotFitIsMadeTo) {
  const auto free = PlanUnder(std::nullopt);
  ASSERT_TRUE(free.ok()) << Message(free.status());
  double before = free->plan.step_time_us;
  for (const double part : {0.8, 0.6}) {
    const auto limit =
        static_cast<int64_t>(part * static_cast<double>(free->plan.peak_memory_bytes));
    const auto planned = PlanUnder(limit);
    ASSERT_TRUE(planned.ok()) << Message(planned.status());
    const PipelinePlan& plan = planned->plan;
    EXPECT_LE(plan.peak_memory_bytes, limit);
    EXPECT_GE(plan.step_time_us, before);
    before = plan.step_time_us;
    ASSERT_FALSE(plan.remat.empty());
    std::vector<int> recomputed(2);
    for (size_t layer = 0; layer < plan.remat.size(); ++layer) {
      recomputed[plan.stage_of_layer[layer]] += static_cast<int>(plan.remat[layer]);
    }
    EXPECT_GE(recomputed[0], recomputed[1]);
  }
}

TEST(PipelineMemoryLimit, AGivenChoiceOfWhatToRecomputeStays) {
  const RematChoice dots = {RematPolicy::kDots};
  const auto free = PlanUnder(std::nullopt, dots);
  ASSERT_TRUE(free.ok()) << Message(free.status());
  const auto limited = PlanUnder(free->plan.peak_memory_bytes * 9 / 10, dots);
  ASSERT_TRUE(limited.ok()) << Message(limited.status());
  EXPECT_EQ(limited->plan.remat, dots);
  EXPECT_THAT(Message(PlanUnder(15 * kMiB).status()),
              HasSubstr("15728640 are allowed; raise the limit"));
  EXPECT_EQ(Message(PlanUnder(kMiB).status()),
            "the state alone takes 57.6 MiB, the 4 devices may hold 4.00 MiB together; raise the "
            "limit, or take more devices");
}

TEST(PipelineMemoryLimit, WhatIsFarTooLargeSaysHowMuchItNeeds) {
  const absl::Status refusal = PlanUnder(15 * kMiB).status();
  EXPECT_TRUE(absl::IsResourceExhausted(refusal)) << refusal;
  int64_t needed = 0;
  ASSERT_EQ(std::sscanf(Message(refusal).c_str(), "the pipeline needs %" SCNd64, &needed), 1)
      << refusal;
  EXPECT_GT(needed, 2 * 15 * kMiB);
  const auto planned = PlanUnder(needed);
  ASSERT_TRUE(planned.ok()) << Message(planned.status());
  EXPECT_LE(planned->plan.peak_memory_bytes, needed);
}

// However often a parting of the devices was planned or passed over, it is shown once.
TEST(PipelineMemoryLimit, EveryPartingIsShownOnce) {
  const auto plan_under = [](std::optional<int64_t> limit) {
    const Cluster cluster = Cluster::Preset("p3.16xlarge:1x4").value();
    return PlanPipeline(FourEqualLayers(),
                        {.cluster = cluster,
                         .micro_batches = {.num_micro_batches = 8},
                         .pipeline = PipelineOptions{},
                         .search = {.memory_limit_bytes = limit, .work_limit = 1'000'000'000}});
  };
  const auto free = plan_under(std::nullopt);
  ASSERT_TRUE(free.ok()) << Message(free.status());
  for (const double part : {0.95, 0.85, 0.75}) {
    const auto planned =
        plan_under(static_cast<int64_t>(part * static_cast<double>(free->plan.peak_memory_bytes)));
    ASSERT_TRUE(planned.ok()) << Message(planned.status());
    std::set<std::vector<int>> partings;
    for (const TriedSubmeshes& tried : planned->tried) {
      EXPECT_TRUE(partings.insert(tried.num_devices).second)
          << part << ": " << testing::PrintToString(tried.num_devices);
    }
    EXPECT_TRUE(planned->tried.front().chosen);
    EXPECT_EQ(planned->tried.front().num_devices, planned->num_devices());
  }
}

}  // namespace
}  // namespace minka
