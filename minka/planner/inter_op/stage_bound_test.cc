#include "minka/planner/inter_op/stage_bound.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace minka {
namespace {

constexpr double kNothing = std::numeric_limits<double>::infinity();

StageWay Evenly(const std::vector<double>& times, int num_devices, int num_micro_batches) {
  StageWay way{.num_devices = num_devices, .mesh = num_devices};
  for (const double time : times) {
    const double us = time / num_devices;
    way.kept.push_back(
        {.forward_us = us / 4, .micro_batch_us = us, .least_us = num_micro_batches * us});
  }
  return way;
}

// The second stage begins when a micro-batch has come through the first one.
TEST(LeastStepUs, CountsTheBusiestStageAndItsWay) {
  const StageSearchInput input = {.hosts = {{.num_devices = 2, .devices_per_host = 2}},
                                  .num_micro_batches = 8};
  EXPECT_DOUBLE_EQ(*LeastStepUs({Evenly({4, 4}, 1, 8)}, input), 1 + 8 * 4);
  EXPECT_DOUBLE_EQ(*LeastStepUs({Evenly({4, 3}, 1, 8)}, input), 8 * 4);
  // On one and three devices the first layers take 4 and the last 12 / 3.
  const std::vector<StageWay> ways = {Evenly({4, 12}, 1, 8), Evenly({4, 12}, 3, 8)};
  EXPECT_DOUBLE_EQ(*LeastStepUs(ways, {.hosts = {{.num_devices = 4}}, .num_micro_batches = 8}),
                   1 + 8 * 4);
}

TEST(LeastStepUs, TakesOneStageWhereOneIsAskedFor) {
  const StageSearchInput input = {
      .hosts = {{.num_devices = 2}}, .num_micro_batches = 8, .num_stages = 1};
  EXPECT_DOUBLE_EQ(*LeastStepUs({Evenly({4, 4}, 1, 8), Evenly({4, 4}, 2, 8)}, input), 8 * 4);
}

// Of 256 devices blocks of four: 2 devices are no mesh of a stage.
TEST(LeastStepUs, KnowsWhichMeshesAreTried) {
  const StageSearchInput input = {.hosts = {{.num_devices = 256}}, .num_micro_batches = 8};
  EXPECT_EQ(LeastStepUs({Evenly({4, 4}, 2, 8)}, input), std::nullopt);
  EXPECT_DOUBLE_EQ(*LeastStepUs({Evenly({4, 4}, 2, 8), Evenly({4, 4}, 128, 8)}, input),
                   8 * 4 / 128.0);
}

TEST(LeastStepUs, BeginsStagesWhereTheyMay) {
  const std::vector<StageWay> ways = {Evenly({4, 4, 4, 4}, 2, 8)};
  EXPECT_DOUBLE_EQ(
      *LeastStepUs(ways,
                   {.hosts = {{.num_devices = 4}}, .num_micro_batches = 8, .stage_begins = {0, 1}}),
      8 * 6);
}

// Recomputed layers may be faster than what memory costs those that are kept.
TEST(LeastStepUs, TakesLayersKeptOrRecomputed) {
  std::vector<StageWay> ways = {Evenly({4, 4}, 1, 8)};
  ways[0].charged = {.us_per_byte = 1, .in_flight = 1};
  ways[0].recomputed = ways[0].kept;
  for (LayerCost& layer : ways[0].kept) layer.least_us += 40;
  for (LayerCost& layer : ways[0].recomputed) layer.least_us += 8;
  const StageSearchInput input = {
      .hosts = {{.num_devices = 2, .limit_bytes = 4}}, .num_micro_batches = 8, .held = {{0}, {1}}};
  EXPECT_DOUBLE_EQ(*LeastStepUs(ways, input), 1 + 8 * 4 + 8 - 4);
  // At a price at which recomputed layers have no plan, nothing is known of them.
  ways.push_back(ways[0]);
  ways[1].recomputed.clear();
  EXPECT_DOUBLE_EQ(*LeastStepUs(ways, input), 1 + 8 * 4 + 8 - 4);
  // Layers that keep their dots are a choice, too.
  ways[0].dots_kept = ways[0].recomputed;
  for (LayerCost& layer : ways[0].dots_kept) layer.least_us -= 3;
  EXPECT_DOUBLE_EQ(*LeastStepUs(ways, input), 1 + 8 * 4 + 5 - 4);
  ways[1] = ways[0];
  ways[1].dots_kept.clear();
  EXPECT_DOUBLE_EQ(*LeastStepUs(ways, input), 1 + 8 * 4 + 5 - 4);
}

TEST(LeastStepUs, AddsUpWhatSharesCores) {
  const StageSearchInput input = {.hosts = {{.num_devices = 2, .devices_per_host = 2}},
                                  .num_micro_batches = 8,
                                  .meshes_share_cores = true};
  EXPECT_DOUBLE_EQ(*LeastStepUs({Evenly({4, 3}, 1, 8)}, input), 8 * (4 + 3));
}

TEST(LeastStepUs, KnowsNothingWhereNoLayerDoes) {
  std::vector<StageWay> ways = {Evenly({4, 4}, 1, 8)};
  for (LayerCost& layer : ways[0].kept) layer.least_us = 0;
  EXPECT_EQ(LeastStepUs(ways, {.hosts = {{.num_devices = 2}}, .num_micro_batches = 8}),
            std::nullopt);
}

// Layers of which each has several plans on each mesh, some faster, some smaller.
struct LayerPlan {
  double forward_us = 0, step_us = 0;  // the latter of all micro-batches
  int64_t static_bytes = 0, saved_bytes = 0;
};

class RandomLayers {
 public:
  RandomLayers(uint64_t seed, int num_kinds) : random_(seed) {
    if (num_kinds == 2) {
      meshes_ = {{0, 1}, {0, 2}, {0, 3}, {1, 1}};
      devices_ = {3, 1};
      limits_ = {60, 45};
    }
    for (size_t mesh = 0; mesh < meshes_.size(); ++mesh) {
      std::vector<std::vector<LayerPlan>>& layers = plans_.emplace_back();
      for (int layer = 0; layer < kLayers; ++layer) layers.push_back(PlansOn(mesh, layer));
    }
  }

  static constexpr int kLayers = 4, kMicroBatches = 8;
  StageSearchInput input() const {
    StageSearchInput input = {
        .hosts = {}, .num_micro_batches = kMicroBatches, .held = {{0}, {1}, {2}, {3}, {4}}};
    for (size_t kind = 0; kind < devices_.size(); ++kind) {
      input.hosts.push_back({.num_devices = devices_[kind],
                             .devices_per_host = devices_[kind],
                             .limit_bytes = limits_[kind]});
    }
    return input;
  }

  // As searches find them that end at the best plan, at each of the prices.
  std::vector<StageWay> Ways(const std::vector<double>& prices) const {
    std::vector<StageWay> ways;
    for (size_t mesh = 0; mesh < meshes_.size(); ++mesh) {
      for (const double price : prices) {
        StageWay way{.kind = meshes_[mesh].kind,
                     .num_devices = meshes_[mesh].num_devices,
                     .mesh = static_cast<int>(mesh),
                     .charged = {.us_per_byte = price, .in_flight = kCounted}};
        for (const std::vector<LayerPlan>& plans : plans_[mesh])
          way.kept.push_back(Cheapest(plans, price));
        ways.push_back(std::move(way));
      }
    }
    return ways;
  }

  // By trying everything: partings, meshes and plans of layers.
  double LeastOfAll() const { return LeastFrom(0, devices_); }

 private:
  struct MeshOfHosts {
    int kind = 0, num_devices = 1;
  };

  static constexpr double kCounted = 3;  // micro-batches by the price of memory

  // The first plan of one device is the only one.
  std::vector<LayerPlan> PlansOn(size_t mesh, int layer) {
    const auto& [kind, size] = meshes_[mesh];
    std::vector<LayerPlan>& one_device = one_device_[kind];
    if (size == 1) one_device.push_back({Below(20) + 1.0, Below(400) + 80.0, 12, 4 + Below(20)});
    const LayerPlan& one = one_device[layer];
    std::vector<LayerPlan> plans;
    for (int i = 0; i < (size == 1 ? 1 : 3); ++i) {
      plans.push_back({.forward_us = one.forward_us / size,
                       .step_us = one.step_us / size * (1 + 0.01 * Below(80)),
                       .static_bytes = 12 / size + (size == 1 ? 0 : Below(8)),
                       .saved_bytes = 1 + Below(20)});
    }
    return plans;
  }

  static LayerCost Cheapest(const std::vector<LayerPlan>& plans, double price) {
    LayerCost best{.least_us = kNothing};
    for (const LayerPlan& plan : plans) {
      const double held =
          static_cast<double>(plan.static_bytes) + kCounted * static_cast<double>(plan.saved_bytes);
      const double charged = plan.step_us + price * held;
      if (charged >= best.least_us) continue;
      best = {.forward_us = plan.forward_us,
              .micro_batch_us = plan.step_us / kMicroBatches,
              .static_bytes = plan.static_bytes,
              .owned_bytes = plan.static_bytes,
              .saved_bytes = plan.saved_bytes,
              .least_us = charged};
    }
    return best;
  }

  // Of the layers from begin on, on so many devices, from when their first micro-batch is there;
  // with `behind` the number of stages that come behind the next one.
  double LeastFrom(int begin, const std::vector<int>& devices, int behind = -1) const {
    double least = kNothing;
    const int num_devices = std::accumulate(devices.begin(), devices.end(), 0);
    if (behind < 0) {
      for (int stages = 2; stages <= std::min(kLayers, num_devices); ++stages)
        least = std::min(least, LeastFrom(begin, devices, stages - 1));
      return least;
    }
    for (size_t mesh = 0; mesh < meshes_.size(); ++mesh) {
      const auto& [kind, size] = meshes_[mesh];
      if (size > devices[kind] || size > num_devices - behind) continue;
      std::vector<int> left = devices;
      left[kind] -= size;
      for (int end = begin + 1; end <= kLayers - behind; ++end) {
        if (behind == 0 && end < kLayers) continue;
        for (const auto& [forward_us, step_us] : StagesOf(mesh, begin, end, behind + 1)) {
          const double rest = behind == 0 ? 0 : forward_us + LeastFrom(end, left, behind - 1);
          least = std::min(least, std::max(step_us, rest));
        }
      }
    }
    return least;
  }

  struct Times {
    double forward_us = 0, step_us = 0;
  };
  // Of every choice of plans that fits.
  std::vector<Times> StagesOf(size_t mesh, int begin, int end, int in_flight) const {
    std::vector<LayerPlan> sums = {{}};
    for (int layer = begin; layer < end; ++layer) {
      std::vector<LayerPlan> longer;
      for (const LayerPlan& sum : sums) {
        for (const LayerPlan& plan : plans_[mesh][layer]) {
          longer.push_back({sum.forward_us + plan.forward_us, sum.step_us + plan.step_us,
                            sum.static_bytes + plan.static_bytes,
                            sum.saved_bytes + plan.saved_bytes});
        }
      }
      sums = std::move(longer);
    }
    std::vector<Times> times;
    for (const LayerPlan& sum : sums) {
      if (sum.static_bytes + in_flight * sum.saved_bytes > limits_[meshes_[mesh].kind]) continue;
      times.push_back({sum.forward_us, sum.step_us});
    }
    return times;
  }

  int Below(int n) { return static_cast<int>(random_() % n); }

  std::mt19937_64 random_;
  std::vector<MeshOfHosts> meshes_ = {{0, 1}, {0, 2}, {0, 2}, {0, 3}};
  std::vector<int> devices_ = {4};                          // by kind of hosts
  std::vector<int64_t> limits_ = {60};                      // in bytes, by kind
  std::map<int, std::vector<LayerPlan>> one_device_;        // by kind, then layer
  std::vector<std::vector<std::vector<LayerPlan>>> plans_;  // by mesh and layer
};

void ExpectNotAboveTheBestOfAll(int num_kinds) {
  int num_fitting = 0, num_near = 0, num_bound = 0;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    const RandomLayers layers(seed, num_kinds);
    const double best = layers.LeastOfAll();
    if (best == kNothing) continue;
    ++num_fitting;
    const StageSearchInput input = layers.input();
    const double free = *LeastStepUs(layers.Ways({0}), input);
    const double least = *LeastStepUs(layers.Ways({0, 0.3, 1, 3}), input);
    EXPECT_LE(least, best * (1 + 1e-9)) << "seed " << seed;
    EXPECT_GE(least, free);
    if (least >= 0.8 * best) ++num_near;
    if (least > free) ++num_bound;
  }
  EXPECT_GT(num_fitting, 150);
  EXPECT_GT(num_near, num_fitting / 2);
  EXPECT_GT(num_bound, num_fitting / 10);
}

// Of four kinds of many devices there would be millions of numbers of each.
TEST(LeastStepUs, CountsManyKindsTogether) {
  std::vector<StageWay> ways;
  for (int kind = 0; kind < 4; ++kind) {
    ways.push_back(Evenly(std::vector<double>(8, 4 + kind), 8, 8));
    ways.back().kind = kind;
  }
  StageSearchInput input = {.hosts = {}, .num_micro_batches = 8};
  for (int kind = 0; kind < 4; ++kind)
    input.hosts.push_back({.num_devices = 16, .devices_per_host = 8});
  const std::optional<double> least = LeastStepUs(ways, input);
  ASSERT_TRUE(least);
  // The dearest stage has one layer at least, of the fastest kind.
  EXPECT_GE(*least, 8 * 4 / 8.0);
  const std::vector<FoundPipeline> found = FindStages(ways, input);
  ASSERT_FALSE(found.empty());
  EXPECT_LE(*least, found.front().step_time_us);
}

TEST(LeastStepUs, IsNotAboveTheBestOfAll) { ExpectNotAboveTheBestOfAll(/*num_kinds=*/1); }
TEST(LeastStepUs, IsNotAboveTheBestOnHostsOfTwoKinds) {
  ExpectNotAboveTheBestOfAll(/*num_kinds=*/2);
}

}  // namespace
}  // namespace minka
