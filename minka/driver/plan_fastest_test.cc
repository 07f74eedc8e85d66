#include "minka/driver/plan_fastest.h"

#include <algorithm>
#include <string>
#include <variant>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/base/check.h"
#include "minka/base/status.h"
#include "minka/ir/micro_loop.h"
#include "minka/models/registry.h"

namespace minka {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

Step StepOf(const std::string& model, const ModelOptions& options) {
  const absl::StatusOr<TracedStep> traced = TraceModel(model, options);
  MINKA_CHECK(traced.ok(), "{}", Message(traced.status()));
  return traced->step;
}

// One mesh, then pipelines.
std::vector<Attempt> Attempts(const std::string& cluster, int64_t num_micro_batches = 0) {
  PlanRequest request{.cluster = Cluster::Preset(cluster).value()};
  request.search.memory_limit_bytes = request.cluster.device.memory_bytes;
  request.micro_batches.num_micro_batches =
      num_micro_batches > 0 ? num_micro_batches : kChooseMicroBatches;
  std::vector<Attempt> attempts = {{.name = "one mesh", .request = request},
                                   {.name = "pipeline", .request = request}};
  attempts[1].request.pipeline.emplace();

  return attempts;
}

std::string WhyNot(const Attempt& attempt) {
  return std::string(Message(attempt.planned.status()));
}

TEST(PlanAll, WhatCannotBeAskedOfOneMeshEndsTheRest) {
  std::vector<Attempt> attempts = Attempts("a100:1x4");
  for (Attempt& attempt : attempts) attempt.request.search.limits.batch_axis = "q";
  PlanAll(StepOf("gpt-tiny", {.num_layers = 2}), attempts);
  EXPECT_TRUE(absl::IsInvalidArgument(attempts[0].planned.status()));
  EXPECT_THAT(WhyNot(attempts[0]), HasSubstr("has no such axis"));
  EXPECT_EQ(WhyNot(attempts[1]), "not planned");
  EXPECT_EQ(FastestOf(attempts), nullptr);
}

// Whatever the number of micro-batches, of which many do not fit.
TEST(PlanAll, APinThatIsNoneEndsTheSearchOfAllNumbers) {
  std::vector<Attempt> attempts = Attempts("a100:1x2");
  for (Attempt& attempt : attempts) {
    attempt.request.search.memory_limit_bytes = 24 << 20;
    attempt.request.search.pins = {"params/*=-,x"};
  }
  PlanAll(StepOf("gpt-tiny", {.global_batch = 64, .sequence = 32, .num_layers = 2}), attempts);
  EXPECT_TRUE(absl::IsInvalidArgument(attempts[0].planned.status()));
  EXPECT_THAT(WhyNot(attempts[0]), HasSubstr("expected '[' before '-,x'"));
  EXPECT_EQ(WhyNot(attempts[1]), "not planned");
}

// By 1f1b it would take longer than one mesh.
TEST(PlanAll, PipelinesAreNotLeftOutByTheirFirstScheduleAlone) {
  std::vector<Attempt> attempts = Attempts("1080ti:1x2", /*num_micro_batches=*/2);
  PlanAll(StepOf("gpt-tiny", {.global_batch = 48, .num_layers = 12}), attempts);
  ASSERT_TRUE(attempts[0].planned.ok() && attempts[1].planned.ok());
  EXPECT_LT(StepTimeUs(*attempts[1].planned), StepTimeUs(*attempts[0].planned));
  EXPECT_EQ(FastestOf(attempts), &attempts[1]);
}

TEST(PlanAll, OneMeshIsNoPlanWhereItIsSlowerThanPipelinesAcrossHosts) {
  std::vector<Attempt> attempts = Attempts("a100:2x2");
  PlanAll(StepOf("wresnet-250m", {.global_batch = 8}), attempts);
  ASSERT_TRUE(attempts[1].planned.ok()) << attempts[1].planned.status();
  EXPECT_TRUE(absl::IsAborted(attempts[0].planned.status()));
  EXPECT_THAT(WhyNot(attempts[0]), HasSubstr("no plan takes less than"));
}

// Of a pipeline nothing is known that is faster, so that one mesh by itself finds the same.
TEST(PlanAll, OneMeshThatBarelyFitsIsFoundBesidePipelines) {
  const Step step = StepOf("gpt-tiny", {.global_batch = 64, .sequence = 32, .num_layers = 2});
  std::vector<Attempt> both = Attempts("a100:1x2", /*num_micro_batches=*/1);
  for (Attempt& attempt : both) attempt.request.search.memory_limit_bytes = 40 << 20;
  std::vector<Attempt> alone = {both[0]};
  PlanAll(step, both);
  PlanAll(step, alone);
  ASSERT_TRUE(alone[0].planned.ok()) << alone[0].planned.status();
  ASSERT_TRUE(both[0].planned.ok()) << both[0].planned.status();
  EXPECT_EQ(StepTimeUs(*both[0].planned), StepTimeUs(*alone[0].planned));
  EXPECT_LE(PeakMemoryBytes(*both[0].planned), 40 << 20);
}

TEST(PlanAll, WhereNothingFitsOneMeshIsSearchedToTheEnd) {
  std::vector<Attempt> attempts = Attempts("a100:1x2");
  for (Attempt& attempt : attempts) attempt.request.search.memory_limit_bytes = 1 << 20;
  PlanAll(StepOf("gpt-tiny", {.global_batch = 64, .sequence = 32, .num_layers = 2}), attempts);
  EXPECT_EQ(FastestOf(attempts), nullptr);
  EXPECT_THAT(WhyNot(attempts[0]), HasSubstr("the smallest limit known to work is"));
  EXPECT_THAT(WhyNot(attempts[1]), HasSubstr("the state alone takes"));
}

// Of a thousand examples many numbers of micro-batches are refused without being looked at.
TEST(PlanAll, WhereNothingFitsOneMeshSaysSoOfTheMostMicroBatches) {
  std::vector<Attempt> attempts = Attempts("a100:1x2");
  for (Attempt& attempt : attempts) attempt.request.search.memory_limit_bytes = 1 << 20;
  PlanAll(StepOf("gpt-tiny", {.global_batch = 1024, .num_layers = 2}), attempts);
  EXPECT_EQ(FastestOf(attempts), nullptr);
  EXPECT_THAT(WhyNot(attempts[0]),
              HasSubstr("no plan was found that fits into 1048576 bytes per device"));
}

TEST(PlanAll, LimitsOfTimeHoldForAllNumbersOfMicroBatchesTogether) {
  std::vector<Attempt> attempts = Attempts("a100:1x2");
  attempts.resize(1);
  attempts[0].request.search.memory_limit_bytes = 24 << 20;
  attempts[0].request.search.time_limit_seconds = 0;
  PlanAll(StepOf("gpt-tiny", {.global_batch = 64, .sequence = 32, .num_layers = 2}), attempts);
  // One is planned in any case, with what has been found at once.
  if (!attempts[0].planned.ok()) {
    EXPECT_TRUE(absl::IsResourceExhausted(attempts[0].planned.status()));
    return;
  }
  const auto& result = std::get<PlanResult>(*attempts[0].planned);
  const auto num_planned = std::ranges::count_if(
      result.tried_micro_batches,
      [](const TriedMicroBatches& tried) { return tried.figures.has_value(); });
  EXPECT_EQ(num_planned, 1);
}

// With micro-batches to choose, one mesh has some where the step does not fit at once.
TEST(PlanAll, OneMeshIsPlannedInMicroBatchesThatAreChosen) {
  std::vector<Attempt> attempts = Attempts("a100:1x2");
  for (Attempt& attempt : attempts) attempt.request.search.memory_limit_bytes = 24 << 20;
  PlanAll(StepOf("gpt-tiny", {.global_batch = 64, .sequence = 32, .num_layers = 2}), attempts);
  ASSERT_TRUE(attempts[0].planned.ok()) << attempts[0].planned.status();
  const auto& result = std::get<PlanResult>(*attempts[0].planned);
  EXPECT_GT(result.plan().num_micro_batches, 1);
  EXPECT_LE(result.plan().peak_memory_bytes, 24 << 20);
  EXPECT_EQ(FindMicroLoop(result.prepared.module).num_micro_batches,
            result.plan().num_micro_batches);
  const auto chosen =
      std::ranges::find(result.tried_micro_batches, true, &TriedMicroBatches::chosen);
  ASSERT_NE(chosen, result.tried_micro_batches.end());
  EXPECT_EQ(chosen->num_micro_batches, result.plan().num_micro_batches);
}

// Where their number says what is computed, the plan says it.
TEST(PlanAll, ChosenNumbersOfMicroBatchesThatSayWhatIsComputedAreNoted) {
  const Step step = StepOf("wresnet-tiny", {.global_batch = 64});
  for (Attempt& attempt : Attempts("a100:1x2")) {
    SCOPED_TRACE(attempt.name);
    attempt.request.search.memory_limit_bytes = 6 << 20;
    attempt.request.micro_batches.per_micro_batch = true;
    PlanAll(step, {&attempt, 1});
    ASSERT_TRUE(attempt.planned.ok()) << attempt.planned.status();
    const std::vector<std::string>& notes =
        attempt.request.pipeline ? std::get<PlannedPipeline>(*attempt.planned).plan.notes
                                 : std::get<PlanResult>(*attempt.planned).plan().notes;
    EXPECT_THAT(notes, Contains(HasSubstr("the number of micro-batches was chosen for speed")));
  }
}

}  // namespace
}  // namespace minka
