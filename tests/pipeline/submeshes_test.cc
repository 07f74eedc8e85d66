// Which submeshes stages get where none are named, and how many micro-batches where nobody says.
#include <algorithm>
#include <atomic>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/base/status.h"
#include "minka/driver/pipeline.h"
#include "minka/driver/plan_stage.h"
#include "minka/frontend/trace.h"
#include "minka/models/gpt.h"
#include "minka/models/mlp.h"
#include "minka/models/wresnet.h"
#include "minka/planner/inter_op/stage_estimate.h"
#include "minka/schedule/schedule.h"
#include "tests/pipeline/small_steps.h"

namespace minka {
namespace {

// Accelerators that share nothing, all in one host.
Cluster Accelerators(int num_devices) {
  return Cluster::Preset(fmt::format("p3.16xlarge:1x{}", num_devices)).value();
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

// Every way to give so many layers to stages, each one at least, ascending.
std::vector<std::vector<int>> Partings(int num_layers) {
  std::vector<std::vector<int>> out;
  for (int cuts = 1; cuts < 1 << (num_layers - 1); ++cuts) {
    std::vector<int> stage_of_layer = {0};
    for (int layer = 1; layer < num_layers; ++layer)
      stage_of_layer.push_back(stage_of_layer.back() + (cuts >> (layer - 1) & 1));
    out.push_back(std::move(stage_of_layer));
  }
  return out;
}

// No pipeline is predicted to be faster than the bound, whatever its stages and meshes, by the best
// schedule of each.
TEST(LowerBound, HoldsForEveryPipeline) {
  const Step step = Trace(Gpt({.batch = 64,
                               .sequence = 128,
                               .vocabulary = 512,
                               .hidden = 256,
                               .num_layers = 2,
                               .num_heads = 4}),
                          AdamW({}))
                        .value()
                        .step;
  PlanRequest request{.cluster = Accelerators(4),
                      .micro_batches = {.num_micro_batches = 8},
                      .pipeline = PipelineOptions{},
                      .search = {.work_limit = 1'000'000'000}};
  // Bounds do not know that some pairs have fewer links, and would be looser.
  request.cluster.pair_bytes_per_us.clear();
  const SplitStep split = SplitStacks(step).value();
  StagePlanner stages(request);
  const std::map<int, std::vector<std::vector<int>>> submeshes = {
      {2, {{2, 2}, {1, 2}}}, {3, {{1, 1, 2}, {1, 2, 1}, {2, 1, 1}}}, {4, {{1, 1, 1, 1}}}};
  std::optional<int64_t> limit;
  for (const bool is_limited : {false, true}) {
    request.search.memory_limit_bytes = limit;
    request.pipeline = PipelineOptions{};
    const auto best = PlanPipeline(split, request, stages);
    ASSERT_TRUE(best.ok()) << Message(best.status());
    ASSERT_TRUE(best->plan.lower_bound_us && best->plan.gap);
    EXPECT_LT(*best->plan.gap, is_limited ? 0.15 : 0.03);
    EXPECT_NEAR(*best->plan.lower_bound_us, best->plan.step_time_us * (1 - *best->plan.gap), 1e-3);
    for (const std::vector<int>& stage_of_layer : Partings(4)) {
      for (const std::vector<int>& sizes : submeshes.at(stage_of_layer.back() + 1)) {
        // What does not fit at once takes long.
        const bool is_even = stage_of_layer == std::vector<int>{0, 0, 1, 1};
        if (is_limited && (!is_even || sizes.front() < 2)) continue;
        request.pipeline = {.stage_of_layer = stage_of_layer, .submeshes = sizes};
        const auto other = PlanPipeline(split, request, stages);
        if (!other.ok()) {
          EXPECT_TRUE(is_limited) << Message(other.status());
          continue;
        }
        EXPECT_GE(other->plan.step_time_us, *best->plan.lower_bound_us);
        EXPECT_EQ(other->plan.lower_bound_us, std::nullopt);
      }
    }
    limit = best->plan.peak_memory_bytes * 2 / 3;
  }
}

// What stages hold for gradients of weights that are put off is estimated, too.
TEST(Estimates, OfMemoryComeToWhatIsPlanned) {
  for (const char* schedule : {"1f1b", "zero-bubble-h1"}) {
    const auto planned =
        PlanOn(Accelerators(4), SmallGpt(), {.num_stages = 4, .schedule = schedule});
    ASSERT_TRUE(planned.ok()) << Message(planned.status());
    ASSERT_TRUE(planned->searched.has_value());
    const StageEstimates estimates(planned->searched->ways.ways);
    const std::vector<MicroBatchesHeld> held = MostHeld(planned->schedule);
    for (size_t i = 0; i < planned->plan.stages.size(); ++i) {
      const StagePlan& stage = planned->plan.stages[i].plan.stage;
      const auto estimated = static_cast<double>(
          estimates.StageOf(0, stage.layers.front(), stage.layers.back() + 1, 0, held[i]).bytes);
      EXPECT_NEAR(estimated, planned->plan.stages[i].plan.peak_memory_bytes, 0.1 * estimated)
          << schedule << ", stage " << i;
    }
  }
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
    // Where stages are searched for, that is known beforehand.
    EXPECT_EQ(chosen->tried_schedules.front().figures.has_value(), !submeshes.empty());
    for (const TriedSchedule& tried : chosen->tried_schedules) {
      EXPECT_EQ(tried.chosen, tried.name == chosen->plan.schedule);
      const auto named = plan(tried.name, std::nullopt, submeshes);
      ASSERT_TRUE(named.ok()) << Message(named.status());
      EXPECT_LE(chosen->plan.step_time_us, 1.01 * named->plan.step_time_us) << tried.name;
      // What is named is searched as it is, too.
      if (!tried.figures) continue;
      EXPECT_LE(named->plan.step_time_us, 1.01 * tried.figures->step_time_us) << tried.name;
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

TEST(ChosenMicroBatches, AreTheSameWithAnyNumberOfThreads) {
  std::string first;
  for (const int num_threads : {1, 4}) {
    std::atomic<int> num_inside = 0, most_inside = 0;
    const auto planned = PlanPipeline(
        SmallMlp(), {.cluster = Accelerators(4),
                     .micro_batches = {.num_micro_batches = kChooseMicroBatches},
                     .pipeline = PipelineOptions(),
                     .search = {.work_limit = 1'000'000'000, .num_threads = num_threads},
                     .on_progress = [&](const std::string&, double, double) {
                       most_inside = std::max<int>(most_inside, ++num_inside);
                       --num_inside;
                     }});
    ASSERT_TRUE(planned.ok()) << Message(planned.status());
    EXPECT_EQ(most_inside, 1);
    std::string text;
    for (const TriedMicroBatches& tried : planned->tried_micro_batches)
      text += fmt::format("{}: {}; ", tried.num_micro_batches, tried.why_not);
    text += fmt::format("{} us", planned->plan.step_time_us);
    if (first.empty()) first = text;
    EXPECT_EQ(text, first);
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

// Batch norms need the whole batch, unless each micro-batch stands for it.
TEST(ChosenMicroBatches, SayWhyThereAreNotMoreWhereMemoryIsShort) {
  const Step step = Trace(WideResNet({.batch = 8,
                                      .image_size = 8,
                                      .num_classes = 8,
                                      .width = 8,
                                      .blocks_per_stage = {1, 1},
                                      .small_images = true}),
                          Sgd())
                        .value()
                        .step;
  const auto plan = [&](bool per_micro_batch, std::optional<int64_t> limit) {
    return PlanPipeline(step, {.cluster = Accelerators(2),
                               .micro_batches = {.num_micro_batches = kChooseMicroBatches,
                                                 .per_micro_batch = per_micro_batch},
                               .pipeline = PipelineOptions{},
                               .search = {.memory_limit_bytes = limit}});
  };
  const auto whole = plan(false, std::nullopt);
  ASSERT_TRUE(whole.ok()) << Message(whole.status());
  EXPECT_EQ(whole->plan.num_micro_batches, 1);
  const int64_t limit = whole->plan.peak_memory_bytes * 3 / 4;
  EXPECT_THAT(Message(plan(false, limit).status()),
              testing::AllOf(testing::HasSubstr("are allowed"),
                             testing::HasSubstr("more micro-batches than 1 cannot be had"),
                             testing::HasSubstr("--per-micro-batch")));
  EXPECT_TRUE(plan(true, limit).ok());
}

}  // namespace
}  // namespace minka
