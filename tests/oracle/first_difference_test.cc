// Decisions within rounding of their threshold, and the place where a wrong plan goes wrong.
#include "minka/oracle/first_difference.h"

#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/base/status.h"
#include "minka/driver/check.h"
#include "minka/driver/inputs.h"
#include "minka/driver/parallelize.h"
#include "minka/driver/prepare.h"
#include "minka/frontend/optimizer.h"
#include "minka/frontend/trace.h"
#include "minka/ir/hlo_proto.h"
#include "minka/models/mlp.h"
#include "minka/oracle/decisions.h"
#include "minka/oracle/rounding.h"
#include "minka/runtime/mesh/local_devices.h"
#include "tests/support/must.h"

namespace minka {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

const LocalDevices& Devices() {
  static const LocalDevices devices = Must(OpenLocalDevices({.num_devices = 4}));
  return devices;
}

// A batch norm in front of a relu, as in a residual network, and the step of a weight behind it.
constexpr char kBatchNorm[] = R"(HloModule block

add {
  p = f32[] parameter(0)
  q = f32[] parameter(1)
  ROOT s = f32[] add(p, q)
}

ENTRY main {
  x = f32[256,4] parameter(0)
  target = f32[256,4] parameter(1)
  weight = f32[4,4] parameter(2)
  zero = f32[] constant(0)
  part = f32[] constant(0.00390625)
  parts = f32[4] broadcast(part), dimensions={}
  sum = f32[4] reduce(x, zero), dimensions={0}, to_apply=add
  mean = f32[4] multiply(sum, parts), metadata={op_name="norm/mean"}
  means = f32[256,4] broadcast(mean), dimensions={1}
  normal = f32[256,4] subtract(x, means), metadata={op_name="norm"}
  zeros = f32[256,4] broadcast(zero), dimensions={}
  mask = pred[256,4] compare(normal, zeros), direction=GT, metadata={op_name="relu"}
  passed = f32[256,4] select(mask, target, zeros)
  gradient = f32[4,4] dot(normal, passed), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  updated = f32[4,4] subtract(weight, gradient)
  ROOT results = (f32[4,4], f32[4]) tuple(updated, mean)
}
)";

// A dense layer in front of a relu, and the step of its weight. With weights of one, sums lie at
// the threshold where inputs lie at this mean.
constexpr float kDenseMean = 25166016.0F / 64;
constexpr char kDense[] = R"(HloModule dense

ENTRY main {
  x = f32[8,64] parameter(0)
  target = f32[8,4] parameter(1)
  weight = f32[64,4] parameter(2)
  threshold = f32[] constant(25166016)
  sums = f32[8,4] dot(x, weight), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  thresholds = f32[8,4] broadcast(threshold), dimensions={}
  mask = pred[8,4] compare(sums, thresholds), direction=GT, metadata={op_name="relu"}
  passed = f32[8,4] select(mask, target, thresholds)
  gradient = f32[64,4] dot(x, passed), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  updated = f32[64,4] subtract(weight, gradient)
  ROOT results = (f32[64,4]) tuple(updated)
}
)";

// Whole numbers, which no draw nudges, so large that sums over the batch round, and around the mean
// so close that many lie at it: on which side depends on the order of the sum.
Literal NearTheirMean(const Shape& shape, float mean, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::string bytes(shape.num_elements() * sizeof(float), '\0');
  for (int64_t i = 0; i < shape.num_elements(); ++i) {
    const float value = mean - 3 + static_cast<float>(random() % 7);
    std::memcpy(bytes.data() + i * sizeof(float), &value, sizeof(float));
  }
  return {shape, std::make_shared<const std::string>(std::move(bytes))};
}

Literal Ones(const Shape& shape) {
  std::string bytes(shape.num_elements() * sizeof(float), '\0');
  const float one = 1;
  for (size_t i = 0; i < bytes.size(); i += sizeof(float)) {
    std::memcpy(bytes.data() + i, &one, sizeof(float));
  }
  return {shape, std::make_shared<const std::string>(std::move(bytes))};
}

Step BatchNormStep() {
  return Must(
      MakeStep(Must(ParseHloText(kBatchNorm)), {.batch_inputs = {"0", "1"}, .states = {"2:0"}}));
}

StepInputs InputsNearTheirMean(const Step& step, float mean, uint64_t seed) {
  return [&step, mean, seed](int number) -> absl::StatusOr<ParameterValues> {
    ASSIGN_OR_RETURN(ParameterValues values, RandomInputs(step, seed + number));
    values[0] = NearTheirMean(values[0].shape, mean, seed + number);
    return values;
  };
}

// What was turned over, one decision for each of the first runs, at most so many, of seeds up to
// 200 that a comparison without a search refuses. The search accepts them.
template <typename InputsOfSeed>
std::vector<std::string> TurnedOver(const Step& step, Parallelized& run, size_t most,
                                    const InputsOfSeed& inputs_of) {
  OneDevice one_device = Must(OneDevice::Compile(step, Devices().client));
  std::vector<std::string> turned;
  for (uint64_t seed = 1; seed <= 200 && turned.size() < most; ++seed) {
    const StepInputs inputs = inputs_of(seed);
    const OneDeviceResults results = Must(one_device.Run(inputs, /*num_steps=*/1));
    if (Must(CompareWithOneDevice(step, run.runner(), inputs, /*num_steps=*/1, results)).ok()) {
      continue;
    }
    const OracleReport report = Must(CheckAgainstOneDevice(run, inputs, /*num_steps=*/1));
    EXPECT_EQ(report.Failures(), "") << "seed " << seed;
    EXPECT_EQ(report.turned.size(), 1u) << "seed " << seed;
    turned.push_back(report.turned.empty() ? "" : report.turned[0]);
  }
  return turned;
}

TEST(FindFirstDifference, ValuesWithinRoundingOfAThresholdMayGoEitherWay) {
  const Step step = BatchNormStep();
  Parallelized run =
      Must(Parallelize(step, Cluster::Local(4), DataParallel{.mesh = "4"}, {.devices = Devices()}));
  const auto turned = TurnedOver(step, run, /*most=*/3, [&](uint64_t seed) {
    return InputsNearTheirMean(step, 3145731.0F, seed);
  });
  EXPECT_THAT(turned, Not(IsEmpty())) << "no sum went the other way";
  EXPECT_THAT(turned,
              Each(AllOf(HasSubstr("in step 1 the first operation that differs is compare mask "
                                   "pred[256,4] (relu) in [x,-]: "),
                         HasSubstr(" from what it is compared with; rounding moves it by"))));
}

// Every device has a part of each sum, of one micro-batch after another.
Parallelized SumOverDevices(const Step& step) {
  return Must(
      Parallelize(step, Cluster::Local(4),
                  Shard{.mesh = "4",
                        .search = {.pins = {"parameter.0=[-,-,x]", "parameter.2=[x,-]"},
                                   .limits = {.no_all_gather = true, .no_all_to_all = true}},
                        .num_micro_batches = 4},
                  {.devices = Devices()}));
}

TEST(FindFirstDifference, MicroBatchesAreSeenTogether) {
  const Step step =
      Must(MakeStep(Must(ParseHloText(kDense)), {.batch_inputs = {"0", "1"}, .states = {"2:0"}}));
  Parallelized run = SumOverDevices(step);
  const auto turned = TurnedOver(step, run, /*most=*/1, [&](uint64_t seed) -> StepInputs {
    return [&step, seed](int number) -> absl::StatusOr<ParameterValues> {
      ASSIGN_OR_RETURN(ParameterValues values, InputsNearTheirMean(step, kDenseMean, seed)(number));
      values[2] = Ones(values[2].shape);
      return values;
    };
  });
  EXPECT_THAT(turned, Not(IsEmpty())) << "no sum went the other way";
  EXPECT_THAT(turned, Each(HasSubstr("compare mask pred[8,4] (relu)")));
}

TEST(FindFirstDifference, NamesTheMicroBatchesOperationWhoseSumIsMissing) {
  const Step step =
      Must(MakeStep(Must(ParseHloText(kDense)), {.batch_inputs = {"0", "1"}, .states = {"2:0"}}));
  Parallelized run = SumOverDevices(step);
  Plan wrong = run.plan();
  const Computation& entry = run.prepared().module.entry_computation();
  for (Reshard& reshard : wrong.stage.reshards) {
    if (entry.instruction(reshard.value).name == "sums") reshard.steps.clear();
  }
  const StepInputs inputs = [&](int number) { return RandomInputs(step, 3 + number); };
  const MeshResults results = Must(RunOnMesh(run.runner(), inputs, /*num_steps=*/1));
  const FirstDifference found =
      Must(FindFirstDifference({.prepared = Must(Prepare(step)),
                                .plan = SearchedPlanOf(run.prepared().module, wrong),
                                .client = Devices().client,
                                .session = run.session(),
                                .inputs = inputs,
                                .num_steps = 1,
                                .runner = run.runner(),
                                .results = results}));
  EXPECT_EQ(found.turned, std::vector<std::string>());
  EXPECT_THAT(found.text, HasSubstr("in step 1 the first operation that differs is dot sums "));
}

TEST(FindFirstDifference, NamesTheOperationWhoseSumIsMissing) {
  const Step step = BatchNormStep();
  Parallelized run =
      Must(Parallelize(step, Cluster::Local(4), DataParallel{.mesh = "4"}, {.devices = Devices()}));
  const Computation& entry = run.prepared().module.entry_computation();
  Plan wrong = run.plan();
  for (Reshard& reshard : wrong.stage.reshards) {
    const std::string& name = entry.instruction(reshard.value).name;
    if (name == "sum" || name == "mean") reshard.steps.clear();
  }
  const StepInputs inputs = [&](int number) { return RandomInputs(step, 3 + number); };
  const MeshResults results = Must(RunOnMesh(run.runner(), inputs, /*num_steps=*/1));
  const FirstDifference found =
      Must(FindFirstDifference({.prepared = run.prepared(),
                                .plan = SearchedPlanOf(run.prepared().module, wrong),
                                .client = Devices().client,
                                .session = run.session(),
                                .inputs = inputs,
                                .num_steps = 1,
                                .runner = run.runner(),
                                .results = results}));
  EXPECT_EQ(found.turned, std::vector<std::string>());
  EXPECT_THAT(found.text, HasSubstr("in step 1 the first operation that differs is multiply mean "
                                    "f32[4] (norm/mean) in [-]: replicas differ: after step 1 "
                                    "device 1 holds another value than device 0 in 4 elements"));
}

// Two examples for each device, whose arg-max says which column of the weight learns. Scores are
// sums over devices, so close to each other that their order depends on that of the sum.
constexpr char kArgMax[] = R"(HloModule arg_max

first_largest {
  a = f32[] parameter(0)
  i = s32[] parameter(1)
  b = f32[] parameter(2)
  j = s32[] parameter(3)
  larger = pred[] compare(a, b), direction=GE
  value = f32[] select(larger, a, b)
  place = s32[] select(larger, i, j)
  ROOT t = (f32[], s32[]) tuple(value, place)
}

ENTRY main {
  x = f32[8,64] parameter(0)
  target = f32[8,4] parameter(1)
  weight = f32[64,4] parameter(2)
  low = f32[] constant(-inf)
  none = s32[] constant(0)
  zero = f32[] constant(0)
  scores = f32[8,4] dot(x, weight), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  numbers = s32[8,4] iota(), iota_dimension=1
  best = (f32[8], s32[8]) reduce(scores, numbers, low, none), dimensions={1}, to_apply=first_largest, metadata={op_name="router" source_file="model.py" source_line=12}
  picked = s32[8] get-tuple-element(best), index=1
  picks = s32[8,4] broadcast(picked), dimensions={0}
  mask = pred[8,4] compare(numbers, picks), direction=EQ
  zeros = f32[8,4] broadcast(zero), dimensions={}
  passed = f32[8,4] select(mask, target, zeros)
  gradient = f32[64,4] dot(x, passed), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  updated = f32[64,4] subtract(weight, gradient)
  ROOT results = (f32[64,4]) tuple(updated)
}
)";

TEST(FindFirstDifference, PicksWithinRoundingMayGoEitherWay) {
  const Step step =
      Must(MakeStep(Must(ParseHloText(kArgMax)), {.batch_inputs = {"0", "1"}, .states = {"2:0"}}));
  Parallelized run =
      Must(Parallelize(step, Cluster::Local(4),
                       Shard{.mesh = "4",
                             .search = {.pins = {"parameter.0=[-,x]", "parameter.2=[x,-]"},
                                        .limits = {.no_all_gather = true, .no_all_to_all = true}}},
                       {.devices = Devices()}));
  const auto turned = TurnedOver(step, run, /*most=*/3, [&](uint64_t seed) -> StepInputs {
    return [&step, seed](int number) -> absl::StatusOr<ParameterValues> {
      ASSIGN_OR_RETURN(ParameterValues values, InputsNearTheirMean(step, kDenseMean, seed)(number));
      values[2] = Nudged(FilledLiteral(values[2].shape, 0.75), 0x1p-24, seed);
      return values;
    };
  });
  EXPECT_THAT(turned, Not(IsEmpty())) << "no score went the other way";
  EXPECT_THAT(turned,
              Each(AllOf(HasSubstr("in step 1 the first operation that differs is reduce best "
                                   "s32[8] (router, model.py:12) in [-]: "),
                         HasSubstr(" from what one device picks; rounding moves it by"))));
}

// Adafactor's first step: a gradient, summed over the batch, is divided by its own size.
constexpr char kOwnSize[] = R"(HloModule own_size

add {
  p = f32[] parameter(0)
  q = f32[] parameter(1)
  ROOT s = f32[] add(p, q)
}

ENTRY main {
  x = f32[256,16] parameter(0)
  weight = f32[16] parameter(1)
  zero = f32[] constant(0)
  rate = f32[] constant(0.001)
  gradient = f32[16] reduce(x, zero), dimensions={0}, to_apply=add
  square = f32[16] multiply(gradient, gradient)
  tiny = f32[] constant(1e-30)
  tinies = f32[16] broadcast(tiny), dimensions={}
  moment = f32[16] add(square, tinies)
  inverse = f32[16] rsqrt(moment)
  direction = f32[16] multiply(gradient, inverse)
  rates = f32[16] broadcast(rate), dimensions={}
  change = f32[16] multiply(direction, rates)
  updated = f32[16] subtract(weight, change)
  ROOT results = (f32[16]) tuple(updated)
}
)";

// The column's first half as it is, and the second with the other sign, so that its sum lies within
// rounding of zero.
Literal WithACancellingColumn(const Literal& literal) {
  std::string bytes = *literal.bytes;
  const int64_t rows = literal.shape.dims[0], columns = literal.shape.dims[1];
  for (int64_t row = rows / 2; row < rows; ++row) {
    bytes[(row * columns + 1) * sizeof(float) - 1] ^= '\x80';
  }
  return {literal.shape, std::make_shared<const std::string>(std::move(bytes))};
}

TEST(FindFirstDifference, QuotientsOfWhatIsZeroButForRoundingMayBeAnything) {
  const Step step =
      Must(MakeStep(Must(ParseHloText(kOwnSize)), {.batch_inputs = {"0"}, .states = {"1:0"}}));
  Parallelized run =
      Must(Parallelize(step, Cluster::Local(4), DataParallel{.mesh = "4"}, {.devices = Devices()}));
  const auto turned = TurnedOver(step, run, /*most=*/3, [&](uint64_t seed) -> StepInputs {
    return [&step, seed](int number) -> absl::StatusOr<ParameterValues> {
      ASSIGN_OR_RETURN(ParameterValues values, InputsNearTheirMean(step, 3145731.0F, seed)(number));
      values[0] = WithACancellingColumn(values[0]);
      return values;
    };
  });
  EXPECT_THAT(turned, Not(IsEmpty())) << "no sum went to the other side of zero";
  // The inverse where a sum is zero, else the quotient.
  EXPECT_THAT(turned,
              Each(AllOf(HasSubstr("f32[16] in [-]: 1 element, the first [0], off by "),
                         HasSubstr("although what it reads there lies within rounding of what one "
                                   "device reads"))));
}

// Element 0 of the mask lies so close to its threshold that rounding elsewhere moves values by
// more, but not so close that a nudge of the inputs turns it over.
StepInputs InputsWithATie(const Step& step) {
  return [&step](int number) -> absl::StatusOr<ParameterValues> {
    ASSIGN_OR_RETURN(ParameterValues values, RandomInputs(step, 3 + number));
    std::string bytes = *values[0].bytes;
    double sum = 0;
    for (int64_t row = 1; row < 256; ++row) sum += ElementAsDouble(values[0], row * 4);
    const auto near_mean = static_cast<float>(sum / 255 + 3e-7);
    std::memcpy(bytes.data(), &near_mean, sizeof(near_mean));
    values[0].bytes = std::make_shared<const std::string>(std::move(bytes));
    return values;
  };
}

// What a plan's program gives whose mask has an element turned over, although no program that keeps
// its values does.
FirstDifference FindWithMaskTurned(int64_t element) {
  const Step step = BatchNormStep();
  Parallelized run =
      Must(Parallelize(step, Cluster::Local(4), DataParallel{.mesh = "4"}, {.devices = Devices()}));
  const Computation& entry = step.module.entry_computation();
  Value mask;
  for (InstructionId id = 0; id < entry.num_instructions(); ++id) {
    if (entry.instructions[id].name == "mask") mask = {id, 0};
  }
  const StepInputs inputs = InputsWithATie(step);
  const Literal decided =
      Must(RunOnOneDevice(WithResults(step, {{mask}}), Devices().client, inputs, 1)).single.back();
  std::string turned = *decided.bytes;
  turned[element] = turned[element] == 0 ? 1 : 0;
  const StepInputs with_turned = [&](int number) -> absl::StatusOr<ParameterValues> {
    ASSIGN_OR_RETURN(ParameterValues values, inputs(number));
    values.push_back({decided.shape, std::make_shared<const std::string>(turned)});
    return values;
  };
  const MeshResults results = {
      .values =
          Must(RunOnOneDevice(WithGiven(step, {{mask}}), Devices().client, with_turned, 1)).single};
  return Must(FindFirstDifference({.prepared = run.prepared(),
                                   .plan = SearchedPlanOf(run.prepared().module, run.plan()),
                                   .client = Devices().client,
                                   .session = run.session(),
                                   .inputs = inputs,
                                   .num_steps = 1,
                                   .runner = run.runner(),
                                   .results = results}));
}

TEST(FindFirstDifference, FusionMayTurnOverWhatLiesWithinRounding) {
  const FirstDifference found = FindWithMaskTurned(0);
  EXPECT_EQ(found.text, "");
  EXPECT_EQ(found.report.Failures(), "");
  ASSERT_EQ(found.turned.size(), 1u);
  EXPECT_THAT(found.turned[0], HasSubstr("compare mask pred[256,4] (relu)"));
}

TEST(FindFirstDifference, FusionMayTurnOverNothingElse) {
  const FirstDifference found = FindWithMaskTurned(1);
  EXPECT_THAT(found.text, HasSubstr("how the compiler fuses operations"));
  EXPECT_FALSE(found.report.ok());
}

// A perceptron in two stages of two devices each, and a stage that forgets to sum.
struct BrokenPipeline {
  TracedStep traced;
  Parallelized run;
  PlannedPipeline wrong;
  std::string forgotten;
};
BrokenPipeline ForgetASum(int stage) {
  TracedStep traced = Must(Trace(Mlp({.batch = 16, .hidden = 32, .num_layers = 2}), Sgd({})));
  Parallelized run = Must(
      Parallelize(traced, Cluster::Local(4),
                  Pipeline{.num_micro_batches = 2,
                           .options = {.num_stages = 2},
                           .search = {.pins = {"params/*kernel=[x,-]"},
                                      .limits = {.no_all_gather = true, .no_all_to_all = true}}},
                  {.devices = Devices()}));
  PlannedPipeline wrong = *run.pipeline();
  std::string forgotten;
  for (Reshard& reshard : wrong.plan.stages[stage].plan.stage.reshards) {
    if (reshard.from.partial.empty()) continue;
    reshard.steps.clear();
    forgotten =
        wrong.staged.stages[stage].step.module.entry_computation().instruction(reshard.value).name;
    break;
  }
  return {std::move(traced), std::move(run), std::move(wrong), std::move(forgotten)};
}

TEST(FindFirstDifference, NamesTheOperationAndTheStageOfAPipeline) {
  for (const int stage : {0, 1}) {
    BrokenPipeline broken = ForgetASum(stage);
    ASSERT_NE(broken.forgotten, "") << "stage " << stage << " sums nothing over its devices";
    Session& session = broken.run.session();
    const Step& step = broken.traced.step;
    StepRunner runner(broken.wrong.prepared, Must(CompilePipeline(broken.wrong, session)));
    const StepInputs inputs = [&](int number) { return RandomInputs(step, 3 + number); };
    const MeshResults results = Must(RunOnMesh(runner, inputs, /*num_steps=*/1));
    const Step prepared = Must(Prepare(step));
    const FirstDifference found = Must(FindFirstDifference({.prepared = prepared,
                                                            .plan = SearchedPlanOf(broken.wrong),
                                                            .client = Devices().client,
                                                            .session = session,
                                                            .inputs = inputs,
                                                            .num_steps = 1,
                                                            .runner = runner,
                                                            .results = results}));
    EXPECT_EQ(found.turned, std::vector<std::string>());
    EXPECT_THAT(found.text, HasSubstr("in step 1 the first operation that differs is "));
    EXPECT_THAT(found.text, HasSubstr(fmt::format(" on stage {}: ", stage)))
        << "the sum of " << broken.forgotten << " is missing";
  }
}

TEST(FindFirstDifference, OfARightPipelineThereIsNone) {
  BrokenPipeline pipeline = ForgetASum(0);
  Parallelized& run = pipeline.run;
  const Step& step = pipeline.traced.step;
  const StepInputs inputs = [&](int number) { return RandomInputs(step, 3 + number); };
  const MeshResults results = Must(RunOnMesh(run.runner(), inputs, /*num_steps=*/2));
  const Step prepared = Must(Prepare(step));
  const FirstDifference found = Must(FindFirstDifference({.prepared = prepared,
                                                          .plan = SearchedPlanOf(*run.pipeline()),
                                                          .client = Devices().client,
                                                          .session = run.session(),
                                                          .inputs = inputs,
                                                          .num_steps = 2,
                                                          .runner = run.runner(),
                                                          .results = results}));
  EXPECT_EQ(found.text, "");
  EXPECT_EQ(found.report.Failures(), "");
}

}  // namespace
}  // namespace minka
