#include "minka/planner/intra_op/memory_estimate.h"

#include <string>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/analysis/structure.h"
#include "minka/cluster/cluster.h"
#include "minka/ir/builder.h"
#include "minka/planner/intra_op/intra_op.h"

namespace minka {
namespace {

// a = x x, b = a a, c = b b, of 16 x 16 floats each; c is the result.
Step ThreeProducts() {
  ModuleBuilder module("three_products");
  ComputationBuilder b = module.Entry();
  Value value = b.Parameter({ElementType::kF32, {16, 16}}, "x");
  for (int i = 0; i < 3; ++i) {
    value = b.Dot(value, value, {.lhs_contracting = {1}, .rhs_contracting = {0}});
  }
  b.SetResults({value});
  return WithStructure({.module = *std::move(module).Finish(),
                        .parameters = {{.name = "x"}},
                        .results = {{.name = "c"}}});
}

TEST(EstimateTemporaries, CountsWhatNoOtherProgramReads) {
  constexpr int64_t kBytes = 16 * 16 * sizeof(float);
  const Step step = ThreeProducts();
  const Mesh mesh = *Mesh::Parse("1");
  const auto plan = PlanMesh(step, mesh, *MakeRooflineCostModel(Cluster::Local(1), mesh), {});
  ASSERT_TRUE(plan.ok());
  const auto temporaries = [&](std::vector<int> programs, int num_programs) {
    return EstimateTemporaries(StepFacts(step), plan->stage, programs, num_programs);
  };
  // A result is read by whoever takes it, not by a program alone.
  EXPECT_THAT(temporaries({0, 0, 0, 0}, 1), testing::ElementsAre(2 * kBytes));
  EXPECT_THAT(temporaries({0, 0, 0, 1}, 2), testing::ElementsAre(kBytes, 0));
  EXPECT_THAT(temporaries({0, 0, 1, 1}, 2), testing::ElementsAre(0, kBytes));
  EXPECT_THAT(temporaries({0, 0, 1, 2}, 3), testing::ElementsAre(0, 0, 0));
}

TEST(EstimateTemporaries, CountsWhatIsUncertainOfGpus) {
  const Step step = ThreeProducts();
  const Mesh mesh = *Mesh::Parse("1");
  const auto plan = PlanMesh(step, mesh, *MakeRooflineCostModel(Cluster::LocalCuda(1), mesh), {});
  ASSERT_TRUE(plan.ok());
  const std::vector<int> programs = {0, 0, 0, 0};
  const auto of_cpu = EstimateTemporaries(StepFacts(step), plan->stage, programs, 1);
  const auto of_gpu =
      EstimateTemporaries(StepFacts(step, Platform::kCuda), plan->stage, programs, 1);
  EXPECT_GT(of_gpu[0], of_cpu[0]);
  EXPECT_LT(of_gpu[0], of_cpu[0] * 5 / 4);
}

// Four gradients of 64 KiB, each made and applied by itself.
Step FourGradients() {
  ModuleBuilder module("four_gradients");
  ComputationBuilder b = module.Entry();
  Step step;
  std::vector<Value> weights, results;
  for (int i = 0; i < 4; ++i) {
    const std::string name = fmt::format("w{}", i);
    weights.push_back(b.Parameter({ElementType::kF32, {128, 128}}, name));
    module.AddAlias({.result = i, .parameter = i});
    step.parameters.push_back({.role = ParameterRole::kState, .name = name, .state_result = i});
    step.results.push_back({ResultRole::kState, name});
  }
  Value x = b.Parameter({ElementType::kF32, {64, 128}}, "x");
  step.parameters.push_back({.role = ParameterRole::kBatch, .name = "x", .batch_dim = 0});
  for (const Value weight : weights) {
    const Value y = b.Dot(x, weight, {.lhs_contracting = {1}, .rhs_contracting = {0}});
    const Value gradient = b.Dot(x, y, {.lhs_contracting = {0}, .rhs_contracting = {0}});
    results.push_back(b.Binary(Opcode::kSubtract, weight, gradient));
    x = y;
  }
  b.SetResults(results);
  step.module = *std::move(module).Finish();
  return WithStructure(std::move(step));
}

// Summed apart, a gradient is gone once it is applied. Processors pack them, and what is packed is
// there beside what it is packed from; GPUs sum them in place.
TEST(EstimateMemory, CountsWhatIsSummedTogetherUntilTheLastIsRead) {
  constexpr int64_t kGradientBytes = 128 * 128 * sizeof(float);
  const Step step = FourGradients();
  const Mesh mesh = *Mesh::Parse("data=4");
  const auto plan = PlanMesh(step, mesh, *MakeRooflineCostModel(Cluster::Local(4), mesh),
                             {.method = Method::kData});
  ASSERT_TRUE(plan.ok());
  StagePlan apart = plan->stage;
  ASSERT_EQ(apart.reshards.size(), 4);
  for (Reshard& reshard : apart.reshards) {
    EXPECT_EQ(reshard.combine_group, 0);
    reshard.combine_group = -1;
  }
  const int64_t packed = EstimateMemory(StepFacts(step), plan->stage).peak_bytes;
  const int64_t one_by_one = EstimateMemory(StepFacts(step), apart).peak_bytes;
  EXPECT_GE(packed, one_by_one + 3 * kGradientBytes);
  EXPECT_LE(packed, one_by_one + 7 * kGradientBytes);
  EXPECT_LE(EstimateMemory(StepFacts(step, Platform::kCuda), plan->stage).peak_bytes,
            packed - 3 * kGradientBytes);
}

}  // namespace
}  // namespace minka
