#include "minka/driver/fit_by_layers.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/base/check.h"
#include "minka/base/status.h"
#include "minka/driver/plan_step.h"
#include "minka/driver/prepare.h"
#include "minka/models/registry.h"
#include "minka/planner/intra_op/describe.h"
#include "minka/report/format.h"

namespace minka {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kNote[] = "lower bound and gap are of what layers take by themselves";

Step GptOfLayers(int num_layers) {
  const absl::StatusOr<TracedStep> traced =
      TraceModel("gpt-tiny", {.global_batch = 64, .sequence = 32, .num_layers = num_layers});
  MINKA_CHECK(traced.ok(), "{}", Message(traced.status()));
  return traced->step;
}

PlanRequest OnTwo(int64_t limit_mib) {
  PlanRequest request{.cluster = Cluster::Preset("a100:1x2").value()};
  request.search.memory_limit_bytes = limit_mib << 20;
  return request;
}

// The objective of the best plan under the limit with that recomputed, by a search of the whole
// step; infinite: none was found.
double ObjectiveUnderLimit(PreparedSteps& steps, const RematChoice& remat,
                           const PlanRequest& request) {
  const Mesh mesh = *Mesh::Parse("x=2");
  const auto cost = MakeCostModel(request.cost_model, request.cluster, mesh).value();
  const Step* const prepared = steps.With(remat, {}).value();
  IntraOpOptions options{.search = request.search};
  options.search.gap = 0.02;
  WorkBudget budget(200'000'000);
  options.budget = &budget;
  const auto planned = PlanMesh(*prepared, mesh, *cost, options);
  return planned.ok() ? planned->objective : std::numeric_limits<double>::infinity();
}

// Whatever two layers compute again, no plan of the whole step that fits takes less than the bound,
// and hardly any less than what is found.
TEST(FitByLayers, FindsAndBoundsTheBestOfAllChoices) {
  const Step step = GptOfLayers(2);
  PreparedSteps steps(Simplify(step).value());
  const std::vector<RematPolicy> policies = {RematPolicy::kNone, RematPolicy::kDots,
                                             RematPolicy::kAll};
  for (const int64_t limit_mib : {36, 40}) {
    SCOPED_TRACE(limit_mib);
    const PlanRequest request = OnTwo(limit_mib);
    const SearchResult<PlanResult> found = PlanStep(step, request);
    ASSERT_TRUE(found.ok()) << found.status().why;
    const Plan& best = found->candidates[found->best].plan;
    EXPECT_LE(best.peak_memory_bytes, limit_mib << 20);
    EXPECT_THAT(best.notes, Contains(HasSubstr(kNote)));
    ASSERT_TRUE(best.gap);
    EXPECT_NEAR(best.lower_bound, best.objective * (1 - *best.gap), 1e-6 * best.objective);
    double least = std::numeric_limits<double>::infinity();
    int num_planned = 0;
    for (const RematPolicy first : policies) {
      for (const RematPolicy second : policies) {
        const RematChoice remat = {first, first, second, RematPolicy::kNone};
        const double objective = ObjectiveUnderLimit(steps, remat, request);
        EXPECT_GE(objective, best.lower_bound) << FormatRemat(remat);
        num_planned += objective < std::numeric_limits<double>::infinity();
        least = std::min(least, objective);
      }
    }
    EXPECT_GE(num_planned, 2);
    EXPECT_LE(best.objective, 1.06 * least);
  }
}

TEST(FitByLayers, ThePlanIsNoSlowerThanThoseByRules) {
  PlanRequest request = OnTwo(/*limit_mib=*/40);
  request.methods = {Method::kShard, Method::kZero2, Method::kZero3};
  const SearchResult<PlanResult> found = PlanStep(GptOfLayers(2), request);
  ASSERT_TRUE(found.ok()) << found.status().why;
  const PlanCandidate& by_search = found->candidates.front();
  ASSERT_TRUE(by_search.fits);
  EXPECT_THAT(by_search.plan.notes, Contains(HasSubstr(kNote)));
  int num_others = 0;
  for (const PlanCandidate& other : std::span(found->candidates).subspan(1)) {
    if (!other.fits) continue;
    ++num_others;
    // Within 2 % of the bound none is tried.
    EXPECT_LE(by_search.plan.step_time_us, 1.02 * other.plan.step_time_us)
        << MethodName(other.method);
  }
  EXPECT_GE(num_others, 1);
  EXPECT_EQ(by_search.plan.method, "shard");
  EXPECT_THAT(by_search.plan.notes, Contains(HasSubstr("the plan is that of method zero2")));
}

// Of a Wide ResNet, whose blocks differ: at a price between those at which layers are searched more
// is kept, and a step takes less.
TEST(FitByLayers, WhereLayersDifferPlansAreMadeBetweenPricesOfMemory) {
  const absl::StatusOr<TracedStep> traced = TraceModel("wresnet-tiny", {});
  ASSERT_TRUE(traced.ok()) << traced.status();
  PlanRequest request{.cluster = Cluster::Preset("v100:1x4").value()};
  request.search.memory_limit_bytes = 6'084'751;  // six tenths of what a step takes without one
  PreparedSteps steps(Simplify(traced->step).value());
  StagePlanner stages(OfOneStage(request, {}));
  std::map<double, std::optional<double>> fastest_us;  // of what fits, by price of memory
  const auto plan = [&](const WayToFit& way) -> SearchResult<Plan> {
    ASSIGN_OR_RETURN(const Step* prepared, steps.With(way.remat, request.micro_batches));
    ASSIGN_OR_RETURN(const auto cost, MakeCostModel(request.cost_model, request.cluster, way.mesh));
    IntraOpOptions options{.tries_rules = false, .memory_price = way.memory_price};
    options.search.memory_limit_bytes = way.limit_bytes.value_or(kUnreachedLimit);
    LeaveOutUnusual(options);
    WorkBudget budget(100'000'000);
    options.budget = &budget;
    ASSIGN_OR_RETURN(IntraOpResult planned, PlanMesh(*prepared, way.mesh, *cost, options));
    Plan out = PlanOf(*prepared, Method::kShard, *cost, std::move(planned));
    std::optional<double>& us = fastest_us[way.memory_price.us_per_byte];
    if (out.peak_memory_bytes <= *request.search.memory_limit_bytes && !way.limit_bytes)
      us = std::min(us.value_or(out.step_time_us), out.step_time_us);
    return out;
  };
  const std::vector<Mesh> meshes = MeshesOf(request);
  ASSERT_TRUE(FitByLayers(request, steps, stages,
                          {.meshes = meshes, .remat = steps.RematCandidates(), .plan = plan})
                  .ok());
  double of_layers_us = std::numeric_limits<double>::infinity(), between_us = of_layers_us;
  for (const auto& [us_per_byte, us] : fastest_us) {
    const double price = us_per_byte * request.cluster.device.memory_bytes_per_us;
    const auto is_of_layers = [&](double known) { return std::abs(price - known) < 1e-6; };
    const bool is_between = std::ranges::none_of(std::array{0.0, 0.0003, 8.0, 128.0}, is_of_layers);
    double& fastest = is_between && price < 128 ? between_us : of_layers_us;
    if (us) fastest = std::min(fastest, *us);
  }
  EXPECT_LT(between_us, 0.99 * of_layers_us);
}

TEST(FitByLayers, LeavesSmallStepsThatFitAnywayToSearchesOfEachMesh) {
  const SearchResult<PlanResult> found = PlanStep(GptOfLayers(2), OnTwo(/*limit_mib=*/500));
  ASSERT_TRUE(found.ok()) << found.status().why;
  const Plan& best = found->candidates[found->best].plan;
  EXPECT_THAT(best.notes, Not(Contains(HasSubstr(kNote))));
  ASSERT_TRUE(best.gap);
  EXPECT_LE(*best.gap, 0.01);
}

// Of more than kSearchedWhole operations.
Step LargeStep(const std::string& model) {
  if (model == "gpt-tiny") return GptOfLayers(12);
  const absl::StatusOr<TracedStep> traced = TraceModel(model, {.global_batch = 64});
  MINKA_CHECK(traced.ok(), "{}", Message(traced.status()));
  return traced->step;
}

PlanRequest OnFourWithRoom() {
  PlanRequest request = OnTwo(/*limit_mib=*/4000);
  request.cluster = Cluster::Preset("a100:1x4").value();
  return request;
}

class LargeStepThatFitsAnyway : public testing::TestWithParam<std::string> {};

// No plan of any mesh is better than the bound says, nor hardly better than the plan.
TEST_P(LargeStepThatFitsAnyway, IsPlannedAndBoundedByItsLayers) {
  const Step step = LargeStep(GetParam());
  const PlanRequest request = OnFourWithRoom();
  const SearchResult<PlanResult> found = PlanStep(step, request);
  ASSERT_TRUE(found.ok()) << found.status().why;
  const Plan& best = found->plan();
  EXPECT_THAT(best.notes, Contains(HasSubstr(kNote)));
  ASSERT_TRUE(best.gap);
  EXPECT_LE(*best.gap, 0.03);
  EXPECT_NEAR(best.lower_bound, best.objective * (1 - *best.gap), 1e-6 * best.objective);
  PreparedSteps steps(Simplify(step).value());
  const Step* const prepared = steps.With({}, {}).value();
  ASSERT_EQ(found->candidates.size(), 2U);
  for (const PlanCandidate& candidate : found->candidates) {
    const auto cost = MakeCostModel({}, request.cluster, candidate.mesh).value();
    const auto planned = PlanMesh(*prepared, candidate.mesh, *cost, {});
    ASSERT_TRUE(planned.ok()) << planned.status().why;
    EXPECT_GE(planned->objective, best.lower_bound) << candidate.mesh.ToString();
    EXPECT_LE(best.objective, 1.01 * planned->objective) << candidate.mesh.ToString();
  }
}

INSTANTIATE_TEST_SUITE_P(Models, LargeStepThatFitsAnyway, testing::Values("gpt-tiny", "unet-tiny"),
                         [](const auto& info) { return info.param.substr(0, 3); });

// Layers bound nothing there (layer_costs.h).
TEST(FitByLayers, LimitsOnTheSearchLeaveTheGapKnown) {
  PlanRequest request = OnFourWithRoom();
  request.search.limits.no_sequence_split = true;
  const SearchResult<PlanResult> found = PlanStep(GptOfLayers(12), request);
  ASSERT_TRUE(found.ok()) << found.status().why;
  EXPECT_THAT(found->plan().notes, Not(Contains(HasSubstr(kNote))));
  ASSERT_TRUE(found->plan().gap);
  EXPECT_LE(*found->plan().gap, 0.01);
}

TEST(FitByLayers, LargeStepsThatFitAnywayAreNoSlowerThanByRules) {
  PlanRequest request = OnFourWithRoom();
  request.methods = {Method::kShard, Method::kData, Method::kZero2, Method::kZero3};
  const SearchResult<PlanResult> found = PlanStep(GptOfLayers(12), request);
  ASSERT_TRUE(found.ok()) << found.status().why;
  double by_search_us = std::numeric_limits<double>::infinity();
  for (const PlanCandidate& candidate : found->candidates) {
    if (candidate.method == Method::kShard && candidate.fits)
      by_search_us = std::min(by_search_us, candidate.plan.step_time_us);
  }
  EXPECT_LE(by_search_us, 1.002 * found->plan().step_time_us);
}

TEST(FitByLayers, LargeStepsThatFitAnywayAreNotSearchedForWhatIsSlowerThanAPlan) {
  PlanRequest request = OnFourWithRoom();
  const Step step = GptOfLayers(12);
  const SearchResult<PlanResult> best = PlanStep(step, request);
  ASSERT_TRUE(best.ok()) << best.status().why;
  request.faster_than_us = 0.999 * best->plan().step_time_us;
  const absl::Status slower = PlanStep(step, request).status().why;
  EXPECT_TRUE(absl::IsAborted(slower)) << slower;
}

TEST(FitByLayers, SaysWhyOtherMeshesAreNotPlanned) {
  PlanRequest request = OnTwo(/*limit_mib=*/32);
  request.cluster = Cluster::Preset("a100:1x4").value();
  const SearchResult<PlanResult> found = PlanStep(GptOfLayers(4), request);
  ASSERT_TRUE(found.ok()) << found.status().why;
  ASSERT_EQ(found->candidates.size(), 2U);
  const PlanCandidate& other = found->candidates[1 - found->best];
  EXPECT_THAT(Message(other.status), HasSubstr("not planned: estimated to need too much memory"));
}

// By the layers on one mesh, so that what is asked for takes no search.
TEST(FitByLayers, WhatIsFasterThanAnyPlanIsNotSearchedFor) {
  PlanRequest request = OnTwo(/*limit_mib=*/36);
  const SearchResult<PlanResult> best = PlanStep(GptOfLayers(2), request);
  ASSERT_TRUE(best.ok()) << best.status().why;
  const double best_us = best->candidates[best->best].plan.step_time_us;
  request.faster_than_us = best_us / 2;
  const absl::Status slower = PlanStep(GptOfLayers(2), request).status().why;
  EXPECT_TRUE(absl::IsAborted(slower)) << slower;
  EXPECT_THAT(Message(slower), HasSubstr("not planned: estimated to take"));
  request.faster_than_us = 2 * best_us;
  const SearchResult<PlanResult> again = PlanStep(GptOfLayers(2), request);
  ASSERT_TRUE(again.ok()) << again.status().why;
  EXPECT_EQ(again->candidates[again->best].plan.step_time_us, best_us);
}

// A sixth of the memory that the least takes.
TEST(FitByLayers, WhatIsEstimatedNotToFitIsNotSearchedForBesideAPlan) {
  PlanRequest request = OnTwo(/*limit_mib=*/14);
  request.faster_than_us = 1e9;
  const absl::Status refused = PlanStep(GptOfLayers(4), request).status().why;
  EXPECT_TRUE(absl::IsAborted(refused)) << refused;
  EXPECT_THAT(Message(refused), HasSubstr("not planned: estimated to need"));
}

TEST(FitByLayers, WhatIsFarTooLargeSaysWhichLimitWouldDo) {
  PlanRequest request = OnTwo(/*limit_mib=*/8);
  const SearchResult<PlanResult> refused = PlanStep(GptOfLayers(2), request);
  ASSERT_FALSE(refused.ok());
  EXPECT_TRUE(absl::IsResourceExhausted(refused.status().why)) << refused.status().why;
  EXPECT_THAT(Message(refused.status().why), HasSubstr("the smallest limit known to work is"));
  const std::optional<int64_t> limit = refused.status().smallest_limit_bytes;
  ASSERT_TRUE(limit);
  EXPECT_GT(*limit, *request.search.memory_limit_bytes);
  // Beside another way, the same.
  request.faster_than_us = std::numeric_limits<double>::infinity();
  EXPECT_EQ(PlanStep(GptOfLayers(2), request).status().smallest_limit_bytes, limit);
  request = OnTwo(/*limit_mib=*/0);
  request.search.memory_limit_bytes = limit;
  const SearchResult<PlanResult> found = PlanStep(GptOfLayers(2), request);
  EXPECT_TRUE(found.ok()) << found.status().why;
}

TEST(FitByLayers, WhatIsCancelledIsAnError) {
  const std::atomic<bool> cancelled = true;
  PlanRequest request = OnTwo(/*limit_mib=*/40);
  request.cancelled = &cancelled;
  EXPECT_TRUE(absl::IsCancelled(PlanStep(GptOfLayers(2), request).status().why));
}

}  // namespace
}  // namespace minka
