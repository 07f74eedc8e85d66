// Which submeshes stages get where none are named, and how many micro-batches where nobody says.
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/base/status.h"
#include "minka/driver/pipeline.h"
#include "minka/frontend/trace.h"
#include "minka/models/mlp.h"
#include "tests/pipeline/small_steps.h"

namespace minka {
namespace {

// Accelerators that share nothing, all in one host.
Cluster Accelerators(int num_devices) {
  Cluster cluster = Cluster::Preset("p3.16xlarge").value();
  cluster.devices_per_host = num_devices;
  return cluster;
}

// Three layers of equal work and the loss.
Step ThreeLayers() {
  return Trace(Mlp({.batch = 16384, .hidden = 4096, .num_layers = 3}), Sgd()).value().step;
}

absl::StatusOr<PlannedPipeline> PlanOn(const Cluster& cluster, const Step& step,
                                       const PipelineOptions& options) {
  return PlanPipeline(
      step, {.cluster = cluster, .micro_batches = {.num_micro_batches = 8}, .pipeline = options});
}

std::vector<int64_t> SizesOf(const PlannedPipeline& planned) {
  std::vector<int64_t> sizes;
  for (const Mesh& mesh : planned.meshes()) sizes.push_back(mesh.num_devices());
  return sizes;
}

TEST(Submeshes, UnequalOnesAreTakenWhereTheyAreFaster) {
  const Step step = ThreeLayers();
  const auto searched = PlanOn(Accelerators(6), step, {});
  ASSERT_TRUE(searched.ok()) << Message(searched.status());
  EXPECT_THAT(SizesOf(*searched), testing::UnorderedElementsAre(4, 2));
  EXPECT_LT(searched->plan.bubble, 0.25);
  for (const std::vector<int>& equal : {std::vector<int>{3, 3}, {2, 2, 2}}) {
    const auto planned = PlanOn(Accelerators(6), step, {.submeshes = equal});
    ASSERT_TRUE(planned.ok()) << Message(planned.status());
    EXPECT_LT(searched->plan.step_time_us, planned->plan.step_time_us);
  }
}

TEST(Submeshes, EqualOnesAreTakenWhereTheySuffice) {
  const auto searched = PlanOn(Accelerators(4), SmallMlp(), {});
  ASSERT_TRUE(searched.ok()) << Message(searched.status());
  const std::vector<int64_t> sizes = SizesOf(*searched);
  EXPECT_THAT(sizes, testing::Each(sizes.front()));
}

TEST(Submeshes, StagesNeedNotDivideTheDevices) {
  const auto planned = PlanOn(Accelerators(4), ThreeLayers(), {.num_stages = 3});
  ASSERT_TRUE(planned.ok()) << Message(planned.status());
  EXPECT_THAT(SizesOf(*planned), testing::UnorderedElementsAre(1, 1, 2));
  EXPECT_EQ(Message(PlanOn(Accelerators(2), ThreeLayers(), {.num_stages = 3}).status()),
            "2 devices do not go evenly on 3 stages; name the submeshes");
}

TEST(Submeshes, GivenStagesKeepTheirLayers) {
  const std::vector<int> stages = {0, 1, 2, 2};
  const auto planned = PlanOn(Accelerators(4), ThreeLayers(), {.stage_of_layer = stages});
  ASSERT_TRUE(planned.ok()) << Message(planned.status());
  EXPECT_EQ(planned->plan.stage_of_layer, stages);
  EXPECT_THAT(SizesOf(*planned), testing::UnorderedElementsAre(1, 1, 2));
}

TEST(ChosenSchedule, IsTheFastestThatFits) {
  const auto plan = [](const std::string& schedule, std::optional<int64_t> limit,
                       const std::vector<int>& submeshes) {
    return PlanPipeline(ThreeLayers(),
                        {.cluster = Accelerators(4),
                         .micro_batches = {.num_micro_batches = 4},
                         .pipeline = PipelineOptions{.submeshes = submeshes, .schedule = schedule},
                         .search = {.memory_limit_bytes = limit}});
  };
  for (const std::vector<int>& submeshes : {std::vector<int>{}, std::vector<int>{2, 2}}) {
    const auto chosen = plan("auto", std::nullopt, submeshes);
    ASSERT_TRUE(chosen.ok()) << Message(chosen.status());
    // Few micro-batches wait for long.
    EXPECT_NE(chosen->plan.schedule, "1f1b");
    EXPECT_EQ(chosen->tried_schedules.front().name, "1f1b");
    for (const TriedSchedule& tried : chosen->tried_schedules) {
      EXPECT_EQ(tried.chosen, tried.name == chosen->plan.schedule);
      const auto named = plan(tried.name, std::nullopt, submeshes);
      ASSERT_TRUE(named.ok()) << Message(named.status());
      EXPECT_LE(chosen->plan.step_time_us, 1.01 * named->plan.step_time_us) << tried.name;
    }
    const int64_t limit = chosen->plan.peak_memory_bytes * 9 / 10;
    const auto limited = plan("auto", limit, submeshes);
    ASSERT_TRUE(limited.ok()) << Message(limited.status());
    EXPECT_LE(limited->plan.peak_memory_bytes, limit);
  }
}

// A batch of 24.
absl::StatusOr<PlannedPipeline> PlanInMicroBatches(int64_t num_micro_batches,
                                                   const PipelineOptions& options,
                                                   std::optional<int64_t> limit = std::nullopt) {
  return PlanPipeline(SmallMlp(),
                      {.cluster = Accelerators(4),
                       .micro_batches = {.num_micro_batches = num_micro_batches},
                       .pipeline = options,
                       .search = {.memory_limit_bytes = limit, .work_limit = 1'000'000'000}});
}

TEST(ChosenMicroBatches, AreAsFastAsAnyOtherNumber) {
  for (const PipelineOptions& options :
       {PipelineOptions{}, PipelineOptions{.meshes = {Mesh({{"x", 2}}), Mesh({{"x", 2}})}}}) {
    const auto chosen = PlanInMicroBatches(kChooseMicroBatches, options);
    ASSERT_TRUE(chosen.ok()) << Message(chosen.status());
    std::vector<int64_t> counts;
    for (const TriedMicroBatches& tried : chosen->tried_micro_batches) {
      const int64_t count = tried.num_micro_batches;
      counts.push_back(count);
      EXPECT_EQ(tried.chosen, count == chosen->plan.num_micro_batches);
      EXPECT_EQ(tried.why_not.empty(), tried.chosen);
      const auto planned = PlanInMicroBatches(count, options);
      ASSERT_TRUE(planned.ok()) << Message(planned.status());
      EXPECT_LE(0.97 * chosen->plan.step_time_us, planned->plan.step_time_us) << count;
      if (!tried.figures) continue;
      EXPECT_EQ(tried.figures->step_time_us, planned->plan.step_time_us);
    }
    EXPECT_THAT(counts, testing::ElementsAre(1, 2, 3, 4, 6, 8, 12, 24));
  }
}

TEST(ChosenMicroBatches, FitIntoMemory) {
  const PipelineOptions options{.submeshes = {2, 2}};
  const auto free = PlanInMicroBatches(kChooseMicroBatches, options);
  ASSERT_TRUE(free.ok()) << Message(free.status());
  const int64_t limit = free->plan.peak_memory_bytes * 9 / 10;
  const auto limited = PlanInMicroBatches(kChooseMicroBatches, options, limit);
  ASSERT_TRUE(limited.ok()) << Message(limited.status());
  EXPECT_LE(limited->plan.peak_memory_bytes, limit);
  EXPECT_GE(limited->plan.step_time_us, 0.99 * free->plan.step_time_us);
}

TEST(ChosenMicroBatches, SayWhatIsWrongOnce) {
  EXPECT_EQ(Message(PlanInMicroBatches(kChooseMicroBatches, {.num_stages = 30}).status()),
            Message(PlanInMicroBatches(1, {.num_stages = 30}).status()));
}

}  // namespace
}  // namespace minka
