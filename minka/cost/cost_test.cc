#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/base/status.h"
#include "minka/cost/calibration.h"
#include "minka/cost/cost_model.h"
#include "minka/cost/host_links.h"

namespace minka {
namespace {

using ::testing::HasSubstr;

Mesh MeshOf(std::string_view text) { return *Mesh::Parse(text); }

TEST(Alpa, CostsAreThoseOfItsTests) {
  const auto model = *MakeAlpaCostModel(MeshOf("4x1"), {1, 1}, {1, 1}, false);
  const auto all_reduce = [&](int64_t bytes) {
    return model->Collective({ReshardKind::kAllReduce, bytes, AxisSet::Of(0)}, ElementType::kF32);
  };
  // The MLP under data parallelism: six kernels of 4096 and six biases of 128 bytes.
  EXPECT_NEAR(6 * (all_reduce(4096) + all_reduce(128)), 38028.0012, 1e-6);
  EXPECT_EQ(model->Collective({ReshardKind::kAllReduce, 4096, AxisSet::Of(1)}, ElementType::kF32),
            0);
}

TEST(Alpa, WantsOneFigurePerAxis) {
  EXPECT_EQ(Message(MakeAlpaCostModel(MeshOf("data=2,model=4"), {1}, {1, 1}, false).status()),
            "cost model alpa needs one alpha and one beta per mesh axis: the mesh data=2,model=4 "
            "has 2, got 1 and 2");
}

TEST(Roofline, DevicesThatShareCoresSlowEachOther) {
  const LocalWork work{.opcode = Opcode::kDot, .flops = 1e9};
  const double one = MakeRooflineCostModel(Cluster::Local(8), MeshOf("1"))->Operation(work);
  const double eight = MakeRooflineCostModel(Cluster::Local(8), MeshOf("8"))->Operation(work);
  EXPECT_NEAR(eight / one, 8, 1e-6);
}

TEST(Roofline, AllReduceCostsAsMuchAsItsTwoHalves) {
  const auto model = MakeRooflineCostModel(*Cluster::Preset("p3.16xlarge"), MeshOf("8"));
  const auto price = [&](ReshardKind kind) {
    return model->Collective({kind, 1 << 26, AxisSet::Of(0)}, ElementType::kF32);
  };
  EXPECT_NEAR(price(ReshardKind::kAllReduce) /
                  (price(ReshardKind::kReduceScatter) + price(ReshardKind::kAllGather)),
              1, 0.01);
  EXPECT_LT(price(ReshardKind::kAllReduce),
            price(ReshardKind::kReduceScatter) + price(ReshardKind::kAllGather));
}

TEST(Roofline, GroupsAcrossHostsPayTheSlowLink) {
  const auto model =
      MakeRooflineCostModel(*Cluster::Preset("p3.16xlarge:2"), MeshOf("data=2,model=8"));
  const auto price = [&](int axis) {
    return model->Collective({ReshardKind::kAllReduce, 1 << 26, AxisSet::Of(axis)},
                             ElementType::kF32);
  };
  EXPECT_GT(price(0), 2 * price(1));
}

Calibration SomeCalibration() {
  return {.processor = "p",
          .cores = 2,
          .plugin = "cpu",
          .num_devices = 8,
          .launch_us = 3,
          .step_us = 100,
          .arithmetic_per_us = 40,
          .half_arithmetic_per_us = 8,
          .elementwise_per_us = 10,
          .half_elementwise_per_us = 5,
          .bytes_per_us = 20,
          .copied_bytes_per_us = 18,
          .cached_bytes_per_us = 80,
          .transposed_bytes_per_us = 16,
          .swapped_bytes_per_us = 10,
          .cache_bytes = 1000,
          .core_round_trip_ns = 84,
          .moved_share = 0.02,
          .dots = {{DotForm::kNN, 1, 64, 64, 64, 10}, {DotForm::kNN, 1, 256, 256, 256, 300}},
          .cached_dots = {{DotForm::kNN, 1, 64, 64, 64, 5}, {DotForm::kNN, 1, 256, 256, 256, 150}},
          // 0.001 and 0.002 per element more; the caches hold the first.
          .half_dots = {{DotForm::kNN, 1, 64, 64, 64, 22.288},
                        {DotForm::kNN, 1, 256, 256, 256, 693.216}},
          .convolutions = {{DotForm::kNN, 1, 64, 64, 64, 20},
                           {DotForm::kNN, 1, 256, 256, 256, 900},
                           {DotForm::kNN, 16, 64, 1, 9, 700}},
          .reductions = {{ReductionKernel::kMaximumOfRows, false, 2},
                         {ReductionKernel::kMaximumOfRows, true, 1}},
          .collectives = {{ReshardKind::kAllReduce, 2, 1000, 10},
                          {ReshardKind::kAllReduce, 2, 3000, 30},
                          {ReshardKind::kAllReduce, 8, 1000, 40},
                          {ReshardKind::kAllReduce, 8, 3000, 120},
                          {ReshardKind::kAllReduce, 2, 1000, 15, {.is_strided = true}},
                          {ReshardKind::kAllReduce, 2, 3000, 45, {.is_strided = true}},
                          {ReshardKind::kAllGather, 2, 1000, 12},
                          {ReshardKind::kAllGather, 2, 1000, 36, {.is_inner = true}}}};
}

TEST(Calibration, InterpolatesBetweenWhatWasMeasured) {
  const Calibration calibration = SomeCalibration();
  EXPECT_NEAR(CalibratedCollectiveUs(calibration, ReshardKind::kAllReduce, 2, 2000), 20, 1e-9);
  EXPECT_NEAR(CalibratedCollectiveUs(calibration, ReshardKind::kAllReduce, 5, 1000), 25, 1e-9);
  EXPECT_EQ(CalibratedCollectiveUs(calibration, ReshardKind::kAllToAll, 2, 2000), 0);
  const CollectiveLayout strided = {.is_strided = true};
  EXPECT_NEAR(CalibratedCollectiveUs(calibration, ReshardKind::kAllReduce, 2, 2000, strided), 30,
              1e-9);
  // Groups of eight are the whole mesh: none was measured strided.
  EXPECT_NEAR(CalibratedCollectiveUs(calibration, ReshardKind::kAllReduce, 8, 1000, strided), 40,
              1e-9);
}

TEST(Measured, DotsInHalvesTakeWhatWideningTakesBeside) {
  Calibration calibration = SomeCalibration();
  calibration.cache_bytes = calibration.cores * 100'000;
  EXPECT_NEAR(HalfDotCostsOf(calibration).cached_us, 0.001, 1e-9);
  EXPECT_NEAR(HalfDotCostsOf(calibration).uncached_us, 0.002, 1e-9);
  const auto price = [&](ElementType type) {
    return MakeRooflineCostModel(Cluster::Local(8), MeshOf("8"), &calibration)
        ->Operation({.opcode = Opcode::kDot, .type = type, .dot_sizes = {1, 256, 256, 256}});
  };
  EXPECT_NEAR(price(ElementType::kBF16) - price(ElementType::kF32), 393.216, 1e-6);
  calibration.half_dots.clear();
  EXPECT_EQ(price(ElementType::kBF16), price(ElementType::kF32));
}

TEST(Measured, DotsInHalvesTakeTheirOwnTimesWhereTheyHaveUnits) {
  Calibration calibration = SomeCalibration();
  calibration.has_half_units = true;
  calibration.half_dots = {{DotForm::kNN, 1, 256, 256, 256, 70}};
  const auto price = [&](ElementType type) {
    return MakeRooflineCostModel(Cluster::LocalCuda(1), MeshOf("1"), &calibration)
        ->Operation({.opcode = Opcode::kDot, .type = type, .dot_sizes = {1, 256, 256, 256}});
  };
  EXPECT_NEAR(price(ElementType::kBF16), 70, 1);
  EXPECT_NEAR(price(ElementType::kF16), 70, 1);
  EXPECT_GT(price(ElementType::kF32), 200);
  EXPECT_TRUE(Calibration::FromJson(calibration.ToJson())->has_half_units);
}

TEST(Measured, WhatIsInTheCachesAndDepthwiseConvolutionsHaveTheirOwnRates) {
  const Calibration calibration = SomeCalibration();
  const auto model = MakeRooflineCostModel(Cluster::Local(8), MeshOf("8"), &calibration);
  EXPECT_EQ(model->cache_bytes(), 500);  // of one of two cores
  EXPECT_EQ(MakeRooflineCostModel(Cluster::Local(8), MeshOf("8"))->cache_bytes(), 0);
  const auto bytes = [&](double cached_part) {
    return model->Operation({.opcode = Opcode::kAdd, .bytes = 800, .cached_part = cached_part});
  };
  EXPECT_DOUBLE_EQ(bytes(0), 40);
  EXPECT_DOUBLE_EQ(bytes(0.5), 25);
  EXPECT_DOUBLE_EQ(bytes(1), 10);
  const LocalWork dot = {.opcode = Opcode::kDot, .cached_part = 1, .dot_sizes = {1, 256, 256, 256}};
  EXPECT_NEAR(model->Operation(dot), 150, 1);
  const auto convolution = [&](std::vector<int64_t> sizes, bool is_depthwise) {
    return model->Operation({.opcode = Opcode::kConvolution,
                             .dot_sizes = std::move(sizes),
                             .is_depthwise = is_depthwise});
  };
  EXPECT_NEAR(convolution({16, 64, 1, 9}, true), 700, 1);
  EXPECT_LT(convolution({16, 64, 1, 9}, false), 100);
  EXPECT_NEAR(convolution({1, 64, 64, 64}, false), 20, 1);
}

TEST(Measured, WhatIsWrittenElsewhereThanItIsReadTakesLonger) {
  const Calibration calibration = SomeCalibration();
  const auto price = [&](int64_t fresh_bytes, double cached_part = 0) {
    return MakeRooflineCostModel(Cluster::Local(8), MeshOf("x=8"), &calibration)
        ->Operation({.bytes = 800, .fresh_bytes = fresh_bytes, .cached_part = cached_part});
  };
  EXPECT_DOUBLE_EQ(price(0), 800 / 20.0);
  EXPECT_DOUBLE_EQ(price(400), 800 / 18.0);
  EXPECT_DOUBLE_EQ(price(400, 1), 800 / 80.0) << "lines that are there need not be read";
}

TEST(Measured, TranspositionsTakeLongerThanStreams) {
  Calibration calibration = SomeCalibration();
  const auto transpose = [&](bool puts_other_dim_last) {
    return MakeRooflineCostModel(Cluster::Local(8), MeshOf("x=8"), &calibration)
        ->Operation({.opcode = Opcode::kTranspose,
                     .bytes = 800,
                     .fresh_bytes = 400,
                     .transposed_bytes = 400,
                     .puts_other_dim_last = puts_other_dim_last});
  };
  EXPECT_DOUBLE_EQ(transpose(false), 800 / 16.0);
  EXPECT_DOUBLE_EQ(transpose(true), 800 / 10.0);
  calibration.transposed_bytes_per_us = 0;  // not measured
  EXPECT_DOUBLE_EQ(transpose(false), 800 / 18.0);
}

TEST(Measured, GathersOfRowsAreCheaperThanThoseOfColumns) {
  const Calibration calibration = SomeCalibration();
  const Mesh mesh = MeshOf("x=4,y=2");
  const auto model = MakeRooflineCostModel(Cluster::Local(8), mesh, &calibration);
  const auto gather = [&](int axis, int dim) {
    const Shape shape = {ElementType::kF32, {25, 10}};
    const Sharding before = Sharding::Replicated(2);  // only its bytes would count
    ReshardStep step = {
        .kind = ReshardKind::kAllGather, .dim = dim, .result = Sharding::Replicated(2)};
    step.axes.PushMinor(axis);
    return model->Collective(WorkOfStep(shape, before, step, mesh), ElementType::kF32);
  };
  EXPECT_DOUBLE_EQ(gather(/*axis=*/1, /*dim=*/0), 12);
  EXPECT_DOUBLE_EQ(gather(/*axis=*/1, /*dim=*/1), 36);
}

TEST(HostLinks, SumsOverHostsAreMadeWithinEachFirst) {
  Cluster cluster = *Cluster::Preset("p4de.24xlarge:4");
  cluster.host_network_bytes_per_us = 100e3;  // InfiniBand, a card for each device
  const double bytes = 2e9;
  const auto bus_bandwidth = [&](const char* mesh_text, AxisSet axes) {
    const Mesh mesh = MeshOf(mesh_text);
    const auto n = static_cast<double>(mesh.size(axes));
    return 2 * (n - 1) / n * bytes /
           HostLinks(cluster, mesh).CollectiveUs(ReshardKind::kAllReduce, bytes, axes);
  };
  // Measured by Alpa: 90.6 and 97.6 GB/s on 4 and 2 hosts of 8, 12.5 between two devices.
  EXPECT_NEAR(bus_bandwidth("32", AxisSet::Of(0)) / 90.6e3, 1, 0.1);
  EXPECT_NEAR(bus_bandwidth("16", AxisSet::Of(0)) / 97.6e3, 1, 0.2);
  EXPECT_NEAR(bus_bandwidth("x=2,y=8", AxisSet::Of(0)) / 12.5e3, 1, 0.05);
  // Joined axes are the same group.
  EXPECT_EQ(bus_bandwidth("x=4,y=8", AxisSet::Of(0).Union(AxisSet::Of(1))),
            bus_bandwidth("32", AxisSet::Of(0)));
}

TEST(HostLinks, DevicesThatLeaveAHostShareItsNetwork) {
  const Cluster cluster = *Cluster::Preset("p3.16xlarge:2");
  const auto between_hosts = [&](const char* mesh) {
    return HostLinks(cluster, MeshOf(mesh))
        .CollectiveUs(ReshardKind::kAllGather, 1e9, AxisSet::Of(0));
  };
  EXPECT_NEAR(between_hosts("x=2,y=8") / (0.5e9 / 3125 * 8), 1, 0.01);
}

// Eight devices use all six links of each, a quad four, and of pairs the slowest has one.
TEST(HostLinks, GroupsGoAsFastAsTheLinksBetweenThem) {
  const auto rate = [](const char* cluster, const char* mesh_text, int axis) {
    const Mesh mesh = MeshOf(mesh_text);
    const HostLinks links(*Cluster::Preset(cluster), mesh);
    const auto n = static_cast<double>(mesh.size(axis));
    const double us = links.CollectiveUs(ReshardKind::kAllGather, 1e9, AxisSet::Of(axis)) -
                      links.CollectiveUs(ReshardKind::kAllGather, 0, AxisSet::Of(axis));
    return (n - 1) / n * 1e9 / us;
  };
  const double link = 130e3 / 6;
  EXPECT_NEAR(rate("dgx-1v", "8", 0), 6 * link, 1);
  EXPECT_NEAR(rate("dgx-1v", "4", 0), 4 * link, 1);
  EXPECT_NEAR(rate("dgx-1v", "2", 0), link, 1);
  // Neighbours have a link or two, 4 apart one or two, every second one two to two others.
  EXPECT_NEAR(rate("dgx-1v", "x=2,y=4", 1), 4 * link, 1);
  EXPECT_NEAR(rate("dgx-1v", "x=2,y=4", 0), link, 1);
  EXPECT_NEAR(rate("dgx-1v", "x=4,y=2", 0), 2 * link, 1e4);
  EXPECT_NEAR(rate("p4d.24xlarge", "2", 0), 270e3, 1);
}

TEST(HostLinks, UnevenGroupsPayTheSlowLinkThroughout) {
  const Cluster cluster = *Cluster::Preset("p3.16xlarge:2");
  const Mesh mesh = MeshOf("12");
  const HostLinks links(cluster, mesh);
  EXPECT_GT(
      links.CollectiveUs(ReshardKind::kAllReduce, 1e9, AxisSet::Of(0)),
      HostLinks(cluster, MeshOf("16")).CollectiveUs(ReshardKind::kAllReduce, 1e9, AxisSet::Of(0)));
}

TEST(Roofline, TypesWithoutUnitsRunAtTheRateOfF32) {
  const auto us = [](const char* cluster, ElementType type) {
    return MakeRooflineCostModel(*Cluster::Preset(cluster), MeshOf("1"))
        ->Operation({.opcode = Opcode::kDot, .type = type, .flops = 1e12});
  };
  EXPECT_LT(us("p3.16xlarge", ElementType::kF16), us("p3.16xlarge", ElementType::kF32));
  EXPECT_EQ(us("p3.16xlarge", ElementType::kBF16), us("p3.16xlarge", ElementType::kF32));
  EXPECT_EQ(us("p4d.24xlarge", ElementType::kBF16), us("p4d.24xlarge", ElementType::kF16));
}

double DotUs(const Cluster& cluster, const std::vector<int64_t>& sizes,
             ElementType type = ElementType::kF16) {
  return MakeRooflineCostModel(cluster, MeshOf("1"))
      ->Operation({.opcode = Opcode::kDot,
                   .type = type,
                   .flops = 2.0 * static_cast<double>(sizes[0] * sizes[1] * sizes[2] * sizes[3]),
                   .dot_sizes = sizes});
}

TEST(Roofline, LargeProductsReachWhatWasMeasuredOfThePeak) {
  const Cluster v100 = *Cluster::Preset("p3.16xlarge:1x1");
  const double us = DotUs(v100, {1, 10240, 8192, 8192});  // 64 turns of 80 tiles
  EXPECT_NEAR(2.0 * 10240 * 8192 * 8192 / us, 83e6, 1e6);
  EXPECT_NEAR(2.0 * 10240 * 8192 * 8192 / DotUs(v100, {1, 10240, 8192, 8192}, ElementType::kF32),
              12e6, 0.2e6);
}

TEST(Roofline, ProductsTakeWholeTurnsOfAGpusMultiprocessors) {
  const Cluster v100 = *Cluster::Preset("p3.16xlarge:1x1");
  // 80 tiles of 128 x 128 are a turn, 81 two; sums of 256 are not worth parting.
  const double one = DotUs(v100, {80, 128, 128, 256});
  EXPECT_DOUBLE_EQ(DotUs(v100, {81, 128, 128, 256}), 2 * one);
  EXPECT_DOUBLE_EQ(DotUs(v100, {1, 128, 128, 256}), one);
  // Parts of long sums are tiles of their own.
  EXPECT_DOUBLE_EQ(DotUs(v100, {1, 1024, 1280, 2048}) * 1.5, DotUs(v100, {1, 1280, 1536, 2048}));
  EXPECT_DOUBLE_EQ(DotUs(v100, {40, 128, 128, 1024}), 2 * one);
  // Where a result is narrower, so are the tiles.
  EXPECT_DOUBLE_EQ(DotUs(v100, {80, 128, 64, 256}), one / 2);
  // Nothing is known of other devices' turns.
  Cluster other = v100;
  other.device.num_multiprocessors = 0;
  EXPECT_LT(DotUs(other, {1, 128, 128, 256}), one / 70);
  EXPECT_EQ(DotUs(v100, {1, 0, 128, 256}), 0);
}

TEST(Roofline, ElementsAreComputedAtTheRateOfTheirUnits) {
  const auto us = [](const Cluster& cluster) {
    return MakeRooflineCostModel(cluster, MeshOf("1"))
        ->Operation({.opcode = Opcode::kAdd, .elementwise = 1e9});
  };
  EXPECT_NEAR(us(*Cluster::Preset("p3.16xlarge")), 1e9 / 7.85e6, 1e-6);
  EXPECT_NEAR(us(*Cluster::Preset("p4d.24xlarge")), 1e9 / 9.75e6, 1e-6);
}

TEST(FitDots, FindsThePartsInSpiteOfDisturbedMeasurements) {
  const DotModel real = {.us = {2, 0, 1e-4, 1e-3, 3e-3, 1e-3}};
  const auto us = [](const DotModel& model, int64_t batch, int64_t m, int64_t n, int64_t k) {
    return model.Us(DotForm::kNN, batch, m, n, k);
  };
  std::vector<DotPoint> points;
  for (const int64_t m : {4, 32, 128, 512}) {
    for (const int64_t n : {32, 96, 320, 1008}) {
      for (const int64_t k : {32, 80, 320, 1024}) {
        points.push_back({.m = m, .n = n, .k = k, .us = us(real, 1, m, n, k)});
      }
    }
  }
  for (size_t i = 0; i < points.size(); i += 7) points[i].us *= 1.8;
  for (const bool has_caches : {false, true}) {
    const DotModel fitted = FitDots(points, has_caches);
    EXPECT_NEAR(us(fitted, 4, 64, 64, 64) / us(real, 4, 64, 64, 64), 1, 0.1);
    EXPECT_NEAR(us(fitted, 1, 256, 256, 1024) / us(real, 1, 256, 256, 1024), 1, 0.03);
    EXPECT_NEAR(us(fitted, 1, 8, 1024, 256) / us(real, 1, 8, 1024, 256), 1, 0.05);
    for (const double part : fitted.us) EXPECT_GE(part, 0);
  }
}

// As one thread of XLA multiplies: right operands with rows of 1,024 take twice as long, with rows
// of 512 half as long again, until their rows are packed once for many others.
TEST(FitDots, KnowsRowsThatSharePlacesInACache) {
  const auto real_us = [](int64_t m, int64_t n, int64_t k) {
    const double slow = n % 1024 == 0 ? 1 : n % 512 == 0 ? 0.5 : 0;
    return 5 + 25e-6 * static_cast<double>(n * k) *
                   static_cast<double>(m + slow * std::min<int64_t>(m, 400));
  };
  std::vector<DotPoint> points;
  for (const int64_t m : {16, 96, 320, 1280}) {
    for (const int64_t n : {96, 384, 512, 640, 1024, 1536}) {
      for (const int64_t k : {80, 256, 896})
        points.push_back({.m = m, .n = n, .k = k, .us = real_us(m, n, k)});
    }
  }
  const DotModel fitted = FitDots(points, /*has_caches=*/true);
  for (const int64_t m : {64, 256, 2048}) {
    for (const int64_t n : {768, 2048, 2560}) {
      EXPECT_NEAR(fitted.Us(DotForm::kNN, 1, m, n, 512) / real_us(m, n, 512), 1, 0.02)
          << m << " x " << n;
    }
  }
  // Of the gradient of weights the other operand's rows count, too, of that of activations those of
  // what is transposed.
  const auto us = [&](DotForm form, int64_t m, int64_t n, int64_t k) {
    return fitted.Us(form, 1, m, n, k);
  };
  EXPECT_GT(us(DotForm::kTN, 1024, 128, 96), 1.5 * us(DotForm::kNN, 1024, 128, 96));
  EXPECT_GT(us(DotForm::kNT, 128, 96, 1024), 1.5 * us(DotForm::kNN, 128, 96, 1024));
  const DotModel without = FitDots(points, /*has_caches=*/false);
  EXPECT_LT(without.Us(DotForm::kNN, 1, 256, 1024, 512), 0.9 * real_us(256, 1024, 512));
}

// As with registers of 16 numbers: 16 columns that are left take longer than 48 do.
TEST(FitDots, KnowsColumnsThatDoNotFillTheRegisters) {
  const auto real_us = [](int64_t m, int64_t n, int64_t k) {
    const int64_t rest = n % 48, columns = n - rest + (rest == 16 ? 66 : rest == 32 ? 52 : rest);
    return 5 + 25e-6 * static_cast<double>(m * columns * k);
  };
  std::vector<DotPoint> points;
  for (const int64_t m : {16, 96, 320}) {
    for (const int64_t n : {48, 64, 112, 192, 256, 672}) {
      for (const int64_t k : {80, 240, 896})
        points.push_back({.m = m, .n = n, .k = k, .us = real_us(m, n, k)});
    }
  }
  const DotModel fitted = FitDots(points, /*has_caches=*/true);
  for (const int64_t n : {96, 128, 160, 768}) {
    EXPECT_NEAR(fitted.Us(DotForm::kNN, 1, 128, n, 336) / real_us(128, n, 336), 1, 0.02) << n;
  }
  EXPECT_GT(fitted.Us(DotForm::kNN, 1, 128, 64, 336), fitted.Us(DotForm::kNN, 1, 128, 84, 336));
}

TEST(FitDots, FormsByThemselves) {
  std::vector<DotPoint> points;
  for (const int64_t size : {32, 64, 128}) {
    points.push_back({.form = DotForm::kNN, .m = size, .n = size, .k = size, .us = 10});
    points.push_back({.form = DotForm::kTN, .m = size, .n = size, .k = size, .us = 40});
  }
  const auto us = [&](DotForm form) {
    return FitDots(points, /*has_caches=*/true, form).Us(form, 1, 64, 64, 64);
  };
  EXPECT_NEAR(us(DotForm::kNN), 10, 1);
  EXPECT_NEAR(us(DotForm::kTN), 40, 4);
  EXPECT_NEAR(us(DotForm::kNT),
              FitDots(points, /*has_caches=*/true).Us(DotForm::kNT, 1, 64, 64, 64), 1e-9);
}

TEST(Wait, GrowsWithThePhaseAtCollectivesOfAllDevices) {
  Calibration calibration = SomeCalibration();
  calibration.waits = {{.phase_us = 500, .us = 50}, {.phase_us = 8000, .us = 450}};
  EXPECT_EQ(CalibratedWaitUs(calibration, 0), 50);
  EXPECT_NEAR(CalibratedWaitUs(calibration, 2000), 250, 1e-9);
  EXPECT_EQ(CalibratedWaitUs(calibration, 1e6), 450);
  const auto model = MakeRooflineCostModel(Cluster::Local(8), MeshOf("2x4"), &calibration);
  EXPECT_EQ(model->Wait(100), 0) << "as long as behind next to nothing";
  EXPECT_NEAR(model->Wait(2000), 200, 1e-9);
  const auto price = [&](const CostModel& cost, AxisSet axes) {
    return cost.Collective({ReshardKind::kAllReduce, 1000, axes}, ElementType::kF32);
  };
  const Calibration without = SomeCalibration();
  const auto other = MakeRooflineCostModel(Cluster::Local(8), MeshOf("2x4"), &without);
  EXPECT_EQ(other->Wait(2000), 0);
  const AxisSet some = AxisSet::Of(0), all = some.Union(AxisSet::Of(1));
  EXPECT_EQ(price(*model, some), price(*other, some)) << "others have the cores meanwhile";
  EXPECT_NEAR(price(*model, all), price(*other, all) + 50, 1e-9);
}

TEST(PriceInGroup, IsThatOfPackingWhereDevicesMeetForEveryOperand) {
  const auto sum_of = [](int64_t bytes) {
    return StepWork{ReshardKind::kAllReduce, bytes, AxisSet::Of(0)};
  };
  const auto local = MakeRooflineCostModel(Cluster::Local(8), MeshOf("8"));
  EXPECT_TRUE(SharesLatency(*local, sum_of(kMostPackedBytes)));
  EXPECT_FALSE(SharesLatency(*local, sum_of(kMostPackedBytes + 1)));
  const auto gpus = MakeRooflineCostModel(*Cluster::Preset("p3.16xlarge"), MeshOf("8"));
  EXPECT_TRUE(SharesLatency(*gpus, sum_of(int64_t{1} << 30)));
  const auto in_group = [&](const CostModel& cost) {
    return PriceInGroup(cost, sum_of(kMostPackedBytes), 8, ElementType::kF32) /
           (cost.Collective(sum_of(kMostPackedBytes), ElementType::kF32) -
            cost.Latency(ReshardKind::kAllReduce, AxisSet::Of(0)));
  };
  EXPECT_GT(in_group(*local), 1.01);
  EXPECT_NEAR(in_group(*gpus), 1, 1e-9);
}

TEST(PriceInGroup, IsNotNegativeWhereMeasuredTimesFallWithTheBytes) {
  Calibration calibration = SomeCalibration();
  calibration.collectives = {{ReshardKind::kReduceScatter, 2, 256, 28},
                             {ReshardKind::kReduceScatter, 2, 3072, 19},
                             {ReshardKind::kReduceScatter, 2, 49152, 22}};
  const auto model = MakeRooflineCostModel(Cluster::Local(8), MeshOf("2"), &calibration);
  const auto scatter_of = [](int64_t bytes) {
    return StepWork{ReshardKind::kReduceScatter, bytes, AxisSet::Of(0)};
  };
  for (const int64_t bytes : {4, 256, 3072, 49152, 1 << 20}) {
    const double price = PriceInGroup(*model, scatter_of(bytes), 2, ElementType::kF32);
    EXPECT_GE(price, 0) << bytes;
    // What is small costs no more than by itself, however dear packing is.
    const bool is_dearer = price > model->Collective(scatter_of(bytes), ElementType::kF32);
    EXPECT_EQ(is_dearer, bytes > kMostPackedBytes) << bytes;
  }
}

TEST(Calibration, RoundTripsAndRefusesNonsense) {
  const auto calibration = [] {
    Calibration some = SomeCalibration();
    some.waits = {{.phase_us = 500, .us = 50}, {.phase_us = 8000, .us = 450}};
    return some;
  };
  const Calibration read = *Calibration::FromJson(calibration().ToJson());
  EXPECT_EQ(read.ToJson(), calibration().ToJson());
  EXPECT_THAT(Message(Calibration::FromJson("{").status()), HasSubstr("calibration: not JSON: "));
  const auto refusal = [&](auto change) {
    Calibration broken = calibration();
    change(broken);
    return Message(Calibration::FromJson(broken.ToJson()).status());
  };
  EXPECT_EQ(refusal([](Calibration& c) { c.bytes_per_us = 0; }),
            "calibration: bytes_per_us is 0.0, not above 0");
  EXPECT_EQ(refusal([](Calibration& c) { c.launch_us = -5; }),
            "calibration: launch_us is -5.0, not 0 or more");
  EXPECT_EQ(refusal([](Calibration& c) { c.step_us = NAN; }),
            "calibration: step_us is null, not 0 or more");
  EXPECT_EQ(refusal([](Calibration& c) { c.num_devices = 0; }),
            "calibration: num_devices is 0, not a whole number from 1");
  EXPECT_EQ(refusal([](Calibration& c) { c.convolutions[1].us = 0; }),
            "calibration: convolutions[1].us is 0.0, not above 0");
  EXPECT_EQ(refusal([](Calibration& c) { c.collectives[2].group_size = 1; }),
            "calibration: collectives[2].group_size is 1, not a whole number from 2");
  EXPECT_EQ(refusal([](Calibration& c) { c.waits[0].us = -1; }),
            "calibration: waits[0].us is -1.0, not 0 or more");
  EXPECT_EQ(refusal([](Calibration& c) { c.waits[1].phase_us = 1; }),
            "calibration: waits[1] is not above the one before");
  EXPECT_EQ(refusal([](Calibration& c) { c.reductions[0].kernel = ReductionKernel::kNone; }),
            "calibration: unknown reduction \"none\"");
}

TEST(Calibration, SaysThatTheMachineWasDisturbed) {
  Calibration calibration = SomeCalibration();
  EXPECT_EQ(DisturbanceNote(calibration), "");
  calibration.drift = 1.6;
  EXPECT_THAT(DisturbanceNote(calibration), HasSubstr("1.60 times as long"));
  calibration.drift = 0.5;
  EXPECT_NE(DisturbanceNote(calibration), "");
  calibration.drift = 1;
  calibration.others_share = 0.41;
  EXPECT_THAT(DisturbanceNote(calibration), HasSubstr("took 41 % of the time"));
  calibration.others_share = 0;
  calibration.stolen_share = 0.23;
  EXPECT_THAT(DisturbanceNote(calibration), HasSubstr("gave 23 % of its cores' time to others"));
  calibration.stolen_share = 0;
  calibration.moved_share = 0.3;
  EXPECT_THAT(
      DisturbanceNote(calibration),
      HasSubstr("in 30 % of the profile the cores did not answer each other in about 84 ns"));
}

TEST(Calibration, AnotherVersionIsNoNonsense) {
  const absl::Status status = Calibration::FromJson(R"({"schema_version": 3})").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Message(status), "calibration: schema_version is 3, not 18; profile again");
}

TEST(Measured, ConvolutionsReductionsHalvesAndStridesHaveTheirOwnRates) {
  const Calibration calibration = SomeCalibration();
  const Mesh mesh = MeshOf("x=4,y=2");
  const auto model = MakeRooflineCostModel(Cluster::Local(8), mesh, &calibration);
  const auto product = [&](Opcode opcode, ElementType type) {
    return model->Operation(
        {.opcode = opcode, .type = type, .flops = 1, .dot_sizes = {1, 256, 256, 256}});
  };
  EXPECT_NEAR(product(Opcode::kDot, ElementType::kF32), 300, 1);
  EXPECT_NEAR(product(Opcode::kConvolution, ElementType::kF32), 900, 1);
  EXPECT_NEAR(product(Opcode::kDot, ElementType::kBF16), 300 + 3 * 256 * 256 * 0.002, 1);
  const auto elements = [&](ReductionKernel kernel, ElementType type) {
    return model->Operation(
        {.opcode = Opcode::kReduce, .type = type, .elementwise = 100, .kernel = kernel});
  };
  EXPECT_DOUBLE_EQ(elements(ReductionKernel::kMaximumOfRows, ElementType::kF32), 50);
  EXPECT_DOUBLE_EQ(elements(ReductionKernel::kMaximumOfRows, ElementType::kBF16), 100);
  EXPECT_DOUBLE_EQ(elements(ReductionKernel::kRows, ElementType::kF32), 2.5);  // not measured
  EXPECT_DOUBLE_EQ(elements(ReductionKernel::kNone, ElementType::kBF16), 12.5);
  const auto reduce = [&](int axis) {
    return model->Collective({ReshardKind::kAllReduce, 3000, AxisSet::Of(axis)}, ElementType::kF32);
  };
  EXPECT_DOUBLE_EQ(reduce(1), 30);
}

}  // namespace
}  // namespace minka
