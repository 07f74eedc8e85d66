#include "minka/planner/inter_op/stage_candidates.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace minka {
namespace {

using testing::ElementsAre;
using testing::Field;

// Four layers of which the first is dearer, on one device and on two, in two ways there.
std::vector<StageWay> Ways() {
  const auto layers = [](double us, int64_t bytes) {
    const LayerCost others = {.forward_us = us / 3, .micro_batch_us = us, .saved_bytes = bytes};
    LayerCost first = others;
    first.micro_batch_us *= 2;
    return std::vector<LayerCost>{first, others, others, others};
  };
  return {{.num_devices = 1, .kept = layers(8, 8), .recomputed = layers(10, 2)},
          {.num_devices = 2, .kept = layers(5, 4)},
          {.num_devices = 2, .kept = layers(4, 6)}};
}

StageSearchInput Input() {
  return {.hosts = {{.num_devices = 4, .devices_per_host = 4, .limit_bytes = 20}},
          .num_micro_batches = 8,
          .held = {{0}, {1}, {2}, {3}, {4}}};
}

std::vector<CandidateState> StatesOf(const CandidateRun& run) {
  std::vector<CandidateState> states;
  for (const StageCandidate& candidate : run.candidates) states.push_back(candidate.state);
  return states;
}

TEST(ListCandidates, EqualRunsAreListedOnce) {
  std::vector<LayerRun> listed;
  for (const CandidateRun& run : ListCandidates(Ways(), Input())) {
    EXPECT_EQ(run.equal_to.has_value(), run.candidates.empty());
    if (!run.equal_to) listed.push_back(run.layers);
    if (run.layers == LayerRun{2, 4}) {
      EXPECT_EQ(run.equal_to, (LayerRun{1, 3}));
    }
  }
  EXPECT_THAT(listed, ElementsAre(LayerRun{0, 1}, LayerRun{0, 2}, LayerRun{0, 3}, LayerRun{1, 2},
                                  LayerRun{1, 3}, LayerRun{1, 4}));
}

TEST(ListCandidates, SayWhyTheyAreDropped) {
  const std::vector<CandidateRun> runs = ListCandidates(Ways(), Input());
  const CandidateRun& two = runs[1];
  ASSERT_EQ(two.layers, (LayerRun{0, 2}));
  // Kept and recomputed on one device, two ways on two.
  EXPECT_THAT(StatesOf(two), ElementsAre(CandidateState::kFastest, CandidateState::kSlower,
                                         CandidateState::kSlower, CandidateState::kFastest));
  EXPECT_DOUBLE_EQ(two.candidates[3].stage.cost.micro_batch_us, 12);
  const CandidateRun& three = runs[2];
  ASSERT_EQ(three.layers, (LayerRun{0, 3}));
  EXPECT_THAT(StatesOf(three), ElementsAre(CandidateState::kTooLarge, CandidateState::kFastest,
                                           CandidateState::kSlower, CandidateState::kFastest));
}

TEST(ListCandidates, KeepDotsWhereThatComesFirst) {
  std::vector<StageWay> ways = Ways();
  ways[0].dots_kept = ways[0].recomputed;
  ways[0].keeps_dots_first = true;
  const CandidateRun two = ListCandidates(ways, Input())[1];
  ASSERT_EQ(two.candidates.size(), 5U);
  std::vector<RematPolicy> policies;
  for (const StageCandidate& candidate : two.candidates)
    policies.push_back(RecomputedOf(ways[candidate.stage.way], candidate.stage, 0));
  EXPECT_THAT(policies, ElementsAre(RematPolicy::kNone, RematPolicy::kDots, RematPolicy::kAll,
                                    RematPolicy::kNone, RematPolicy::kNone));
}

// Each micro-batch in flight takes so many bytes of 20.
TEST(ListCandidates, SayHowManyStagesMayBeBehind) {
  const std::vector<CandidateRun> runs = ListCandidates(Ways(), Input());
  EXPECT_THAT(runs[1].candidates,
              ElementsAre(Field(&StageCandidate::most_stages_behind, 0),    // 16
                          Field(&StageCandidate::most_stages_behind, 3),    // 4
                          Field(&StageCandidate::most_stages_behind, 1),    // 8
                          Field(&StageCandidate::most_stages_behind, 0)));  // 12
  EXPECT_EQ(runs[2].candidates[0].most_stages_behind, -1);                  // 24
}

TEST(ListCandidates, RunsBeginAndEndWhereStagesMay) {
  StageSearchInput input = Input();
  input.stage_begins = {0, 2};
  std::vector<LayerRun> runs;
  for (const CandidateRun& run : ListCandidates(Ways(), input)) runs.push_back(run.layers);
  EXPECT_THAT(runs, ElementsAre(LayerRun{0, 2}, LayerRun{2, 4}));
}

}  // namespace
}  // namespace minka
