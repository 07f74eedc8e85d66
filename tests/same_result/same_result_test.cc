// Whole training steps, planned and run on eight devices, against one device, and the collectives
// of what XLA runs against those of the plan.
#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/base/status.h"
#include "minka/driver/inputs.h"
#include "minka/driver/oracle.h"
#include "minka/driver/parallelize.h"
#include "minka/ir/hlo_proto.h"
#include "minka/models/bert.h"
#include "minka/models/gpt.h"
#include "minka/models/mlp.h"
#include "tests/support/collectives.h"

namespace minka {
namespace {

constexpr int kSteps = 3;
constexpr uint64_t kSeed = 7;

Model SmallModel(const std::string& name) {
  if (name == "mlp") return Mlp({.batch = 32, .hidden = 64, .num_layers = 3});
  if (name == "gpt") {
    return Gpt({.batch = 8,
                .sequence = 16,
                .vocabulary = 64,
                .hidden = 32,
                .num_layers = 2,
                .num_heads = 4,
                .dropout = 0.1});
  }
  if (name == "moe") {
    return Gpt({.batch = 8,
                .sequence = 16,
                .vocabulary = 64,
                .hidden = 32,
                .num_layers = 2,
                .num_heads = 4,
                .mlp_factor = 2,
                .experts = GptExperts{.num_experts = 8, .group_size = 16}});
  }
  // Not 64 words: with as many words as labels / 2 a label that occurs twice has a bias gradient of
  // almost zero by cancellation, whose rounding Adam makes as large as any update.
  return BertMaskedLanguageModel({.batch = 8,
                                  .sequence = 16,
                                  .vocabulary = 96,
                                  .hidden = 32,
                                  .num_layers = 2,
                                  .num_heads = 4});
}

// The name is that of a model, or "adafactor" for the perceptron with all that can stand between
// its gradients and its parameters.
TracedStep TraceSmall(const std::string& name, bool rematerialize) {
  if (name != "adafactor") {
    return Trace(SmallModel(name), AdamW({.weight_decay = 0.01}), {.rematerialize = rematerialize})
        .value();
  }
  Schedule rate = 1e-2;
  rate.decay = Schedule::Decay::kCosine;
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

StepInputs InputsOf(const TracedStep& traced) {
  return [&traced](int step) -> absl::StatusOr<ParameterValues> {
    ParameterValues values = InitialValues(traced.step, traced.initializers, kSeed);
    for (int i = 0; i < static_cast<int>(values.size()); ++i) {
      if (values[i].bytes) continue;
      ASSIGN_OR_RETURN(values[i], RandomInput(traced.step, i, kSeed + step));
    }
    return values;
  };
}

// The step with what one device makes of it, which all plans are compared with.
struct Subject {
  TracedStep traced;
  OneDeviceResults one_device;
};

const Subject& SubjectOf(const std::string& model, bool rematerialize) {
  static std::map<std::pair<std::string, bool>, Subject> subjects;
  auto [it, is_new] = subjects.try_emplace({model, rematerialize});
  if (is_new) {
    Subject& subject = it->second;
    subject.traced = TraceSmall(model, rematerialize);
    subject.one_device =
        RunOnOneDevice(subject.traced.step, Devices().client, InputsOf(subject.traced), kSteps)
            .value();
  }
  return it->second;
}

using Case = std::tuple<std::string, bool, std::string, std::string>;  // model, remat, method, mesh

class SameResult : public testing::TestWithParam<Case> {};

TEST_P(SameResult, AsOneDeviceWithThePlansCollectives) {
  const auto& [model, rematerialize, method, mesh] = GetParam();
  const Subject& subject = SubjectOf(model, rematerialize);
  const ParallelMethod parallel = method == "data" ? ParallelMethod(DataParallel{.mesh = mesh})
                                                   : ParallelMethod(Shard{.mesh = mesh});
  auto run = Parallelize(subject.traced, Cluster::Local(8), parallel,
                         {.search_seconds = 20, .devices = Devices()});
  ASSERT_TRUE(run.ok()) << Message(run.status());
  const auto report = CompareWithOneDevice(subject.traced.step, run->runner(),
                                           InputsOf(subject.traced), kSteps, subject.one_device);
  ASSERT_TRUE(report.ok()) << Message(report.status());
  EXPECT_EQ(report->Failures(), "");
  EXPECT_THAT(run->plan().unsupported_ops, testing::IsEmpty());

  const auto bytes = run->runner().executor().executable().OptimizedModule();
  ASSERT_TRUE(bytes.ok()) << Message(bytes.status());
  const auto optimized = ImportHlo(*bytes);
  ASSERT_TRUE(optimized.ok()) << Message(optimized.status());
  EXPECT_EQ(CollectivesOf(*optimized), CollectivesOf(run->plan(), run->prepared().module));
  // The compiled tier is exact: the meter sees no more than the plan says.
  EXPECT_LE(run->runner().executor().executable().memory().total_bytes(),
            run->plan().peak_memory_bytes);
}

std::string CaseName(const testing::TestParamInfo<Case>& info) {
  const auto& [model, rematerialize, method, mesh] = info.param;
  return model + (rematerialize ? "_remat_" : "_") + method + "_" + mesh;
}

INSTANTIATE_TEST_SUITE_P(Models, SameResult,
                         testing::Combine(testing::Values("mlp", "gpt", "bert"), testing::Bool(),
                                          testing::Values("data", "shard"),
                                          testing::Values("8", "2x4", "4x2", "2x2x2")),
                         CaseName);

INSTANTIATE_TEST_SUITE_P(Experts, SameResult,
                         testing::Combine(testing::Values("moe"), testing::Values(false),
                                          testing::Values("shard"),
                                          testing::Values("8", "2x4", "2x2x2")),
                         CaseName);

INSTANTIATE_TEST_SUITE_P(Updates, SameResult,
                         testing::Combine(testing::Values("adafactor"), testing::Values(false),
                                          testing::Values("data", "shard"),
                                          testing::Values("8", "2x4")),
                         CaseName);

TEST(Rematerialization, LowersTemporaryBytes) {
  const Model model = Gpt({.batch = 64,
                           .sequence = 64,
                           .vocabulary = 64,
                           .hidden = 64,
                           .num_layers = 4,
                           .num_heads = 4});
  int64_t temp_bytes[2] = {};
  for (const bool rematerialize : {false, true}) {
    const TracedStep traced = Trace(model, Sgd(), {.rematerialize = rematerialize}).value();
    const auto run = Parallelize(traced, Cluster::Local(8), DataParallel{}, {.devices = Devices()});
    ASSERT_TRUE(run.ok()) << Message(run.status());
    temp_bytes[rematerialize] = run->runner().executor().executable().memory().temp_bytes;
  }
  EXPECT_LT(static_cast<double>(temp_bytes[1]), 0.75 * static_cast<double>(temp_bytes[0]));
}

}  // namespace
}  // namespace minka
