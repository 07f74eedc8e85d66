#include "minka/planner/inter_op/stage_search.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/schedule/generate.h"
#include "minka/simulator/timeline.h"

namespace minka {
namespace {

using testing::ElementsAre;

std::vector<LayerCost> Layers(const std::vector<double>& times) {
  std::vector<LayerCost> out;
  for (const double time : times) out.push_back({.micro_batch_us = time});
  return out;
}

// A way on so many devices where each does its even part.
StageWay Evenly(std::vector<double> times, int num_devices) {
  for (double& time : times) time /= num_devices;
  return {.num_devices = num_devices, .kept = Layers(times)};
}

std::vector<int> SizesOf(const FoundPipeline& found, const std::vector<StageWay>& ways) {
  std::vector<int> sizes;
  for (const FoundStage& stage : found.stages) sizes.push_back(ways[stage.way].num_devices);
  return sizes;
}

TEST(FindStages, DevicesGoWhereTheWorkIs) {
  std::vector<StageWay> ways;
  for (const int size : {1, 2, 4}) ways.push_back(Evenly({4, 2, 1, 1}, size));
  const StageSearchInput options = {.hosts = {{.num_devices = 8, .devices_per_host = 8}},
                                    .num_micro_batches = 64,
                                    .num_stages = 4};
  const std::vector<FoundPipeline> found = FindStages(ways, options);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_THAT(SizesOf(found[0], ways), ElementsAre(4, 2, 1, 1));
  EXPECT_DOUBLE_EQ(found[0].step_time_us, 4 + 63);
}

TEST(DevicesPerBlock, AreAPartOfEveryKindsHosts) {
  const auto of = [](const std::vector<HostsOfKind>& hosts) { return DevicesPerBlock(hosts); };
  EXPECT_EQ(of({{.num_devices = 64, .devices_per_host = 8}}), 1);
  EXPECT_EQ(of({{.num_devices = 1024, .devices_per_host = 8}}), 16);
  EXPECT_EQ(of({{.num_devices = 1016, .devices_per_host = 8}}), 8);
  const HostsOfKind slow = {.num_devices = 64, .devices_per_host = 8};
  EXPECT_EQ(of({{.num_devices = 128, .devices_per_host = 8}, slow}), 2);
  EXPECT_EQ(of({{.num_devices = 256, .devices_per_host = 8}, slow}), 4);
}

TEST(FindStages, MeshesLieWithinHostsOrAreWholeOnes) {
  std::vector<StageWay> ways;
  for (const int size : {1, 2, 3, 4}) ways.push_back(Evenly({1, 2, 1}, size));
  for (const FoundPipeline& found : FindStages(
           ways, {.hosts = {{.num_devices = 4, .devices_per_host = 2}}, .num_micro_batches = 8})) {
    int device = 0;
    for (const int size : SizesOf(found, ways)) {
      EXPECT_TRUE(device / 2 == (device + size - 1) / 2 || (device % 2 == 0 && size % 2 == 0));
      device += size;
    }
    EXPECT_EQ(device, 4);
  }
}

// Three micro-batches lie on the first of three stages, one on the last.
TEST(FindStages, StagesInFrontRecomputeMore) {
  StageWay way{.num_devices = 1};
  for (int layer = 0; layer < 6; ++layer) {
    way.kept.push_back({.micro_batch_us = 3, .static_bytes = 10, .saved_bytes = 10});
    way.recomputed.push_back({.micro_batch_us = 4, .static_bytes = 10, .saved_bytes = 1});
  }
  const std::vector<FoundPipeline> found =
      FindStages({way}, {.hosts = {{.num_devices = 3, .devices_per_host = 3, .limit_bytes = 60}},
                         .num_micro_batches = 16,
                         .held = {{0}, {1}, {2}, {3}}});
  ASSERT_EQ(found.size(), 1U);
  std::vector<int> recomputed;
  for (const FoundStage& stage : found[0].stages) recomputed.push_back(stage.num_recomputed);
  EXPECT_THAT(recomputed, ElementsAre(1, 0, 0));
  for (const FoundStage& stage : found[0].stages) EXPECT_LE(stage.bytes, 60);
}

// Keeping dots saves six bytes of a layer in 0.2 us, recomputing all of it three more in 0.8.
TEST(FindStages, DotsAreKeptBeforeLayersAreRecomputedWhole) {
  StageWay way{.num_devices = 1};
  for (int layer = 0; layer < 4; ++layer) {
    way.kept.push_back({.micro_batch_us = 3, .saved_bytes = 10});
    way.dots_kept.push_back({.micro_batch_us = 3.2, .saved_bytes = 4});
    way.recomputed.push_back({.micro_batch_us = 4, .saved_bytes = 1});
  }
  way.keeps_dots_first = SavesMoreByKeepingDots(way);
  EXPECT_TRUE(way.keeps_dots_first);
  const auto recomputed = [&](int64_t limit_bytes) {
    const std::vector<FoundPipeline> found =
        FindStages({way}, {.hosts = {{.limit_bytes = limit_bytes}}, .num_stages = 1});
    std::vector<RematPolicy> out;
    for (int layer = 0; !found.empty() && layer < 4; ++layer)
      out.push_back(RecomputedOf(way, found[0].stages[0], layer));
    return out;
  };
  constexpr auto kNone = RematPolicy::kNone, kDots = RematPolicy::kDots, kAll = RematPolicy::kAll;
  EXPECT_THAT(recomputed(40), ElementsAre(kNone, kNone, kNone, kNone));
  EXPECT_THAT(recomputed(28), ElementsAre(kDots, kDots, kNone, kNone));
  EXPECT_THAT(recomputed(16), ElementsAre(kDots, kDots, kDots, kDots));
  EXPECT_THAT(recomputed(12), ElementsAre(kAll, kAll, kDots, kDots));
  EXPECT_THAT(recomputed(3), ElementsAre());
}

// What dots keep is most of what there is: two bytes less in 0.5 us, nine in 1.
TEST(SavesMoreByKeepingDots, ComparesTimeForAByte) {
  StageWay way{.kept = {{.micro_batch_us = 3, .saved_bytes = 10}},
               .dots_kept = {{.micro_batch_us = 3.5, .saved_bytes = 8}},
               .recomputed = {{.micro_batch_us = 4, .saved_bytes = 1}}};
  EXPECT_FALSE(SavesMoreByKeepingDots(way));
  way.dots_kept[0].micro_batch_us = 3;
  EXPECT_TRUE(SavesMoreByKeepingDots(way));
  way.dots_kept[0].saved_bytes = 10;
  EXPECT_FALSE(SavesMoreByKeepingDots(way));
}

TEST(FindStages, BeginsWhereStagesMayBegin) {
  const std::vector<StageWay> ways = {Evenly({1, 1, 1, 1, 1, 1}, 1)};
  const std::vector<FoundPipeline> found =
      FindStages(ways, {.hosts = {{.num_devices = 2, .devices_per_host = 2}},
                        .num_micro_batches = 4,
                        .stage_begins = {0, 2}});
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].stages[1].begin_layer, 2);
}

// The first stage may hold two micro-batches: it waits for the first gradient, for as much of the
// way of every other one as a micro-batch does not hide, and for the last.
TEST(FindStages, WhatIsSentTakesTime) {
  const std::vector<StageWay> ways = {Evenly({1, 1}, 1)};
  StageSearchInput input{.hosts = {{.num_devices = 2, .devices_per_host = 1}},
                         .num_micro_batches = 64};
  input.send_us = [](const StageBorder& border) { return border.crosses_hosts ? 1.0 : 0.25; };
  EXPECT_DOUBLE_EQ(FindStages(ways, input).front().step_time_us, 64 + 2 + 60 * 1 / 2.0 + 1);
  input.hosts[0].devices_per_host = 2;
  EXPECT_DOUBLE_EQ(FindStages(ways, input).front().step_time_us, 64 + 1.25 + 60 * 0.25 / 2 + 0.25);
}

TEST(FindStages, WhatWasPlannedStandsInsteadOfEstimates) {
  std::vector<StageWay> ways = {Evenly({2, 2, 2}, 1), Evenly({2, 2, 2}, 1)};
  for (LayerCost& layer : ways[1].kept) layer.micro_batch_us *= 1.01;
  StageSearchInput input{.hosts = {{.num_devices = 2, .devices_per_host = 2}},
                         .num_micro_batches = 8};
  EXPECT_EQ(FindStages(ways, input).front().stages[0].way, 0);
  // Of one layer and of two, wherever they stand.
  input.corrections.times[{.way = 0, .layers = {0}}] = {.micro_batch_us = 3};
  input.corrections.times[{.way = 0, .layers = {0, 0}}] = {.micro_batch_us = 6};
  const FoundPipeline found = FindStages(ways, input).front();
  for (const FoundStage& stage : found.stages) EXPECT_EQ(stage.way, 1);
  input.hosts[0].limit_bytes = 50;
  input.corrections.more_bytes = {0, 51};
  const FoundPipeline smaller = FindStages(ways, input).front();
  for (const FoundStage& stage : smaller.stages) EXPECT_EQ(stage.way, 0);
}

// The last stage is updated while gradients go back to the first one.
TEST(FindStages, UpdatesAtTheEndCostNothing) {
  StageWay way = Evenly({3, 3, 3}, 1);
  for (LayerCost& layer : way.kept) layer.forward_us = 1;
  way.kept[2].step_us = 4;
  StageSearchInput input{.hosts = {{.num_devices = 3, .devices_per_host = 3}},
                         .num_micro_batches = 8};
  EXPECT_DOUBLE_EQ(FindStages({way}, input).front().step_time_us, 7 * 3 + 9);
  way.kept[1].step_us = 4;
  EXPECT_DOUBLE_EQ(FindStages({way}, input).front().step_time_us, 7 * 3 + 9 + 4 - 2);
  input.splits_backward = true;
  EXPECT_DOUBLE_EQ(FindStages({way}, input).front().step_time_us, 7 * 3 + 3 + 2 + 4);
}

TEST(FindStages, ForwardPassesInFrontAreWaitedForWhereBackwardPassesAreSplit) {
  StageWay way = Evenly({3, 3, 3}, 1);
  for (LayerCost& layer : way.kept) layer.forward_us = 1;
  EXPECT_DOUBLE_EQ(FindStages({way}, {.hosts = {{.num_devices = 3, .devices_per_host = 3}},
                                      .num_micro_batches = 8,
                                      .splits_backward = true})
                       .front()
                       .step_time_us,
                   8 * 3 + 2);
}

TEST(FindStages, NothingFitsWhereNothingDoes) {
  StageWay way{.num_devices = 1, .kept = Layers({1, 1})};
  for (LayerCost& layer : way.kept) layer.static_bytes = 100;
  EXPECT_TRUE(
      FindStages({way}, {.hosts = {{.num_devices = 2, .devices_per_host = 2, .limit_bytes = 99}}})
          .empty());
}

// What a step of the stages takes by a schedule.
double SimulatedUs(const std::vector<FoundStage>& stages, const std::vector<StageWay>& ways,
                   std::string_view schedule_name, const StageSearchInput& input) {
  const Schedule schedule =
      *MakeSchedule(schedule_name, {static_cast<int>(stages.size()), input.num_micro_batches});
  const auto task_us = [&](const Task& task) {
    const LayerCost& cost = stages[task.stage].cost;
    const double backward_us = cost.micro_batch_us - cost.forward_us;
    switch (task.kind) {
      case TaskKind::kForward:
        return cost.forward_us;
      case TaskKind::kBackward:
        return schedule.splits_backward ? backward_us / 2 : backward_us;
      case TaskKind::kWeightGradient:
        return backward_us / 2;
      case TaskKind::kApply:
        break;
    }
    return cost.step_us;
  };
  const auto send_us = [&](const Task& from, const Task& to) {
    const FoundStage& before = stages[std::min(from.stage, to.stage)];
    const FoundStage& behind = stages[std::max(from.stage, to.stage)];
    return input.send_us({.layer = behind.begin_layer,
                          .before = ways[before.way].submesh(),
                          .behind = ways[behind.way].submesh()}) /
           2;
  };
  return Simulate(schedule, {.task = task_us, .transfer = send_us})->step_time;
}

// The least that any pipeline takes, by enumeration of stages from the last one on.
double LeastOfAllUs(const std::vector<StageWay>& ways, std::string_view schedule,
                    const StageSearchInput& input) {
  const StageEstimates estimates(ways);
  double least = std::numeric_limits<double>::infinity();
  std::vector<FoundStage> stages;  // from the last one
  std::vector<int> left;           // devices, by kind
  for (const HostsOfKind& hosts : input.hosts) left.push_back(hosts.num_devices);
  const std::function<void(int, int)> extend = [&](int end, int last_kind) {
    if (end == 0 && std::ranges::max(left) == 0 && stages.size() > 1) {
      least = std::min(least, SimulatedUs({stages.rbegin(), stages.rend()}, ways, schedule, input));
    }
    for (int way = 0; way < static_cast<int>(ways.size()); ++way) {
      const int size = ways[way].num_devices, kind = ways[way].kind;
      const bool goes_on = last_kind < 0 || kind == last_kind || left[last_kind] == 0;
      if (size > left[kind] || !goes_on) continue;
      left[kind] -= size;
      for (int begin = 0; begin < end; ++begin) {
        for (int recomputed = 0; recomputed <= ways[way].MostRecomputed(end - begin);
             ++recomputed) {
          const MicroBatchesHeld held = input.Held(static_cast<int>(stages.size()) + 1);
          stages.push_back(estimates.StageOf(way, begin, end, recomputed, held));
          if (input.FitsOn(kind, stages.back().bytes)) extend(begin, kind);
          stages.pop_back();
        }
      }
      left[kind] += size;
    }
  };
  extend(static_cast<int>(ways[0].kept.size()), /*last_kind=*/-1);
  return least;
}

// Two devices are three times as fast as the two others: they get three quarters of the work, as
// the first ones or the last.
TEST(FindStages, HostsOfTwoKindsShareTheWork) {
  std::vector<StageWay> ways;
  for (const int size : {1, 2}) {
    for (const int kind : {0, 1}) {
      ways.push_back(Evenly(std::vector<double>(8, kind == 0 ? 3 : 1), size));
      ways.back().kind = kind;
    }
  }
  StageSearchInput input = {.hosts = {{.num_devices = 2, .devices_per_host = 2},
                                      {.num_devices = 2, .devices_per_host = 2}},
                            .num_micro_batches = 64,
                            .num_stages = 2};
  const auto layers_of_fast = [&](const FoundPipeline& found) {
    for (const FoundStage& stage : found.stages) {
      if (ways[stage.way].kind == 1) return stage.end_layer - stage.begin_layer;
    }
    return 0;
  };
  FoundPipeline found = FindStages(ways, input).front();
  EXPECT_THAT(SizesOf(found, ways), ElementsAre(2, 2));
  EXPECT_EQ(layers_of_fast(found), 6);
  // Nothing is sent in no time but to the kind that stands last then.
  for (const int last : {0, 1}) {
    input.send_us = [last](const StageBorder& border) {
      return border.behind.kind == last ? 0.0 : 100.0;
    };
    found = FindStages(ways, input).front();
    EXPECT_EQ(ways[found.stages.back().way].kind, last);
    EXPECT_EQ(layers_of_fast(found), 6);
  }
  // No kind takes the work of the other where its memory does not allow it, or its share.
  input.send_us = {};
  input.work.assign(8, 1);
  input.hosts[0].share = 3;
  input.hosts[1].share = 1;
  EXPECT_EQ(layers_of_fast(FindStages(ways, input).front()), 2);
  input.hosts[1].share = 1000;
  EXPECT_EQ(layers_of_fast(FindStages(ways, input).front()), 7);
  input.work.clear();
  for (StageWay& way : ways) {
    for (LayerCost& layer : way.kept) layer.static_bytes = 10;
  }
  input.hosts[1].limit_bytes = 35;
  EXPECT_EQ(layers_of_fast(FindStages(ways, input).front()), 3);
}

TEST(FindStages, FindsAndEstimatesWhatIsFastestInSimulations) {
  std::mt19937 random(1);
  const auto draw = [&](int least, int most) {
    return std::uniform_int_distribution<int>(least, most)(random);
  };
  int num_found = 0;
  for (int round = 0; round < 150; ++round) {
    const int num_layers = draw(2, 5);
    const bool is_mixed = round >= 90;  // hosts of two kinds
    std::vector<StageWay> ways;
    for (const auto& [size, kind] :
         is_mixed ? std::vector<std::pair<int, int>>{{1, 0}, {2, 0}, {1, 1}, {2, 1}}
                  : std::vector<std::pair<int, int>>{{1, 0}, {1, 0}, {2, 0}, {4, 0}}) {
      StageWay way{.kind = kind, .num_devices = size};
      for (int layer = 0; layer < num_layers; ++layer) {
        const auto forward_us = static_cast<double>(draw(100, 600)) / size / (1 + kind);
        LayerCost kept = {.forward_us = forward_us,
                          .micro_batch_us = 3 * forward_us,
                          .step_us = static_cast<double>(draw(0, 600)),
                          .static_bytes = draw(0, 40) / size,
                          .saved_bytes = draw(10, 30) / size,
                          .transient_bytes = draw(0, 20)};
        kept.put_off_bytes = kept.saved_bytes * (round % 2 == 0 ? 3 : 1) / 2;
        kept.handed_on_bytes = kept.put_off_bytes / 2;
        way.kept.push_back(kept);
        LayerCost recomputed = kept;
        recomputed.micro_batch_us *= 1.3;
        recomputed.saved_bytes /= 4;
        way.recomputed.push_back(recomputed);
        LayerCost dots_kept = kept;
        dots_kept.micro_batch_us *= round % 4 < 2 ? 1.05 : 1.25;
        dots_kept.saved_bytes = dots_kept.saved_bytes * 2 / 3;
        way.dots_kept.push_back(dots_kept);
      }
      way.keeps_dots_first = SavesMoreByKeepingDots(way);
      ways.push_back(std::move(way));
    }
    const std::string_view schedule =
        std::vector<std::string_view>{"1f1b", "eager-1f1b", "zero-bubble-h1"}[round % 3];
    // Of fewer, estimates of zero-bubble-h1 on unlike stages miss by more.
    const int num_micro_batches = draw(is_mixed ? 4 : 1, 32);
    StageSearchInput input = {
        .hosts = {{.num_devices = 4, .devices_per_host = 4, .limit_bytes = draw(60, 200)}},
        .num_micro_batches = num_micro_batches,
        .held = {{0}},
        .splits_backward = schedule == "zero-bubble-h1"};
    if (is_mixed) {
      input.hosts = {{.num_devices = 2, .devices_per_host = 2, .limit_bytes = draw(60, 200)},
                     {.num_devices = 2, .devices_per_host = 2, .limit_bytes = draw(60, 200)}};
    }
    for (int from_end = 1; from_end <= 4; ++from_end) {
      // What is put off may be held by every stage as long as by the first one.
      const int stages = input.splits_backward ? 4 : from_end;
      const Schedule made = *MakeSchedule(schedule, {stages, num_micro_batches});
      input.held.push_back(MostHeld(made)[stages - from_end]);
    }
    const double most_us = draw(0, 300);
    input.send_us = [most_us](const StageBorder& border) {
      return most_us * border.layer / border.before.num_devices / (1 + border.behind.kind);
    };
    const double least = LeastOfAllUs(ways, schedule, input);
    const std::vector<FoundPipeline> found = FindStages(ways, input);
    EXPECT_EQ(found.empty(), least == std::numeric_limits<double>::infinity());
    if (found.empty()) continue;
    ++num_found;
    const double us = SimulatedUs(found[0].stages, ways, schedule, input);
    EXPECT_LE(us, 1.03 * least) << schedule;
    // Nothing is known of which part of a backward pass may be put off.
    const double most_off = input.splits_backward ? 0.15 : 0.04;
    EXPECT_NEAR(found[0].step_time_us, us, most_off * us) << schedule;
  }
  EXPECT_GT(num_found, 80);
}

}  // namespace
}  // namespace minka
