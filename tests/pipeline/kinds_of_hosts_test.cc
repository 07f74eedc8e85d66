// Pipelines on hosts of several kinds: each stage on one of them.
#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/base/status.h"
#include "minka/driver/pipeline.h"
#include "minka/driver/plan_stage.h"
#include "minka/frontend/trace.h"
#include "minka/models/gpt.h"

namespace minka {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::Not;

Step FourLayers() {
  return Trace(Gpt({.batch = 64,
                    .sequence = 128,
                    .vocabulary = 512,
                    .hidden = 512,
                    .num_layers = 4,
                    .num_heads = 8}),
               AdamW({}))
      .value()
      .step;
}

PlanRequest RequestFor(const std::string& hosts) {
  std::vector<Cluster> kinds = Cluster::OfKinds(hosts).value();
  PlanRequest request{.cluster = std::move(kinds.front()),
                      .micro_batches = {.num_micro_batches = 8},
                      .pipeline = PipelineOptions{},
                      .search = {.work_limit = 1'000'000'000}};
  request.other_hosts.assign(kinds.begin() + 1, kinds.end());
  return request;
}

int NumLayersOn(const PlannedPipeline& planned, const std::string& device) {
  int num_layers = 0;
  for (const PipelineStagePlan& stage : planned.plan.stages) {
    if (stage.device == device) num_layers += static_cast<int>(stage.plan.stage.layers.size());
  }
  return num_layers;
}

// Three kernels in the time of one.
constexpr char kFast[] = "a100-40gb", kSlow[] = "gtx1080ti-11gb";

TEST(KindsOfHosts, FasterOnesGetMoreLayersWhereverTheyAreNamed) {
  const Step step = FourLayers();
  std::optional<double> step_time_us;
  for (const char* hosts : {"a100:1x2,1080ti:1x2", "1080ti:1x2,a100:1x2"}) {
    const auto planned = PlanPipeline(step, RequestFor(hosts));
    ASSERT_TRUE(planned.ok()) << Message(planned.status());
    EXPECT_GT(NumLayersOn(*planned, kFast), NumLayersOn(*planned, kSlow));
    EXPECT_GT(NumLayersOn(*planned, kSlow), 0);
    for (const PipelineStagePlan& stage : planned->plan.stages)
      EXPECT_EQ(stage.kind, (stage.device == kFast) == (hosts[0] == 'a') ? 0 : 1);
    if (!step_time_us) step_time_us = planned->plan.step_time_us;
    EXPECT_NEAR(planned->plan.step_time_us, *step_time_us, 1e-6 * *step_time_us);
    EXPECT_EQ(planned->num_devices().size(), planned->kinds().size());
  }
}

// Of all stages of two meshes of two devices none is faster, and none below the bound.
TEST(KindsOfHosts, NoneOfTheOtherPartingsIsFaster) {
  const SplitStep split = SplitStacks(FourLayers()).value();
  PlanRequest request = RequestFor("a100:1x2,1080ti:1x2");
  StagePlanner stages(request);
  const auto best = PlanPipeline(split, request, stages);
  ASSERT_TRUE(best.ok()) << Message(best.status());
  ASSERT_TRUE(best->plan.lower_bound_us);
  const int num_layers = static_cast<int>(best->plan.stage_of_layer.size());
  for (const std::vector<int>& kinds : {std::vector<int>{0, 1}, {1, 0}}) {
    for (int cut = 1; cut < num_layers; ++cut) {
      PipelineOptions options{.submeshes = {2, 2}, .kinds = kinds};
      for (int layer = 0; layer < num_layers; ++layer)
        options.stage_of_layer.push_back(layer < cut ? 0 : 1);
      request.pipeline = std::move(options);
      const auto planned = PlanPipeline(split, request, stages);
      ASSERT_TRUE(planned.ok()) << Message(planned.status());
      EXPECT_EQ(planned->kinds(), kinds);
      EXPECT_GE(planned->plan.step_time_us, 0.99 * best->plan.step_time_us) << "cut at " << cut;
      EXPECT_GE(planned->plan.step_time_us, *best->plan.lower_bound_us);
    }
  }
}

TEST(KindsOfHosts, EachKeepsItsOwnMemory) {
  const Step step = FourLayers();
  PlanRequest request = RequestFor("a100:1x2,1080ti:1x2");
  const auto free = PlanPipeline(step, request);
  ASSERT_TRUE(free.ok()) << Message(free.status());
  const auto largest = std::ranges::max_element(
      free->plan.stages, {},
      [](const PipelineStagePlan& stage) { return stage.plan.peak_memory_bytes; });
  ASSERT_EQ(largest->device, kFast);
  // What the slow hosts have does not matter to the fast ones.
  request.other_hosts[0].device.memory_bytes = largest->plan.peak_memory_bytes - 1;
  auto planned = PlanPipeline(step, request);
  ASSERT_TRUE(planned.ok()) << Message(planned.status());
  EXPECT_EQ(planned->plan.peak_memory_bytes, free->plan.peak_memory_bytes);
  request.cluster.device.memory_bytes = largest->plan.peak_memory_bytes * 4 / 5;
  planned = PlanPipeline(step, request);
  ASSERT_TRUE(planned.ok()) << Message(planned.status());
  for (const PipelineStagePlan& stage : planned->plan.stages)
    EXPECT_LE(stage.plan.peak_memory_bytes, *request.MemoryLimitOn(stage.kind)) << stage.device;
  // Where it is not enough, the message says whose.
  request.cluster.device.memory_bytes = 1 << 16;
  EXPECT_THAT(Message(PlanPipeline(step, request).status()),
              HasSubstr(std::string("per device (") + kFast + "), 65536 are allowed"));
}

TEST(KindsOfHosts, WorkIsSharedAsAsked) {
  const Step step = FourLayers();
  PlanRequest request = RequestFor("a100:1x2,1080ti:1x2");
  int before = 0;
  for (const double share : {0.2, 1.0, 5.0}) {
    request.pipeline->shares = {share, 1};
    const auto planned = PlanPipeline(step, request);
    ASSERT_TRUE(planned.ok()) << Message(planned.status());
    const int num_layers = NumLayersOn(*planned, kFast);
    EXPECT_GT(num_layers, before);
    before = num_layers;
  }
}

TEST(KindsOfHosts, WhatIsAskedOfThemIsChecked) {
  const Step step = FourLayers();
  const auto error = [&](const char* hosts, const PipelineOptions& options) {
    PlanRequest request = RequestFor(hosts);
    request.pipeline = options;
    return Message(PlanPipeline(step, request).status());
  };
  const char* two = "a100:1x2,1080ti:1x2";
  for (const std::vector<double>& shares :
       {std::vector<double>{1}, {1, 1, 1}, {1, 0}, {1, -2}, {INFINITY, 1}, {NAN, 1}}) {
    EXPECT_THAT(error(two, {.shares = shares}), HasSubstr("the work cannot be shared as"));
  }
  EXPECT_THAT(error("a100:1x2", {.shares = {1, 1}}), HasSubstr("among hosts of 1 kind:"));
  EXPECT_THAT(error(two, {.submeshes = {2, 2}, .kinds = {0}}), HasSubstr("there are 2"));
  EXPECT_THAT(error(two, {.submeshes = {2, 2}, .kinds = {0, 2}}), HasSubstr("there are 2"));
  EXPECT_EQ(error(two, {.submeshes = {2, 2}, .kinds = {1, 1}}),
            "mesh 1 needs 2 devices of one kind, 0 of 1080ti are left");
  EXPECT_THAT(error("a100:1x4,v100:1x4", {.submesh_choices = {6}}),
              HasSubstr("a submesh of 6 devices may be chosen: hosts of no kind"));
  EXPECT_THAT(error("a100:1x4,v100:1x4", {.submesh_choices = {8}}), HasSubstr("hosts of no kind"));
}

TEST(KindsOfHosts, ThreeOfThemAreSearched) {
  PlanRequest request = RequestFor("a100:1x2,v100:1x1,1080ti:1x1");
  const auto planned = PlanPipeline(FourLayers(), request);
  ASSERT_TRUE(planned.ok()) << Message(planned.status());
  std::vector<int> kinds = planned->kinds();
  const auto repeated = std::ranges::unique(kinds);
  kinds.erase(repeated.begin(), repeated.end());
  EXPECT_THAT(kinds, testing::UnorderedElementsAre(0, 1, 2));  // each in one place
  ASSERT_TRUE(planned->plan.gap);
  EXPECT_LT(*planned->plan.gap, 0.5);
}

// Cores of one machine are not those of another.
TEST(KindsOfHosts, MachinesShareNoCores) {
  PlanRequest request = RequestFor("a100");
  request.cluster = Cluster::Local(2);
  request.other_hosts = {Cluster::Local(2)};
  const auto planned = PlanPipeline(FourLayers(), request);
  ASSERT_TRUE(planned.ok()) << Message(planned.status());
  EXPECT_FALSE(planned->plan.meshes_share_cores);
}

TEST(KindsOfHosts, GivenMeshesFillThemInTheirOrder) {
  PlanRequest request = RequestFor("a100:1x2,1080ti:1x2");
  request.pipeline->submeshes = {1, 1, 2};
  auto planned = PlanPipeline(FourLayers(), request);
  ASSERT_TRUE(planned.ok()) << Message(planned.status());
  EXPECT_THAT(planned->kinds(), testing::ElementsAre(0, 0, 1));
  request.pipeline->submeshes = {1, 2, 1};
  EXPECT_EQ(Message(PlanPipeline(FourLayers(), request).status()),
            "mesh 2 needs 1 device of one kind, 0 of 1080ti are left");
  request.pipeline->submeshes = {};
  request.pipeline->num_stages = 1;
  EXPECT_EQ(Message(PlanPipeline(FourLayers(), request).status()),
            "hosts of 2 kinds take 2 stages at least, each on one kind; one is asked for");
}

TEST(KindsOfHosts, PlansKeepThem) {
  const Step step = FourLayers();
  const auto planned = PlanPipeline(step, RequestFor("a100:1x2,1080ti:1x2"));
  ASSERT_TRUE(planned.ok()) << Message(planned.status());
  std::string json = PipelinePlanToJson(planned->plan, planned->modules());
  const auto loaded = LoadPipeline(step, json);
  ASSERT_TRUE(loaded.ok()) << Message(loaded.status());
  EXPECT_EQ(loaded->kinds(), planned->kinds());
  EXPECT_EQ(loaded->plan.stages.front().device, planned->plan.stages.front().device);
  EXPECT_TRUE(CheckKinds(loaded->plan, 2).ok());
  EXPECT_THAT(Message(CheckKinds(loaded->plan, 1)), HasSubstr("its cluster has 1 kind"));
  for (const char* kind : {"-1", "\"a100\""}) {
    std::string broken = json;
    const size_t at = broken.find("\"kind\":");
    broken.replace(at, broken.find(',', at) - at, std::string("\"kind\":") + kind);
    EXPECT_THAT(Message(LoadPipeline(step, broken).status()), HasSubstr("kind")) << kind;
  }
}

TEST(KindsOfHosts, SlowOnesThatOnlyHinderAreNamed) {
  const Step step = FourLayers();
  PlanRequest request = RequestFor("a100:1x2,a100:1x2");
  request.other_hosts[0].name = "slow";
  const std::string note = "without the hosts of slow a step is estimated to take";
  auto planned = PlanPipeline(step, request);
  ASSERT_TRUE(planned.ok()) << Message(planned.status());
  EXPECT_THAT(planned->plan.notes, Not(Contains(HasSubstr(note))));
  request.other_hosts[0].inter_host.bytes_per_us /= 100;
  planned = PlanPipeline(step, request);
  ASSERT_TRUE(planned.ok()) << Message(planned.status());
  EXPECT_THAT(planned->plan.notes, Contains(HasSubstr(note)));
}

}  // namespace
}  // namespace minka
