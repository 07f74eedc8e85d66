// Micro-batches that each stand for the whole batch, against one device that never heard of them.
#include "minka/oracle/slices.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/driver/check.h"
#include "minka/driver/prepare.h"
#include "minka/runtime/mesh/local_devices.h"
#include "tests/oracle/subjects.h"
#include "tests/support/must.h"

namespace minka {
namespace {

constexpr int kSteps = 2;
constexpr uint64_t kSeed = 7;

const LocalDevices& Devices() {
  static const LocalDevices devices = Must(OpenLocalDevices({.num_devices = 4}));
  return devices;
}

const Subject kSubject = {.model = "wresnet", .type = "f32", .optimizer = "adamw"};
const SubjectPlan kPlan = {.method = "data", .mesh = "4", .num_micro_batches = 4};

// A rewriting that always reads the first slice computes what the right one does where all slices
// are the first.
TEST(RunOnOneDevice, RefusesARewritingThatAlwaysReadsTheFirstSlice) {
  const TracedStep traced = TraceSubject(kSubject);
  Parallelized run = Must(
      Parallelize(traced, Cluster::Local(4), MethodOf(kSubject, kPlan), {.devices = Devices()}));
  const MicroBatchOptions micro_batches = PreparationOf(run.plan()).micro_batches;
  ASSERT_TRUE(micro_batches.per_micro_batch);
  const StepInputs inputs = InputsOf(traced, kSeed, /*num_equal_slices=*/1);
  const OneDeviceResults one_device =
      Must(RunOnOneDevice(traced.step, micro_batches, Devices().client, inputs, kSteps));
  const auto compare = [&](const StepInputs& of_plan) {
    return CompareResults(traced.step, Must(RunOnMesh(run.runner(), of_plan, kSteps)), one_device);
  };
  EXPECT_EQ(compare(inputs).Failures(), "");
  EXPECT_FALSE(compare(InputsOf(traced, kSeed, kPlan.num_micro_batches)).ok());
}

TEST(RunSlices, KnowLossesWeightsAndTheOptimizersState) {
  const TracedStep traced = TraceSubject(kSubject);
  const Step simplified = Must(Simplify(traced.step));
  EXPECT_FALSE(IsRandom(simplified));
  const OneDeviceResults results =
      Must(RunSlices(simplified, kPlan.num_micro_batches, Devices().client,
                     InputsOf(traced, kSeed, /*num_equal_slices=*/1), /*num_steps=*/1));
  for (size_t i = 0; i < results.single.size(); ++i) {
    const std::string& name = traced.step.results[i].name;
    const bool is_known =
        name == "loss" || name.starts_with("params/") || name.starts_with("optimizer/");
    EXPECT_EQ(results.single[i].bytes != nullptr, is_known) << name;
  }
}

}  // namespace
}  // namespace minka
