// Which collectives run as one, and what they and the waits at them cost a plan.
#include <map>
#include <set>
#include <vector>

#include "gtest/gtest.h"
#include "minka/analysis/structure.h"
#include "minka/cluster/cluster.h"
#include "minka/ir/builder.h"
#include "minka/planner/intra_op/intra_op.h"
#include "minka/planner/intra_op/testing/steps.h"

namespace minka {
namespace {

TEST(PlanMesh, ReductionsInOneInstructionPayOneLatencyInTheSearch) {
  const Mesh mesh = *Mesh::Parse("data=8");
  const Step step = TwoLayerStep(1024, 32);
  const IntraOpResult result = PlanLocally(step, mesh, Method::kData);
  const auto cost = MakeRooflineCostModel(Cluster::Local(8), mesh);
  const double latency = cost->Latency(ReshardKind::kAllReduce, AxisSet::Of(0));
  double expected = 0;
  for (const OpPlan& op : result.stage.ops) expected += op.cost_us;
  ASSERT_EQ(result.stage.reshards.size(), 2u);
  double alone = 0, together = 0, in_group = 0;
  for (const Reshard& reshard : result.stage.reshards) {
    EXPECT_EQ(reshard.combine_group, 0);
    together += reshard.cost_us;
    const StepWork work = WorkOfStep(step.module.entry_computation().shape(reshard.value),
                                     reshard.from, reshard.steps[0], mesh);
    alone += cost->Collective(work, ElementType::kF32);
    in_group += PriceInGroup(*cost, work, 8, ElementType::kF32);
  }
  EXPECT_NEAR(together, in_group + GroupLatency(*cost, ReshardKind::kAllReduce, AxisSet::Of(0)),
              1e-6 * alone);
  EXPECT_LT(together, alone - latency / 2);
  EXPECT_NEAR(result.stage.step_time_us, expected + together, 1e-6 * expected);
  EXPECT_NEAR(result.objective, result.stage.step_time_us, 0.01);
}

// Packed weights and gradients need memory, which matters where they are large.
TEST(PlanMesh, Zero3CombinesWhatIsSmall) {
  const auto groups = [](int64_t width) {
    const Mesh mesh = *Mesh::Parse("data=8");
    std::map<ReshardKind, std::set<int>> groups;
    for (const Reshard& reshard :
         PlanLocally(TwoLayerStep(1024, width), mesh, Method::kZero3).stage.reshards) {
      groups[reshard.steps[0].kind].insert(reshard.combine_group);
    }
    return groups;
  };
  const std::map<ReshardKind, std::set<int>> small = groups(64);  // 16 KiB
  ASSERT_EQ(small.size(), 2);
  for (const ReshardKind kind : {ReshardKind::kAllGather, ReshardKind::kReduceScatter}) {
    EXPECT_EQ(small.at(kind).size(), 1) << ToString(kind);
    EXPECT_GE(*small.at(kind).begin(), 0) << ToString(kind);
  }
  for (const auto& [kind, its] : groups(512)) EXPECT_EQ(its, std::set{-1}) << ToString(kind);
}

// Weights of 64 KiB, of which 256 KiB are gathered at once, and one of 128 KiB by itself.
TEST(PlanMesh, Zero3PacksNoMoreThanALimit) {
  const Mesh mesh = *Mesh::Parse("data=8");
  const std::vector<int64_t> widths = {128, 128, 128, 128, 128, 128, 128, 256};
  const Step step = ChainStep(1024, widths);
  std::map<ReshardKind, std::map<int, int64_t>> bytes;  // by group
  for (const Reshard& reshard : PlanLocally(step, mesh, Method::kZero3).stage.reshards) {
    const int64_t its = step.module.entry_computation().shape(reshard.value).num_bytes();
    if (reshard.combine_group < 0) {
      EXPECT_EQ(its, 128 << 10);
      continue;
    }
    EXPECT_EQ(its, 64 << 10);
    bytes[reshard.steps[0].kind][reshard.combine_group] += its;
  }
  for (const ReshardKind kind : {ReshardKind::kAllGather, ReshardKind::kReduceScatter}) {
    EXPECT_GE(bytes[kind].size(), 2) << ToString(kind);
    for (const auto& [group, its] : bytes[kind]) EXPECT_LE(its, 256 << 10) << ToString(kind);
  }
}

// Processors pack the three small gradients and share what a meeting takes among them; each large
// one pays as if it were alone. GPUs sum all five as one.
TEST(PlanMesh, LargeGradientsShareNoLatencyWhereTheyAreSummedApart) {
  const Mesh mesh = *Mesh::Parse("data=4");
  const std::vector<int64_t> widths = {64, 64, 64, 64, 2048, 64};
  const Step step = ChainStep(1024, widths);
  for (const Cluster& cluster : {Cluster::Local(4), *Cluster::Preset("p3.16xlarge")}) {
    const auto cost = MakeRooflineCostModel(cluster, mesh);
    IntraOpOptions options{.method = Method::kData};
    const IntraOpResult result = *PlanMesh(step, mesh, *cost, options);
    double small_us = 0;
    for (const Reshard& reshard : result.stage.reshards) {
      EXPECT_EQ(reshard.combine_group, 0);
      const StepWork work = WorkOfStep(step.module.entry_computation().shape(reshard.value),
                                       reshard.from, reshard.steps[0], mesh);
      const double alone_us = cost->Collective(work, ElementType::kF32);
      if (work.local_bytes <= kMostPackedBytes) {
        small_us += reshard.cost_us;
        EXPECT_LT(reshard.cost_us, alone_us);
      } else if (SumsOperandsApart(cluster.platform())) {
        EXPECT_NEAR(reshard.cost_us, alone_us, 1e-9 * alone_us);
      } else {
        EXPECT_LT(reshard.cost_us, alone_us);
      }
    }
    EXPECT_GE(small_us, cost->Latency(ReshardKind::kAllReduce, AxisSet::Of(0)) *
                            (SumsOperandsApart(cluster.platform()) ? 1 : 3.0 / 5));
  }
}

TEST(PlanMesh, CountsHowLongDevicesWaitBehindTheirWork) {
  const Mesh mesh = *Mesh::Parse("data=8");
  const Step step = TwoLayerStep(1024, 32);
  Calibration calibration{.num_devices = 8,
                          .arithmetic_per_us = 100,
                          .bytes_per_us = 1000,
                          .collectives = {{ReshardKind::kAllReduce, 8, 4, 20}}};
  const auto plan = [&] {
    IntraOpOptions options{.method = Method::kData};
    const auto cost = MakeRooflineCostModel(Cluster::Local(8), mesh, &calibration);
    return *PlanMesh(step, mesh, *cost, options);
  };
  const IntraOpResult without = plan();
  double work_us = 0;
  for (const OpPlan& op : without.stage.ops) work_us += op.cost_us;
  calibration.waits = {{.phase_us = work_us / 100, .us = 0}, {.phase_us = work_us, .us = 300}};
  const IntraOpResult with = plan();
  EXPECT_NEAR(with.objective, without.objective, 1e-9 * with.objective);
  EXPECT_GT(with.stage.step_time_us, without.stage.step_time_us + 150);
  EXPECT_LE(with.stage.step_time_us, without.stage.step_time_us + 300);
  double total_us = 0;
  for (const OpPlan& op : with.stage.ops) total_us += op.cost_us;
  for (const Reshard& reshard : with.stage.reshards) total_us += reshard.cost_us;
  EXPECT_NEAR(total_us, with.stage.step_time_us, 1e-6 * total_us);
}

// The mean of each of four micro-batches is needed in it, their gradients are summed behind all.
TEST(PlanMesh, DevicesWaitInEachMicroBatch) {
  ModuleBuilder module("means");
  ComputationBuilder b = module.Entry();
  const Value w = b.Parameter({ElementType::kF32, {32}}, "w");
  const Value x = b.Parameter({ElementType::kF32, {4096, 32}}, "x");
  const Value index = b.Scalar(ElementType::kS32, 4);
  const Value zero = b.Scalar(ElementType::kF32, 0);
  const auto sum = [&](Value v) { return b.Reduce(v, zero, {0}, Opcode::kAdd); };
  const Value mean = b.Broadcast(b.Unary(Opcode::kTanh, sum(x)), {4096, 32}, {1});
  const Value total = b.Unary(Opcode::kCopy, sum(b.Binary(Opcode::kMultiply, x, mean)));
  b.SetResults({b.Binary(Opcode::kSubtract, w, total)});
  module.AddAlias({.result = 0, .parameter = 0});
  Step step =
      WithStructure({.module = *std::move(module).Finish(),
                     .parameters = {{.role = ParameterRole::kState, .name = "w", .state_result = 0},
                                    {.role = ParameterRole::kBatch, .name = "x", .batch_dim = 0}},
                     .results = {{ResultRole::kState, "w"}}});
  step.module.num_micro_batches = 4;
  std::vector<Instruction>& instructions = step.module.entry_computation().instructions;
  instructions[index.instruction].part.loop = LoopRole::kIndex;
  for (InstructionId id = index.instruction + 1; id < total.instruction; ++id) {
    instructions[id].part.loop = LoopRole::kBody;
  }
  instructions[total.instruction].part.loop = LoopRole::kSum;

  const Mesh mesh = *Mesh::Parse("data=8");
  Calibration calibration{.num_devices = 8,
                          .arithmetic_per_us = 100,
                          .bytes_per_us = 1000,
                          .collectives = {{ReshardKind::kAllReduce, 8, 4, 20}}};
  const auto step_us = [&] {
    const auto cost = MakeRooflineCostModel(Cluster::Local(8), mesh, &calibration);
    IntraOpOptions options{.method = Method::kData};
    return PlanMesh(step, mesh, *cost, options)->stage.step_time_us;
  };
  const double without_us = step_us();
  calibration.waits = {{.phase_us = 1e-6, .us = 0}, {.phase_us = 1e-3, .us = 100}};
  EXPECT_NEAR(step_us(), without_us + (4 + 1) * 100, 1e-3);
}

}  // namespace
}  // namespace minka
