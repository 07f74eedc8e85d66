#include "minka/planner/inter_op/stage_search.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace minka {
namespace {

using testing::ElementsAre;

std::vector<LayerCost> Layers(std::vector<double> times) {
  std::vector<LayerCost> out;
  for (const double time : times) out.push_back({.micro_batch_us = time});
  return out;
}

// A way on so many devices where each does its even part.
StageWay Evenly(std::vector<double> times, int num_devices) {
  for (double& time : times) time /= num_devices;
  return {.num_devices = num_devices, .kept = Layers(std::move(times))};
}

std::vector<int> SizesOf(const FoundPipeline& found, const std::vector<StageWay>& ways) {
  std::vector<int> sizes;
  for (const FoundStage& stage : found.stages) sizes.push_back(ways[stage.way].num_devices);
  return sizes;
}

TEST(FindStages, DevicesGoWhereTheWorkIs) {
  std::vector<StageWay> ways;
  for (const int size : {1, 2, 4}) ways.push_back(Evenly({4, 2, 1, 1}, size));
  const StageSearchInput options = {
      .num_devices = 8, .devices_per_host = 8, .num_micro_batches = 64, .num_stages = 4};
  const std::vector<FoundPipeline> found = FindStages(ways, options);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_THAT(SizesOf(found[0], ways), ElementsAre(4, 2, 1, 1));
  EXPECT_DOUBLE_EQ(found[0].step_time_us, 4 + 63);
}

TEST(FindStages, MeshesLieWithinHostsOrAreWholeOnes) {
  std::vector<StageWay> ways;
  for (const int size : {1, 2, 3, 4}) ways.push_back(Evenly({1, 2, 1}, size));
  for (const FoundPipeline& found :
       FindStages(ways, {.num_devices = 4, .devices_per_host = 2, .num_micro_batches = 8})) {
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
  const std::vector<FoundPipeline> found = FindStages({way}, {.num_devices = 3,
                                                              .devices_per_host = 3,
                                                              .num_micro_batches = 16,
                                                              .limit_bytes = 60,
                                                              .in_flight = {0, 1, 2, 3}});
  ASSERT_EQ(found.size(), 1U);
  std::vector<int> recomputed;
  for (const FoundStage& stage : found[0].stages) recomputed.push_back(stage.num_recomputed);
  EXPECT_THAT(recomputed, ElementsAre(1, 0, 0));
  EXPECT_LE(found[0].peak_bytes(), 60);
}

TEST(FindStages, BeginsWhereStagesMayBegin) {
  const std::vector<StageWay> ways = {Evenly({1, 1, 1, 1, 1, 1}, 1)};
  const std::vector<FoundPipeline> found = FindStages(
      ways,
      {.num_devices = 2, .devices_per_host = 2, .num_micro_batches = 4, .stage_begins = {0, 2}});
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].stages[1].begin_layer, 2);
}

// Two micro-batches are between the first stage and the end of the pipeline.
TEST(FindStages, WhatIsSentTakesTime) {
  const std::vector<StageWay> ways = {Evenly({1, 1, 1, 1}, 2)};
  StageSearchInput input{
      .num_devices = 4, .devices_per_host = 2, .num_micro_batches = 64, .in_flight = {0, 1, 2}};
  input.send_us = [](const StageBorder& border) {
    EXPECT_EQ(border.num_devices_before + border.num_devices_behind, 4);
    return border.crosses_hosts ? 1.0 : 0.25;
  };
  const FoundPipeline apart = FindStages(ways, input).front();
  EXPECT_DOUBLE_EQ(apart.step_time_us, 3 + 63 * 3 / 2.0);
  input.devices_per_host = 4;
  const FoundPipeline together = FindStages(ways, input).front();
  EXPECT_DOUBLE_EQ(together.step_time_us, 2.25 + 63 * 2.25 / 2);
  EXPECT_EQ(together.stages[0].end_layer, 2);
}

TEST(FindStages, WhatWasPlannedStandsInsteadOfEstimates) {
  std::vector<StageWay> ways = {Evenly({2, 2, 2}, 1), Evenly({2, 2, 2}, 1)};
  for (LayerCost& layer : ways[1].kept) layer.micro_batch_us *= 1.01;
  StageSearchInput input{.num_devices = 2, .devices_per_host = 2, .num_micro_batches = 8};
  EXPECT_EQ(FindStages(ways, input).front().stages[0].way, 0);
  // Of one layer and of two, wherever they stand.
  input.corrections.times[{.way = 0, .layers = {0}}] = {.micro_batch_us = 3};
  input.corrections.times[{.way = 0, .layers = {0, 0}}] = {.micro_batch_us = 6};
  const FoundPipeline found = FindStages(ways, input).front();
  for (const FoundStage& stage : found.stages) EXPECT_EQ(stage.way, 1);
  input.limit_bytes = 50;
  input.corrections.more_bytes = {0, 51};
  const FoundPipeline smaller = FindStages(ways, input).front();
  for (const FoundStage& stage : smaller.stages) EXPECT_EQ(stage.way, 0);
}

// The last stage is updated while gradients go back to the first one.
TEST(FindStages, UpdatesAtTheEndCostNothing) {
  StageWay way = Evenly({3, 3, 3}, 1);
  for (LayerCost& layer : way.kept) layer.forward_us = 1;
  way.kept[2].step_us = 4;
  StageSearchInput input{.num_devices = 3, .devices_per_host = 3, .num_micro_batches = 8};
  EXPECT_DOUBLE_EQ(FindStages({way}, input).front().step_time_us, 7 * 3 + 9);
  way.kept[1].step_us = 4;
  EXPECT_DOUBLE_EQ(FindStages({way}, input).front().step_time_us, 7 * 3 + 9 + 4 - 2);
  input.splits_backward = true;
  EXPECT_DOUBLE_EQ(FindStages({way}, input).front().step_time_us, 7 * 3 + 3 + 2 + 4);
}

TEST(FindStages, AThirdOfTheOthersIsWaitedFor) {
  const std::vector<StageWay> ways = {Evenly({3, 3, 3}, 1)};
  EXPECT_DOUBLE_EQ(FindStages(ways, {.num_devices = 3,
                                     .devices_per_host = 3,
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
      FindStages({way}, {.num_devices = 2, .devices_per_host = 2, .limit_bytes = 99}).empty());
}

// All pipelines there are, stage by stage from the last one.
double LeastByEnumeration(const std::vector<StageWay>& ways, const StageSearchInput& options) {
  double least = std::numeric_limits<double>::infinity();
  const std::function<void(int, int, int, double, double)> extend =
      [&](int end, int device, int from_end, double sum, double most) {
        if (end == 0 && device == 0 && from_end > 2) least = std::min(least, sum + most);
        for (size_t way = 0; way < ways.size(); ++way) {
          const int size = ways[way].num_devices;
          if (size > device) continue;
          for (int begin = 0; begin < end; ++begin) {
            for (int recomputed = 0; recomputed <= end - begin; ++recomputed) {
              LayerCost stage;
              for (int i = begin; i < end; ++i) {
                const LayerCost& layer =
                    i < begin + recomputed ? ways[way].recomputed[i] : ways[way].kept[i];
                stage.micro_batch_us += layer.micro_batch_us;
                stage.static_bytes += layer.static_bytes;
                stage.saved_bytes += layer.saved_bytes;
                stage.transient_bytes = std::max(stage.transient_bytes, layer.transient_bytes);
              }
              const int64_t bytes = stage.static_bytes +
                                    options.in_flight[from_end] * stage.saved_bytes +
                                    stage.transient_bytes;
              if (bytes > *options.limit_bytes) continue;
              extend(begin, device - size, from_end + 1, sum + stage.micro_batch_us,
                     std::max(most, (options.num_micro_batches - 1) * stage.micro_batch_us));
            }
          }
        }
      };
  extend(static_cast<int>(ways[0].kept.size()), options.num_devices, 1, 0, 0);
  return least;
}

TEST(FindStages, IsWithinAStepOfAllThereIs) {
  std::mt19937 random(1);
  const auto draw = [&](int least, int most) {
    return std::uniform_int_distribution<int>(least, most)(random);
  };
  int num_found = 0;
  for (int round = 0; round < 200; ++round) {
    const int num_layers = draw(2, 5);
    std::vector<StageWay> ways;
    for (const int size : {1, 1, 2, 4}) {
      StageWay way{.num_devices = size};
      for (int layer = 0; layer < num_layers; ++layer) {
        const LayerCost kept = {.micro_batch_us = static_cast<double>(draw(10, 60)) / size,
                                .static_bytes = draw(0, 40) / size,
                                .saved_bytes = draw(10, 30) / size,
                                .transient_bytes = draw(0, 20)};
        way.kept.push_back(kept);
        LayerCost recomputed = kept;
        recomputed.micro_batch_us *= 1.3;
        recomputed.saved_bytes /= 4;
        way.recomputed.push_back(recomputed);
      }
      ways.push_back(std::move(way));
    }
    const StageSearchInput options = {.num_devices = 4,
                                      .devices_per_host = 4,
                                      .num_micro_batches = draw(1, 16),
                                      .limit_bytes = draw(60, 200),
                                      .in_flight = {0, 1, 2, 3, 4}};
    const double least = LeastByEnumeration(ways, options);
    const std::vector<FoundPipeline> found = FindStages(ways, options);
    EXPECT_EQ(found.empty(), least == std::numeric_limits<double>::infinity());
    if (found.empty()) continue;
    ++num_found;
    EXPECT_GE(found[0].step_time_us, least * (1 - 1e-9));
    EXPECT_LE(found[0].step_time_us, least * 1.01);
  }
  EXPECT_GT(num_found, 100);
}

}  // namespace
}  // namespace minka
