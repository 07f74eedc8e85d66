// Whole training steps, planned and run on eight devices, against one device, and the collectives
// of what XLA runs against those of the plan.
#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/base/check.h"
#include "minka/base/status.h"
#include "minka/driver/check.h"
#include "minka/driver/inputs.h"
#include "minka/driver/parallelize.h"
#include "minka/ir/hlo_proto.h"
#include "minka/models/bert.h"
#include "minka/models/gpt.h"
#include "minka/models/mlp.h"
#include "minka/models/unet.h"
#include "minka/models/wresnet.h"
#include "minka/oracle/oracle.h"
#include "step_inputs.h"
#include "tests/support/collectives.h"
#include "tests/support/rotation.h"

namespace minka {
namespace {

constexpr int kSteps = 3;
constexpr uint64_t kSeed = 7;

Model SmallModel(const std::string& name) {
  if (name == "mlp") return Mlp({.batch = 32, .hidden = 64, .num_layers = 3});
  if (name == "gpt") {
    return Gpt({.batch = 32,
                .sequence = 16,
                .vocabulary = 64,
                .hidden = 32,
                .num_layers = 2,
                .num_heads = 4,
                .dropout = 0.1});
  }
  if (name == "moe") {
    return Gpt({.batch = 32,
                .sequence = 16,
                .vocabulary = 64,
                .hidden = 32,
                .num_layers = 2,
                .num_heads = 4,
                .mlp_factor = 2,
                .experts = GptExperts{.num_experts = 8, .group_size = 16}});
  }
  if (name == "wresnet") {
    return WideResNet({.batch = 32,
                       .image_size = 8,
                       .num_classes = 16,
                       .width = 8,
                       .blocks_per_stage = {1, 1},
                       .small_images = true});
  }
  if (name == "unet") {
    return Unet({.batch = 32, .image_size = 8, .width = 16, .num_blocks = 2, .num_heads = 2});
  }
  // Not 64 words: with as many words as labels / 2 a label that occurs twice has a bias gradient of
  // almost zero by cancellation, whose rounding Adam makes as large as any update.
  return BertMaskedLanguageModel({.batch = 32,
                                  .sequence = 16,
                                  .vocabulary = 96,
                                  .hidden = 32,
                                  .num_layers = 2,
                                  .num_heads = 4});
}

// The name is that of a model, or "adafactor" for the perceptron with all that can stand between
// its gradients and its parameters.
TracedStep TraceSmall(const std::string& name) {
  // Gradients of U-Net's convolutions are almost zero in places, and Adam makes their rounding
  // noise as large as any update.
  if (name == "unet") return Trace(SmallModel(name), Sgd({.momentum = 0.9})).value();
  if (name != "adafactor") {
    return Trace(SmallModel(name), AdamW({.weight_decay = 0.01})).value();
  }
  LearningRate rate = 1e-2;
  rate.decay = LearningRate::Decay::kCosine;
  rate.warmup_updates = 2;
  rate.decay_updates = 10;
  return Trace(SmallModel("mlp"), Adafactor({.learning_rate = rate, .min_factored_dim = 16}),
               {.scaling = {.loss_scale = LossScale{.growth_interval = 2}, .clip_norm = 0.1}})
      .value();
}

const LocalDevices& Devices() {
  static const LocalDevices devices = OpenLocalDevices({.num_devices = 8}).value();
  return devices;
}

// Batch normalisation in micro-batches takes its statistics from each: those of the full batch if
// all micro-batches are equal, as their inputs are.
MicroBatchOptions MicroBatchesOf(const std::string& model, int count) {
  return {.num_micro_batches = count, .per_micro_batch = count > 1 && model == "wresnet"};
}

// The step with what one device makes of it, which all plans are compared with.
struct Subject {
  TracedStep traced;
  StepInputs inputs;
  OneDeviceResults one_device;
};

const Subject& SubjectOf(const std::string& model, int num_equal_slices) {
  static std::map<std::pair<std::string, int>, Subject> subjects;
  auto [it, is_new] = subjects.try_emplace({model, num_equal_slices});
  if (is_new) {
    Subject& subject = it->second;
    subject.traced = TraceSmall(model);
    subject.inputs = InputsOf(subject.traced, kSeed, num_equal_slices);
    subject.one_device =
        RunOnOneDevice(subject.traced.step, Devices().client, subject.inputs, kSteps).value();
  }
  return it->second;
}

// A relu whose input lies within rounding of zero may go either way, by the order of a sum.
std::string Failures(Parallelized& run, const Subject& subject) {
  auto report = CompareWithOneDevice(subject.traced.step, run.runner(), subject.inputs, kSteps,
                                     subject.one_device);
  if (report.ok() && !report->ok()) report = CheckAgainstOneDevice(run, subject.inputs, kSteps);
  if (!report.ok()) return Message(report.status());
  for (const std::string& decision : report->turned) std::printf("%s\n", decision.c_str());
  return report->Failures();
}

// Model, rematerialisation, method, mesh, micro-batches.
using Case = std::tuple<std::string, std::string, std::string, std::string, int>;

class SameResult : public testing::TestWithParam<Case> {};

TEST_P(SameResult, AsOneDeviceWithThePlansCollectives) {
  const auto& [model, remat, method, mesh, num_micro_batches] = GetParam();
  const MicroBatchOptions micro_batches = MicroBatchesOf(model, num_micro_batches);
  const Subject& subject = SubjectOf(model, micro_batches.per_micro_batch ? num_micro_batches : 1);
  const ParallelMethod parallel = MakeMethod(*ParseMethod(method), mesh, {.time_limit_seconds = 4},
                                             micro_batches, RematChoice{*ParseRematPolicy(remat)});
  auto run = Parallelize(subject.traced, Cluster::Local(8), parallel, {.devices = Devices()});
  ASSERT_TRUE(run.ok()) << Message(run.status());
  EXPECT_EQ(Failures(*run, subject), "");
  EXPECT_THAT(run->plan().unsupported_ops, testing::IsEmpty());

  const auto bytes = run->runner().executor().executables()[0]->OptimizedModule();
  ASSERT_TRUE(bytes.ok()) << Message(bytes.status());
  const auto optimized = ImportHlo(*bytes);
  ASSERT_TRUE(optimized.ok()) << Message(optimized.status());
  const std::vector<CollectiveInstruction> compiled = CollectivesOf(*optimized);
  const std::vector<CollectiveInstruction> planned =
      CollectivesOf(run->plan(), run->prepared().module);
  std::vector<CollectiveInstruction> added;
  std::vector<CollectiveInstruction> missing;
  std::ranges::set_difference(compiled, planned, std::back_inserter(added));
  std::ranges::set_difference(planned, compiled, std::back_inserter(missing));
  EXPECT_THAT(added, testing::IsEmpty());
  EXPECT_THAT(missing, testing::IsEmpty());
}

std::string CaseName(const testing::TestParamInfo<Case>& info) {
  const auto& [model, remat, method, mesh, num_micro_batches] = info.param;
  return model + (remat == "none" ? "_" : "_remat_" + remat + "_") + method + "_" + mesh +
         (num_micro_batches > 1 ? "_micro" : "");
}

// For each model every method on every mesh, each with one of the combinations of policy and
// number of micro-batches, by a Latin square: any two of method, mesh, policy and number come
// together, and as many rotations as there are combinations run all of the product.
std::vector<Case> RotatedCases(const std::vector<std::string>& models,
                               const std::vector<std::string>& remats) {
  constexpr const char* kMethods[] = {"data", "zero2", "zero3", "shard"};
  constexpr const char* kMeshes[] = {"8", "2x4", "2x2x2"};
  constexpr int kMicroBatches[] = {1, 4};
  std::vector<Case> cases;
  for (size_t model = 0; model < models.size(); ++model) {
    for (size_t method = 0; method < std::size(kMethods); ++method) {
      for (size_t mesh = 0; mesh < std::size(kMeshes); ++mesh) {
        const size_t combination =
            (TestRotation() + model + method + mesh) % (remats.size() * std::size(kMicroBatches));
        cases.emplace_back(models[model], remats[combination / std::size(kMicroBatches)],
                           kMethods[method], kMeshes[mesh],
                           kMicroBatches[combination % std::size(kMicroBatches)]);
      }
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Models, SameResult,
                         testing::ValuesIn(RotatedCases({"mlp", "gpt", "bert"}, {"none", "all"})),
                         CaseName);

INSTANTIATE_TEST_SUITE_P(ExpertsAndImages, SameResult,
                         testing::ValuesIn(RotatedCases({"moe", "wresnet", "unet"}, {"none"})),
                         CaseName);

INSTANTIATE_TEST_SUITE_P(KeptDots, SameResult,
                         testing::Combine(testing::Values("mlp", "gpt", "moe"),
                                          testing::Values("dots"), testing::Values("data", "shard"),
                                          testing::Values("2x4"), testing::Values(1, 4)),
                         CaseName);

INSTANTIATE_TEST_SUITE_P(Updates, SameResult,
                         testing::Combine(testing::Values("adafactor"), testing::Values("none"),
                                          testing::Values("data", "shard"),
                                          testing::Values("8", "2x4"), testing::Values(1)),
                         CaseName);

Optimizer OptimizerOf(const std::string& name) {
  if (name == "lamb") return Lamb({.weight_decay = 0.01});
  if (name == "lion") return Lion();
  if (name == "nesterov") return Sgd({.momentum = 0.9, .nesterov = true});
  return AdamW({.weight_decay = 0.01});
}

// Model, type to compute in (state stays f32), optimizer, method, micro-batches.
using TypesCase = std::tuple<std::string, ElementType, std::string, std::string, int>;

class SameResultInTypes : public testing::TestWithParam<TypesCase> {};

TEST_P(SameResultInTypes, AsOneDeviceToRounding) {
  const auto& [model, type, optimizer, method, num_micro_batches] = GetParam();
  static std::map<std::string, Subject> subjects;
  auto [it, is_new] =
      subjects.try_emplace(fmt::format("{} {} {}", model, TypeName(type), optimizer));
  Subject& subject = it->second;
  if (is_new) {
    subject.traced =
        Trace(SmallModel(model), OptimizerOf(optimizer), {.dtype = {.compute = type}}).value();
    subject.inputs = InputsOf(subject.traced, kSeed);
    subject.one_device =
        RunOnOneDevice(subject.traced.step, Devices().client, subject.inputs, kSteps).value();
  }
  auto run = Parallelize(subject.traced, Cluster::Local(8),
                         MakeMethod(*ParseMethod(method), "2x4", {.time_limit_seconds = 4},
                                    {.num_micro_batches = num_micro_batches}),
                         {.devices = Devices()});
  ASSERT_TRUE(run.ok()) << Message(run.status());
  EXPECT_EQ(Failures(*run, subject), "");
}

std::string TypesCaseName(const testing::TestParamInfo<TypesCase>& info) {
  const auto& [model, type, optimizer, method, num_micro_batches] = info.param;
  return fmt::format("{}_{}_{}_{}{}", model, TypeName(type), optimizer, method,
                     num_micro_batches > 1 ? "_micro" : "");
}

INSTANTIATE_TEST_SUITE_P(Optimizers, SameResultInTypes,
                         testing::Combine(testing::Values("mlp"),
                                          testing::Values(ElementType::kF32, ElementType::kBF16),
                                          testing::Values("lamb", "lion", "nesterov"),
                                          testing::Values("shard"), testing::Values(1, 4)),
                         TypesCaseName);

INSTANTIATE_TEST_SUITE_P(NarrowTypes, SameResultInTypes,
                         testing::Combine(testing::Values("gpt"),
                                          testing::Values(ElementType::kBF16, ElementType::kF16),
                                          testing::Values("adamw"), testing::Values("shard"),
                                          testing::Values(1)),
                         TypesCaseName);

INSTANTIATE_TEST_SUITE_P(NarrowBert, SameResultInTypes,
                         testing::Combine(testing::Values("bert"),
                                          testing::Values(ElementType::kF16),
                                          testing::Values("adamw"), testing::Values("data"),
                                          testing::Values(4)),
                         TypesCaseName);

TEST(NarrowSums, OfGradientsOfMicroBatchesDifferByRounding) {
  Subject subject;
  subject.traced =
      Trace(SmallModel("mlp"), Sgd({.momentum = 0.9}), {.dtype = {.compute = ElementType::kBF16}})
          .value();
  subject.inputs = InputsOf(subject.traced, kSeed);
  subject.one_device =
      RunOnOneDevice(subject.traced.step, Devices().client, subject.inputs, kSteps).value();
  const auto run_with = [&](bool narrow_sums) {
    return Parallelize(subject.traced, Cluster::Local(8),
                       DataParallel{.num_micro_batches = 4, .narrow_sums = narrow_sums},
                       {.devices = Devices()});
  };
  auto wide = run_with(false), narrow = run_with(true);
  ASSERT_TRUE(wide.ok()) << Message(wide.status());
  ASSERT_TRUE(narrow.ok()) << Message(narrow.status());
  EXPECT_LT(narrow->plan().peak_memory_bytes, wide->plan().peak_memory_bytes);
  EXPECT_EQ(Failures(*narrow, subject), "");
}

TEST(BatchStatistics, AreRefusedInMicroBatchesUnlessTakenOverEach) {
  const auto run = Parallelize(TraceSmall("wresnet"), Cluster::Local(8),
                               DataParallel{.num_micro_batches = 4}, {.devices = Devices()});
  EXPECT_THAT(Message(run.status()), testing::HasSubstr("--per-micro-batch"));
}

TEST(BatchStatistics, OfEachMicroBatchAreComparedWithOneDeviceThatTakesThemSo) {
  const TracedStep traced = Trace(WideResNet({.batch = 32,
                                              .image_size = 4,
                                              .num_classes = 16,
                                              .width = 4,
                                              .blocks_per_stage = {1},
                                              .small_images = true}),
                                  Sgd({.momentum = 0.9}))
                                .value();
  const StepInputs inputs = InputsOf(traced, kSeed);
  auto run = Parallelize(traced, Cluster::Local(8),
                         DataParallel{.num_micro_batches = 2, .per_micro_batch = true},
                         {.devices = Devices()});
  ASSERT_TRUE(run.ok()) << Message(run.status());
  const auto failures = [&](const MicroBatchOptions& micro_batches) {
    const auto one_device =
        RunOnOneDevice(traced.step, micro_batches, Devices().client, inputs, /*num_steps=*/1);
    MINKA_CHECK(one_device.ok(), "{}", Message(one_device.status()));
    const auto report =
        CompareWithOneDevice(traced.step, run->runner(), inputs, /*num_steps=*/1, *one_device);
    MINKA_CHECK(report.ok(), "{}", Message(report.status()));
    return report->Failures();
  };
  EXPECT_EQ(failures(PreparationOf(run->plan()).micro_batches), "");
  EXPECT_NE(failures({}), "") << "statistics of the full batch are others";
}

// A loop and a branch over examples that know their places in the batch, and a sum over both.
constexpr char kLoopOverExamples[] = R"(HloModule loop

add {
  p = f32[] parameter(0)
  q = f32[] parameter(1)
  ROOT s = f32[] add(p, q)
}

shifted {
  a = f32[32,8] parameter(0)
  places = f32[32,8] iota(), iota_dimension=0
  ROOT sum = f32[32,8] add(a, places)
}

same {
  ROOT a = f32[32,8] parameter(0)
}

body {
  i = s32[] parameter(0)
  x = f32[32,8] parameter(1)
  total = f32[8] parameter(2)
  w = f32[8] parameter(3)
  one = s32[] constant(1)
  next = s32[] add(i, one)
  zero = f32[] constant(0)
  places = f32[32,8] iota(), iota_dimension=0
  hundredth = f32[] constant(0.01)
  hundredths = f32[32,8] broadcast(hundredth), dimensions={}
  small = f32[32,8] multiply(places, hundredths)
  weights = f32[32,8] broadcast(w), dimensions={1}
  weighted = f32[32,8] multiply(x, weights)
  y = f32[32,8] add(weighted, small)
  is_second = pred[] compare(i, one), direction=EQ
  chosen = f32[32,8] conditional(is_second, y, y), true_computation=shifted, false_computation=same
  part = f32[8] reduce(chosen, zero), dimensions={0}, to_apply=add
  sum = f32[8] add(total, part)
  ROOT carried = (s32[], f32[32,8], f32[8], f32[8]) tuple(next, chosen, sum, w)
}

condition {
  i = s32[] parameter(0)
  x = f32[32,8] parameter(1)
  total = f32[8] parameter(2)
  w = f32[8] parameter(3)
  three = s32[] constant(3)
  ROOT less = pred[] compare(i, three), direction=LT
}

ENTRY main {
  x = f32[32,8] parameter(0)
  w = f32[8] parameter(1)
  zero = s32[] constant(0)
  begin = (s32[], f32[32,8], f32[8], f32[8]) tuple(zero, x, w, w)
  loop = (s32[], f32[32,8], f32[8], f32[8]) while(begin), condition=condition, body=body
  y = f32[32,8] get-tuple-element(loop), index=1
  total = f32[8] get-tuple-element(loop), index=2
  new_w = f32[8] subtract(w, total)
  ROOT results = (f32[8], f32[32,8]) tuple(new_w, y)
}
)";

TEST(MicroBatches, LoopsAndBranchesKnowThePlacesOfTheirExamples) {
  const Step step =
      MakeStep(*ParseHloText(kLoopOverExamples), {.batch_inputs = {"0"}, .states = {"1:0"}})
          .value();
  for (const ParallelMethod& method :
       {ParallelMethod(DataParallel{.mesh = "8", .num_micro_batches = 4}),
        ParallelMethod(Shard{.mesh = "2x4", .num_micro_batches = 2})}) {
    auto run = Parallelize(step, Cluster::Local(8), method, {.devices = Devices()});
    ASSERT_TRUE(run.ok()) << Message(run.status());
    const auto report = CheckAgainstOneDevice(
        *run, [&](int number) { return RandomInputs(step, kSeed + number); }, kSteps);
    ASSERT_TRUE(report.ok()) << Message(report.status());
    EXPECT_EQ(report->Failures(), "");
  }
}

// State and temporary bytes of one device, with every weight and moment divided by 8.
struct DeviceBytes {
  int64_t state = 0, temporary = 0;
};

DeviceBytes BytesOf(const TracedStep& traced, const ParallelMethod& method) {
  auto run = Parallelize(traced, Cluster::Local(8), method, {.devices = Devices()});
  MINKA_CHECK(run.ok(), "{}", Message(run.status()));
  const State state = run->Initialize(kSeed).value();
  DeviceBytes bytes;
  for (const auto& array : state.arrays) {
    if (array.empty()) continue;
    bytes.state += LocalArrayOf(array).parts[0].size_bytes();
  }
  EXPECT_EQ(bytes.state, run->plan().state_bytes_per_device);
  bytes.temporary = run->runner().executor().executables()[0]->memory().temp_bytes;
  return bytes;
}

TEST(Zero, StateBytesFallByTheAxisSizeAndGatheredWeightsAreFreed) {
  constexpr int kLayers = 8;
  constexpr int64_t kHidden = 256, kWeightBytes = kLayers * (kHidden + 1) * kHidden * 4;
  const TracedStep traced =
      Trace(Mlp({.batch = 64, .hidden = kHidden, .num_layers = kLayers}), AdamW()).value();
  const DeviceBytes data = BytesOf(traced, DataParallel{});
  const DeviceBytes zero2 = BytesOf(traced, Zero2{});
  const DeviceBytes zero3 = BytesOf(traced, Zero3{});
  const int64_t counters = data.state - 3 * kWeightBytes;
  EXPECT_LT(counters, 64);
  EXPECT_EQ(zero2.state - counters, kWeightBytes + 2 * kWeightBytes / 8);
  EXPECT_EQ(zero3.state - counters, 3 * kWeightBytes / 8);
  // Were the gathered weights kept, they alone would need all their bytes.
  EXPECT_LT(zero3.temporary, kWeightBytes);
}

}  // namespace
}  // namespace minka
