#include "minka/planner/intra_op/memory_estimate.h"

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

}  // namespace
}  // namespace minka
