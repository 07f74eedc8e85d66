#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/base/status.h"
#include "minka/cost/calibration.h"
#include "minka/cost/cost_model.h"

namespace minka {
namespace {

using ::testing::HasSubstr;

Mesh MeshOf(std::string_view text) { return *Mesh::Parse(text); }

TEST(Alpa, CostsAreThoseOfItsTests) {
  const auto model = *MakeAlpaCostModel(MeshOf("4x1"), {1, 1}, {1, 1}, false);
  const auto all_reduce = [&](int64_t bytes) {
    return model->Collective(ReshardKind::kAllReduce, bytes, AxisSet::Of(0), ElementType::kF32);
  };
  // The MLP under data parallelism: six kernels of 4096 and six biases of 128 bytes.
  EXPECT_NEAR(6 * (all_reduce(4096) + all_reduce(128)), 38028.0012, 1e-6);
  EXPECT_EQ(model->Collective(ReshardKind::kAllReduce, 4096, AxisSet::Of(1), ElementType::kF32), 0);
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
    return model->Collective(kind, 1 << 26, AxisSet::Of(0), ElementType::kF32);
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
    return model->Collective(ReshardKind::kAllReduce, 1 << 26, AxisSet::Of(axis),
                             ElementType::kF32);
  };
  EXPECT_GT(price(0), 2 * price(1));
}

Calibration SomeCalibration() {
  return {
      .processor = "p",
      .cores = 2,
      .plugin = "cpu",
      .num_devices = 8,
      .launch_us = 3,
      .step_us = 100,
      .arithmetic_per_us = 40,
      .elementwise_per_us = 10,
      .half_elementwise_per_us = 5,
      .bytes_per_us = 20,
      .dots = {{DotForm::kNN, 1, 64, 64, 64, 10}, {DotForm::kNN, 1, 256, 256, 256, 300}},
      .convolutions = {{DotForm::kNN, 1, 64, 64, 64, 20}, {DotForm::kNN, 1, 256, 256, 256, 900}},
      .reductions = {{ReductionKernel::kMaximumOfRows, 2}},
      .collectives = {{ReshardKind::kAllReduce, 2, 1000, 10},
                      {ReshardKind::kAllReduce, 2, 3000, 30},
                      {ReshardKind::kAllReduce, 8, 1000, 40},
                      {ReshardKind::kAllReduce, 8, 3000, 120},
                      {ReshardKind::kAllReduce, 2, 1000, 15, /*is_strided=*/true},
                      {ReshardKind::kAllReduce, 2, 3000, 45, /*is_strided=*/true}}};
}

TEST(Calibration, InterpolatesBetweenWhatWasMeasured) {
  const Calibration calibration = SomeCalibration();
  EXPECT_NEAR(CalibratedCollectiveUs(calibration, ReshardKind::kAllReduce, 2, 2000), 20, 1e-9);
  EXPECT_NEAR(CalibratedCollectiveUs(calibration, ReshardKind::kAllReduce, 5, 1000), 25, 1e-9);
  EXPECT_EQ(CalibratedCollectiveUs(calibration, ReshardKind::kAllToAll, 2, 2000), 0);
  EXPECT_NEAR(CalibratedCollectiveUs(calibration, ReshardKind::kAllReduce, 2, 2000, true), 30,
              1e-9);
  // Groups of eight are the whole mesh: none was measured strided.
  EXPECT_NEAR(CalibratedCollectiveUs(calibration, ReshardKind::kAllReduce, 8, 1000, true), 40,
              1e-9);
}

TEST(FitDots, FindsThePartsInSpiteOfDisturbedMeasurements) {
  const DotModel real = {.us = {2, 0, 1e-4, 1e-3, 3e-3, 1e-3}};
  std::vector<DotPoint> points;
  for (const int64_t m : {4, 32, 128, 512}) {
    for (const int64_t n : {32, 80, 320, 1024}) {
      for (const int64_t k : {32, 80, 320, 1024}) {
        points.push_back({.m = m, .n = n, .k = k, .us = real.Us(1, m, n, k)});
      }
    }
  }
  for (size_t i = 0; i < points.size(); i += 7) points[i].us *= 1.8;
  const DotModel fitted = FitDots(points);
  EXPECT_NEAR(fitted.Us(4, 64, 64, 64) / real.Us(4, 64, 64, 64), 1, 0.1);
  EXPECT_NEAR(fitted.Us(1, 256, 256, 1024) / real.Us(1, 256, 256, 1024), 1, 0.03);
  EXPECT_NEAR(fitted.Us(1, 8, 1024, 256) / real.Us(1, 8, 1024, 256), 1, 0.05);
  for (const double part : fitted.us) EXPECT_GE(part, 0);
}

TEST(FitDots, FormsByThemselves) {
  std::vector<DotPoint> points;
  for (const int64_t size : {32, 64, 128}) {
    points.push_back({.form = DotForm::kNN, .m = size, .n = size, .k = size, .us = 10});
    points.push_back({.form = DotForm::kTN, .m = size, .n = size, .k = size, .us = 40});
  }
  EXPECT_NEAR(FitDots(points, DotForm::kNN).Us(1, 64, 64, 64), 10, 1);
  EXPECT_NEAR(FitDots(points, DotForm::kTN).Us(1, 64, 64, 64), 40, 4);
  EXPECT_NEAR(FitDots(points, DotForm::kNT).Us(1, 64, 64, 64), FitDots(points).Us(1, 64, 64, 64),
              1e-9);
}

TEST(PriceInGroup, IsNotNegativeWhereMeasuredTimesFallWithTheBytes) {
  Calibration calibration = SomeCalibration();
  calibration.collectives = {{ReshardKind::kAllReduce, 2, 256, 28},
                             {ReshardKind::kAllReduce, 2, 3072, 19},
                             {ReshardKind::kAllReduce, 2, 49152, 22}};
  const auto model = MakeRooflineCostModel(Cluster::Local(8), MeshOf("2"), &calibration);
  for (const int64_t bytes : {4, 256, 3072, 49152, 1 << 20}) {
    const double price =
        PriceInGroup(*model, ReshardKind::kAllReduce, bytes, AxisSet::Of(0), 2, ElementType::kF32);
    EXPECT_GE(price, 0) << bytes;
    EXPECT_EQ(price > 0, bytes == 1 << 20) << bytes;
  }
}

TEST(Calibration, RoundTripsAndRefusesNonsense) {
  const Calibration read = *Calibration::FromJson(SomeCalibration().ToJson());
  EXPECT_EQ(read.ToJson(), SomeCalibration().ToJson());
  EXPECT_THAT(Message(Calibration::FromJson("{").status()), HasSubstr("calibration: not JSON: "));
  const auto refusal = [](auto change) {
    Calibration broken = SomeCalibration();
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
  EXPECT_EQ(refusal([](Calibration& c) { c.reductions[0].kernel = ReductionKernel::kNone; }),
            "calibration: unknown reduction \"none\"");
}

TEST(Calibration, AnotherVersionIsNoNonsense) {
  const absl::Status status = Calibration::FromJson(R"({"schema_version": 3})").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Message(status), "calibration: schema_version is 3, not 5; profile again");
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
  EXPECT_NEAR(product(Opcode::kDot, ElementType::kBF16), 300 + 3 * 256 * 256 / 5.0, 1);
  const auto elements = [&](ReductionKernel kernel, ElementType type) {
    return model->Operation(
        {.opcode = Opcode::kReduce, .type = type, .elementwise = 100, .kernel = kernel});
  };
  EXPECT_DOUBLE_EQ(elements(ReductionKernel::kMaximumOfRows, ElementType::kF32), 50);
  EXPECT_DOUBLE_EQ(elements(ReductionKernel::kRows, ElementType::kF32), 2.5);  // not measured
  EXPECT_DOUBLE_EQ(elements(ReductionKernel::kNone, ElementType::kBF16), 20);
  const auto reduce = [&](int axis) {
    return model->Collective(ReshardKind::kAllReduce, 3000, AxisSet::Of(axis), ElementType::kF32);
  };
  EXPECT_DOUBLE_EQ(reduce(1), 30);
}

}  // namespace
}  // namespace minka
