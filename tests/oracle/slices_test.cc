// Micro-batches that each stand for the whole batch, against one device that never heard of them.
#include "minka/oracle/slices.h"

#include <string>
#include <vector>

#include "absl/strings/str_replace.h"
#include "gtest/gtest.h"
#include "minka/driver/check.h"
#include "minka/driver/prepare.h"
#include "minka/ir/hlo_proto.h"
#include "minka/runtime/mesh/local_devices.h"
#include "tests/oracle/subjects.h"
#include "tests/support/must.h"

namespace minka {
namespace {

constexpr int kSteps = 2;
constexpr uint64_t kSeed = 7;
constexpr int kDoublings = 60;

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

// A weight's gradient from a batch times something of each example.
constexpr char kScaled[] = R"(HloModule scaled

sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

ENTRY main {
  x = f32[8,4] parameter(0)
  weight = f32[4] parameter(1)
  key = u32[2] parameter(2)
  zero = f32[] constant(0)
  examples = u32[8,4] iota(), iota_dimension=0
  columns = u32[8,4] iota(), iota_dimension=1
  word = u32[1] slice(key), slice={[1:2]}
  scalar = u32[] reshape(word)
  words = u32[8,4] broadcast(scalar), dimensions={}
  of_examples = u32[8,4] xor(examples, words)
  of_columns = u32[8,4] xor(columns, words)
  by_examples = f32[8,4] convert(of_examples)
  by_columns = f32[8,4] convert(of_columns)
  numbers = f32[8,4] convert(examples)
  weights = f32[8,4] broadcast(weight), dimensions={1}
DOUBLED
  labels = f32[8,4] reshape(SCALE)
  scaled = f32[8,4] multiply(x, labels)
  gradient = f32[4] reduce(scaled, zero), dimensions={0}, to_apply=sum
  updated = f32[4] subtract(weight, gradient)
  ROOT results = (f32[4], u32[2]) tuple(updated, key)
}
)";

// The key is state, as flax's nnx keeps it.
TEST(SlicesDifferByBatchAlone, NotWhereEachExampleHasANumberOfItsOwn) {
  const auto differ_by_batch_alone = [](const std::string& scale) {
    std::string doubled = "  doubled_0 = f32[8,4] tanh(weights)";
    for (int i = 1; i <= kDoublings; ++i) {
      doubled += fmt::format("\n  doubled_{0} = f32[8,4] add(doubled_{1}, doubled_{1})", i, i - 1);
    }
    const std::string text = absl::StrReplaceAll(kScaled, {{"SCALE", scale}, {"DOUBLED", doubled}});
    const Step step =
        Must(MakeStep(Must(ParseHloText(text)), {.batch_inputs = {"0"}, .states = {"1:0", "2:1"}}));
    return Must(SlicesDifferByBatchAlone(Must(Simplify(step)),
                                         {.num_micro_batches = 2, .per_micro_batch = true}));
  };
  EXPECT_TRUE(differ_by_batch_alone("weights"));
  EXPECT_TRUE(differ_by_batch_alone("by_columns"));
  // Each value is looked at once, however many ways lead to it.
  EXPECT_TRUE(differ_by_batch_alone(fmt::format("doubled_{}", kDoublings)));
  EXPECT_FALSE(differ_by_batch_alone("by_examples"));
  EXPECT_FALSE(differ_by_batch_alone("numbers"));
}

TEST(RunSlices, KnowLossesWeightsAndTheOptimizersState) {
  const TracedStep traced = TraceSubject(kSubject);
  const Step simplified = Must(Simplify(traced.step));
  const MicroBatchOptions micro_batches = {.num_micro_batches = kPlan.num_micro_batches,
                                           .per_micro_batch = true};
  EXPECT_TRUE(Must(SlicesDifferByBatchAlone(simplified, micro_batches)));
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
