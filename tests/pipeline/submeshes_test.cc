// Which submeshes stages get where none are named.
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/base/status.h"
#include "minka/driver/pipeline.h"
#include "minka/frontend/trace.h"
#include "minka/models/mlp.h"
#include "tests/pipeline/small_steps.h"

namespace minka {
namespace {

// Accelerators that share nothing, all in one host.
Cluster Accelerators(int num_devices) {
  Cluster cluster = Cluster::Preset("p3.16xlarge").value();
  cluster.devices_per_host = num_devices;
  return cluster;
}

// Three layers of equal work and the loss.
Step ThreeLayers() {
  return Trace(Mlp({.batch = 16384, .hidden = 4096, .num_layers = 3}), Sgd()).value().step;
}

absl::StatusOr<PlannedPipeline> PlanOn(const Cluster& cluster, const Step& step,
                                       const PipelineOptions& options) {
  return PlanPipeline(
      step, {.cluster = cluster, .micro_batches = {.num_micro_batches = 8}, .pipeline = options});
}

std::vector<int64_t> SizesOf(const PlannedPipeline& planned) {
  std::vector<int64_t> sizes;
  for (const Mesh& mesh : planned.meshes()) sizes.push_back(mesh.num_devices());
  return sizes;
}

TEST(Submeshes, UnequalOnesAreTakenWhereTheyAreFaster) {
  const Step step = ThreeLayers();
  const auto searched = PlanOn(Accelerators(6), step, {});
  ASSERT_TRUE(searched.ok()) << Message(searched.status());
  EXPECT_THAT(SizesOf(*searched), testing::UnorderedElementsAre(4, 2));
  EXPECT_LT(searched->plan.bubble, 0.25);
  for (const std::vector<int>& equal : {std::vector<int>{3, 3}, {2, 2, 2}}) {
    const auto planned = PlanOn(Accelerators(6), step, {.submeshes = equal});
    ASSERT_TRUE(planned.ok()) << Message(planned.status());
    EXPECT_LT(searched->plan.step_time_us, planned->plan.step_time_us);
  }
}

TEST(Submeshes, EqualOnesAreTakenWhereTheySuffice) {
  const auto searched = PlanOn(Accelerators(4), SmallMlp(), {});
  ASSERT_TRUE(searched.ok()) << Message(searched.status());
  const std::vector<int64_t> sizes = SizesOf(*searched);
  EXPECT_THAT(sizes, testing::Each(sizes.front()));
}

TEST(Submeshes, StagesNeedNotDivideTheDevices) {
  const auto planned = PlanOn(Accelerators(4), ThreeLayers(), {.num_stages = 3});
  ASSERT_TRUE(planned.ok()) << Message(planned.status());
  EXPECT_THAT(SizesOf(*planned), testing::UnorderedElementsAre(1, 1, 2));
  EXPECT_EQ(Message(PlanOn(Accelerators(2), ThreeLayers(), {.num_stages = 3}).status()),
            "2 devices do not go evenly on 3 stages; name the submeshes");
}

TEST(Submeshes, GivenStagesKeepTheirLayers) {
  const std::vector<int> stages = {0, 1, 2, 2};
  const auto planned = PlanOn(Accelerators(4), ThreeLayers(), {.stage_of_layer = stages});
  ASSERT_TRUE(planned.ok()) << Message(planned.status());
  EXPECT_EQ(planned->plan.stage_of_layer, stages);
  EXPECT_THAT(SizesOf(*planned), testing::UnorderedElementsAre(1, 1, 2));
}

}  // namespace
}  // namespace minka
