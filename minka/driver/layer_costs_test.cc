#include "minka/driver/layer_costs.h"

#include <algorithm>
#include <atomic>
#include <numeric>
#include <utility>

#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/base/check.h"
#include "minka/base/status.h"
#include "minka/driver/prepare.h"
#include "minka/lowering/stages.h"
#include "minka/models/registry.h"

namespace minka {
namespace {

using ::testing::AllOf;
using ::testing::Field;
using ::testing::HasSubstr;

using CostsOfLayers = std::vector<absl::StatusOr<std::vector<LayerCost>>>;

MeshOfKind MeshOf(const char* text) { return {.mesh = *Mesh::Parse(text)}; }

// A GPT of six layers in four micro-batches.
class LayerCostsTest : public testing::Test {
 protected:
  LayerCostsTest() {
    request_.micro_batches.num_micro_batches = 4;
    request_.pipeline = PipelineOptions();
  }

  static Step Simplified(int64_t num_layers = 6) {
    return Simplified("gpt-tiny", {.num_layers = num_layers});
  }
  static Step Simplified(const char* model, const ModelOptions& options) {
    const absl::StatusOr<TracedStep> traced = TraceModel(model, options);
    MINKA_CHECK(traced.ok(), "{}", Message(traced.status()));
    auto simplified = Simplify(traced->step, MarkedLayers{}, /*unrolls_loops=*/true);
    MINKA_CHECK(simplified.ok(), "{}", Message(simplified.status()));
    return *std::move(simplified);
  }

  CostsOfLayers Of(const std::vector<LayersOn>& asked) {
    PreparedSteps steps(Simplified());
    StagePlanner planner(request_);
    return LayerCosts(request_, steps, planner).Of(asked);
  }

  PlanRequest request_{.cluster = Cluster::Local(4)};
};

auto IsCost(const LayerCost& cost) {
  return AllOf(Field("micro_batch_us", &LayerCost::micro_batch_us, cost.micro_batch_us),
               Field("step_us", &LayerCost::step_us, cost.step_us),
               Field("static_bytes", &LayerCost::static_bytes, cost.static_bytes),
               Field("saved_bytes", &LayerCost::saved_bytes, cost.saved_bytes),
               Field("update_bytes", &LayerCost::update_bytes, cost.update_bytes),
               Field("transient_bytes", &LayerCost::transient_bytes, cost.transient_bytes));
}

TEST_F(LayerCostsTest, ThreadsAndWhatElseIsAskedChangeNothing) {
  const std::vector<LayersOn> asked = {
      {.on = MeshOf("x=1")}, {.on = MeshOf("x=4")}, {.on = MeshOf("x=2,y=2"), .memory_price = 1}};
  const CostsOfLayers in_parallel = Of(asked);
  request_.search.num_threads = 1;
  for (size_t i = 0; i < asked.size(); ++i) {
    const CostsOfLayers alone = Of({asked[i]});
    ASSERT_TRUE(in_parallel[i].ok()) << in_parallel[i].status();
    ASSERT_TRUE(alone[0].ok()) << alone[0].status();
    ASSERT_EQ(in_parallel[i]->size(), alone[0]->size());
    for (size_t layer = 0; layer < alone[0]->size(); ++layer) {
      EXPECT_THAT((*in_parallel[i])[layer], IsCost((*alone[0])[layer])) << i << " " << layer;
    }
  }
}

// Searches at several prices share a problem, and the step is cut for what is recomputed meanwhile.
TEST_F(LayerCostsTest, WhatSearchesShareChangesNothing) {
  PreparedSteps steps(Simplified());
  StagePlanner planner(request_);
  LayerCosts costs(request_, steps, planner);
  const MeshOfKind mesh = MeshOf("x=2,y=2");
  ASSERT_TRUE(costs.Of({{.on = mesh}})[0].ok());
  const RematChoice all = steps.RematCandidates();
  ASSERT_FALSE(all.empty());
  std::vector<LayersOn> asked;
  for (const double price : {0.03, 128.0}) {
    asked.push_back({.on = mesh, .memory_price = price});
    asked.push_back({.on = mesh, .memory_price = price, .remat = all});
  }
  const CostsOfLayers shared = costs.Of(asked);
  for (size_t i = 0; i < asked.size(); ++i) {
    const CostsOfLayers alone = Of({asked[i]});
    ASSERT_TRUE(shared[i].ok()) << shared[i].status();
    ASSERT_TRUE(alone[0].ok()) << alone[0].status();
    ASSERT_EQ(shared[i]->size(), alone[0]->size());
    for (size_t layer = 0; layer < alone[0]->size(); ++layer) {
      EXPECT_THAT((*shared[i])[layer], IsCost((*alone[0])[layer])) << i << " " << layer;
    }
  }
  EXPECT_LT((*shared[1])[2].saved_bytes, (*shared[0])[2].saved_bytes);    // recomputed
  EXPECT_LT((*shared[2])[2].static_bytes, (*shared[0])[2].static_bytes);  // dearer
}

TEST_F(LayerCostsTest, EqualLayersCostTheSameAndOnMoreDevicesHoldLess) {
  const CostsOfLayers costs = Of({{.on = MeshOf("x=1")}, {.on = MeshOf("x=4")}});
  ASSERT_TRUE(costs[0].ok()) << costs[0].status();
  ASSERT_TRUE(costs[1].ok()) << costs[1].status();
  const std::vector<LayerCost>&one = *costs[0], &four = *costs[1];
  ASSERT_GE(one.size(), 6);
  EXPECT_THAT(one[2], IsCost(one[3]));
  EXPECT_LT(four[2].saved_bytes, one[2].saved_bytes);
  EXPECT_LT(four[2].static_bytes, one[2].static_bytes);
}

// One of equal layers is not recomputed, so that the step cannot be folded: the others cost the
// same, and the same crosses between them.
TEST_F(LayerCostsTest, FoldedLayersCostWhatTheyDoInTheWholeStep) {
  PreparedSteps steps(Simplified(/*num_layers=*/12));
  const PreparedSteps::Folded* const folded = steps.FoldedLayers();
  ASSERT_NE(folded, nullptr);
  const RematChoice all = steps.RematCandidates();
  const auto repeated = std::ranges::adjacent_find(folded->layer);
  ASSERT_NE(repeated, folded->layer.end());
  const auto kept = static_cast<size_t>(repeated - folded->layer.begin());
  RematChoice whole = all;
  whole[kept] = RematPolicy::kNone;

  StagePlanner planner(request_);
  LayerCosts costs(request_, steps, planner);
  const CostsOfLayers found =
      costs.Of({{.on = MeshOf("x=4"), .remat = all}, {.on = MeshOf("x=4"), .remat = whole}});
  const std::vector<BytesBetween> of_all = costs.BytesInFrontOf(all).value(),
                                  of_whole = costs.BytesInFrontOf(whole).value();
  ASSERT_TRUE(found[0].ok() && found[1].ok());
  ASSERT_EQ(found[0]->size(), all.size());
  ASSERT_EQ(of_all.size(), all.size());
  for (size_t layer = 0; layer < all.size(); ++layer) {
    if (layer != kept) EXPECT_THAT((*found[0])[layer], IsCost((*found[1])[layer])) << layer;
    EXPECT_EQ(of_all[layer].forward, of_whole[layer].forward) << layer;
    EXPECT_EQ(of_all[layer].backward, of_whole[layer].backward) << layer;
  }
  EXPECT_GT((*found[1])[kept].saved_bytes, (*found[0])[kept].saved_bytes);
}

// What is put off needs gradients of activations, which the backward pass hands on, and some of
// what the forward pass saves. In front of the first layer nothing waits: it puts off all.
TEST_F(LayerCostsTest, WhatIsPutOffHoldsWhatTheBackwardPassHandsOn) {
  const CostsOfLayers costs = Of({{.on = MeshOf("x=1")}});
  ASSERT_TRUE(costs[0].ok()) << costs[0].status();
  const LayerCost &first = costs[0]->front(), &middle = (*costs[0])[2];
  EXPECT_GT(middle.handed_on_bytes, 0);
  EXPECT_GT(middle.put_off_bytes, middle.handed_on_bytes);
  EXPECT_LT(middle.put_off_bytes - middle.handed_on_bytes, middle.saved_bytes);
  EXPECT_EQ(first.handed_on_bytes, 0);
  EXPECT_GE(first.put_off_bytes, first.saved_bytes);
}

// Most choices that layers have on three axes are unusual, and none of these is needed.
TEST_F(LayerCostsTest, UnusualChoicesSaveHardlyAnyTime) {
  PreparedSteps steps(Simplified());
  const Step* prepared = steps.With({}, request_.micro_batches).value();
  StageOptions by_layer;
  by_layer.stage_of_layer.resize(prepared->num_layers.value());
  std::iota(by_layer.stage_of_layer.begin(), by_layer.stage_of_layer.end(), 0);
  const StagedStep staged = CutIntoStages(*prepared, by_layer).value();
  request_.cluster = Cluster::Preset("p3.16xlarge").value();
  StagePlanner planner(request_);
  StageRequest request{.meshes = {MeshOf("2x2x2").mesh}, .search = request_.search};
  const IntraOpResult all = planner.Find(staged.stages[2].step, request).value()->result;
  request.tries_unusual = false;
  const IntraOpResult usual = planner.Find(staged.stages[2].step, request).value()->result;
  EXPECT_NE(usual.notes, all.notes);  // they say how many choices were not tried
  EXPECT_LE(usual.stage.step_time_us, 1.02 * all.stage.step_time_us);
}

// Of one program, layers add up to what a plan of all of it takes and needs. Kernels of a Wide
// ResNet are turned around for the backward pass before it begins.
TEST_F(LayerCostsTest, LayersOfOneProgramAddUpToTheWholeStep) {
  request_.cluster = Cluster::Preset("a100:1x4").value();
  request_.micro_batches.per_micro_batch = true;
  const MeshOfKind on = MeshOf("x=4");
  using ModelOf = std::pair<const char*, ModelOptions>;
  for (const auto& [model, of_model] :
       {ModelOf("gpt-tiny", {.num_layers = 6}), {"wresnet-tiny", {}}}) {
    for (const int64_t num_micro_batches : {1, 4}) {
      request_.micro_batches.num_micro_batches = num_micro_batches;
      PreparedSteps steps(Simplified(model, of_model));
      for (const RematChoice& remat : {RematChoice(), steps.RematCandidates()}) {
        SCOPED_TRACE(
            fmt::format("{} in {}, recomputed: {}", model, num_micro_batches, !remat.empty()));
        StagePlanner planner(request_);
        const auto costs = LayerCosts(request_, steps, planner, StagePrograms::kOne)
                               .Of({{.on = on, .remat = remat}})
                               .front();
        ASSERT_TRUE(costs.ok()) << costs.status();
        const Step* const whole = steps.With(remat, request_.micro_batches).value();
        const auto cost = MakeCostModel(request_.cost_model, request_.cluster, on.mesh).value();
        IntraOpOptions options;
        LeaveOutUnusual(options);
        const auto planned = PlanMesh(*whole, on.mesh, *cost, options);
        ASSERT_TRUE(planned.ok()) << planned.status().why;
        StageWay way{.num_devices = 4, .kept = *costs};
        const FoundStage all =
            StageEstimates({way}).StageOf(0, 0, static_cast<int>(costs->size()),
                                          /*num_recomputed=*/0, {.in_flight = 1});
        const double us =
            static_cast<double>(num_micro_batches) * all.cost.micro_batch_us + all.cost.step_us;
        EXPECT_NEAR(us, planned->stage.step_time_us, 0.1 * us);
        const auto bytes = static_cast<double>(all.bytes);
        EXPECT_NEAR(bytes, static_cast<double>(planned->stage.peak_memory_bytes), 0.25 * bytes);
      }
    }
  }
}

TEST_F(LayerCostsTest, WhatIsCancelledIsAnError) {
  std::atomic<bool> cancelled = true;
  request_.cancelled = &cancelled;
  const CostsOfLayers costs = Of({{.on = MeshOf("x=1")}});
  EXPECT_EQ(costs[0].status().code(), absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace minka
