#include "minka/driver/fold_layers.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/base/check.h"
#include "minka/base/status.h"
#include "minka/driver/prepare.h"
#include "minka/driver/stage_hash.h"
#include "minka/ir/verifier.h"
#include "minka/lowering/rematerialize.h"
#include "minka/lowering/stages.h"
#include "minka/models/registry.h"

namespace minka {
namespace {

Step SimplifiedModel(const std::string& name, const ModelOptions& options,
                     const LayerChoice& layers = MarkedLayers{}) {
  const absl::StatusOr<TracedStep> traced = TraceModel(name, options);
  MINKA_CHECK(traced.ok(), "{}", Message(traced.status()));
  auto simplified = Simplify(traced->step, layers, /*unrolls_loops=*/true);
  MINKA_CHECK(simplified.ok(), "{}", Message(simplified.status()));
  return *std::move(simplified);
}

// Of each layer by itself.
std::vector<uint64_t> HashesOfLayers(const Step& simplified, const RematChoice& remat,
                                     const MicroBatchOptions& micro_batches) {
  const auto prepared = [&]() -> absl::StatusOr<Step> {
    ASSIGN_OR_RETURN(const Step of_whole_batch, PrepareWholeBatch(simplified, remat));
    return PrepareMicroBatches(of_whole_batch, micro_batches);
  }();
  MINKA_CHECK(prepared.ok(), "{}", Message(prepared.status()));
  StageOptions options;
  options.stage_of_layer.resize(*simplified.num_layers);
  std::iota(options.stage_of_layer.begin(), options.stage_of_layer.end(), 0);
  const absl::StatusOr<StagedStep> staged = CutIntoStages(*prepared, options);
  MINKA_CHECK(staged.ok(), "{}", Message(staged.status()));
  std::vector<uint64_t> hashes;
  for (const StageStep& stage : staged->stages) hashes.push_back(OrderFreeStageHash(stage.step));
  return hashes;
}

// `but_for_sums`: of those that stand for themselves alone, not the same: terms of sums over layers
// are gone.
void ExpectLayersStandForOthers(const Step& simplified, const FoldedStep& folded,
                                bool but_for_sums) {
  ASSERT_TRUE(Verify(folded.step.module).ok());
  ASSERT_EQ(folded.layer.size(), static_cast<size_t>(*simplified.num_layers));
  for (const RematPolicy policy : {RematPolicy::kNone, RematPolicy::kDots, RematPolicy::kAll}) {
    const RematChoice choice = *EffectiveRemat(simplified, {policy});
    RematChoice of_folded(choice.empty() ? 0 : *folded.step.num_layers);
    for (size_t layer = 0; layer < choice.size(); ++layer)
      of_folded[folded.layer[layer]] = choice[layer];
    for (const int num_micro_batches : {1, 2, 4}) {
      const MicroBatchOptions micro_batches = {.num_micro_batches = num_micro_batches};
      const std::vector<uint64_t> whole = HashesOfLayers(simplified, choice, micro_batches);
      const std::vector<uint64_t> few = HashesOfLayers(folded.step, of_folded, micro_batches);
      for (size_t layer = 0; layer < whole.size(); ++layer) {
        const bool is_alone = std::ranges::count(folded.layer, folded.layer[layer]) == 1;
        if (is_alone && but_for_sums) continue;
        EXPECT_EQ(whole[layer], few[folded.layer[layer]])
            << RematPolicyName(policy) << ", layer " << layer << " of " << num_micro_batches
            << " micro-batches";
      }
    }
  }
}

struct ModelCase {
  std::string name;
  ModelOptions options;
  int num_folded = 0;  // layers
  bool has_sums = false;
};

void PrintTo(const ModelCase& model, std::ostream* out) { *out << model.name; }

class FoldLayersOf : public testing::TestWithParam<ModelCase> {};

TEST_P(FoldLayersOf, LayersThatStayStandForOthers) {
  const Step simplified = SimplifiedModel(GetParam().name, GetParam().options);
  const std::optional<FoldedStep> folded = FoldLayers(simplified);
  ASSERT_TRUE(folded.has_value());
  EXPECT_EQ(*folded->step.num_layers, GetParam().num_folded);
  ExpectLayersStandForOthers(simplified, *folded, GetParam().has_sums);
}

INSTANTIATE_TEST_SUITE_P(
    Models, FoldLayersOf,
    testing::Values(
        ModelCase{"gpt-tiny", {.num_layers = 8}, 7},
        ModelCase{"gpt-tiny", {.num_layers = 8, .dropout = 0.1}, 7},
        ModelCase{"gpt-tiny", {.num_layers = 8, .update = {.clip_norm = 1}}, 7, true},
        ModelCase{
            "gpt-tiny",
            {.num_layers = 8, .dtype = ElementType::kF16, .update = {.loss_scale = "dynamic"}},
            6,
            true},
        // Dense layers and mixtures of experts take turns, and the loss sums what balances experts.
        ModelCase{"moe-tiny", {.num_layers = 12}, 10, true},
        ModelCase{"bert-tiny", {.num_layers = 8}, 7}));

TEST(FoldLayers, WhatRepeatsNothingStaysAsItIs) {
  EXPECT_FALSE(FoldLayers(SimplifiedModel("gpt-tiny", {.num_layers = 2})).has_value());
}

}  // namespace
}  // namespace minka
