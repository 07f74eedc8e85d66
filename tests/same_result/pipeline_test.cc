// Pipelines of every schedule compute what one device computes.
#include "minka/driver/pipeline.h"

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "gtest/gtest.h"
#include "minka/base/status.h"
#include "minka/driver/parallelize.h"
#include "minka/frontend/trace.h"
#include "minka/models/bert.h"
#include "minka/models/gpt.h"
#include "minka/models/mlp.h"
#include "minka/models/wresnet.h"
#include "minka/oracle/oracle.h"
#include "minka/runtime/mesh/local_devices.h"
#include "step_inputs.h"

namespace minka {
namespace {

constexpr uint64_t kSeed = 3;
constexpr int kSteps = 3;

const LocalDevices& Devices() {
  static const LocalDevices devices = OpenLocalDevices({.num_devices = 8}).value();
  return devices;
}

// With all that ties layers together: weights that two of them read, a global norm, a loss scale.
TracedStep TraceBert() {
  return Trace(BertMaskedLanguageModel({.batch = 32,
                                        .sequence = 16,
                                        .vocabulary = 96,
                                        .hidden = 32,
                                        .num_layers = 4,
                                        .num_heads = 4,
                                        .dropout = 0.1}),
               AdamW({.weight_decay = 0.01}),
               {.scaling = {.loss_scale = LossScale{.growth_interval = 2}, .clip_norm = 0.1}})
      .value();
}

TracedStep TraceSmall(const std::string& name) {
  if (name == "mlp") {
    return Trace(Mlp({.batch = 32, .hidden = 64, .num_layers = 4}), AdamW({})).value();
  }
  if (name == "bert") return TraceBert();
  if (name == "evaluation") {
    return TraceEvaluation(BertMaskedLanguageModel({.batch = 32,
                                                    .sequence = 16,
                                                    .vocabulary = 96,
                                                    .hidden = 32,
                                                    .num_layers = 4,
                                                    .num_heads = 4}))
        .value();
  }
  if (name == "moe") {
    return Trace(Gpt({.batch = 32,
                      .sequence = 16,
                      .vocabulary = 64,
                      .hidden = 32,
                      .num_layers = 4,
                      .num_heads = 4,
                      .dropout = 0.1,
                      .mlp_factor = 2,
                      .experts = GptExperts{.num_experts = 8, .group_size = 16}}),
                 AdamW({.weight_decay = 0.01}))
        .value();
  }
  if (name == "wresnet") {
    return Trace(WideResNet({.batch = 32,
                             .image_size = 8,
                             .num_classes = 16,
                             .width = 8,
                             .blocks_per_stage = {1, 1},
                             .small_images = true}),
                 AdamW({.weight_decay = 0.01}))
        .value();
  }
  return Trace(Gpt({.batch = 32,
                    .sequence = 16,
                    .vocabulary = 96,
                    .hidden = 32,
                    .num_layers = 4,
                    .num_heads = 4}),
               AdamW({.weight_decay = 0.01}))
      .value();
}

struct Subject {
  TracedStep traced;
  StepInputs inputs;
  OneDeviceResults one_device;
};

const Subject& SubjectOf(const std::string& model) {
  static std::map<std::string, Subject> subjects;
  auto [it, is_new] = subjects.try_emplace(model);
  Subject& subject = it->second;
  if (!is_new) return subject;
  subject.traced = TraceSmall(model);
  subject.inputs = InputsOf(subject.traced, kSeed, model == "wresnet" ? 4 : 1);
  subject.one_device =
      RunOnOneDevice(subject.traced.step, Devices().client, subject.inputs, kSteps).value();
  return subject;
}

enum class Place { kInProcess, kInWorkers };

// Model, schedule, meshes, stages, micro-batches.
using Case = std::tuple<std::string, std::string, std::vector<std::string>, int, int, Place>;

// num_layers: 0: those that are marked.
void ExpectWhatOneDeviceComputes(const Case& parameters, int num_layers) {
  const auto& [model, schedule, meshes, num_stages, num_micro_batches, place] = parameters;
  const Subject& subject = SubjectOf(model);
  Pipeline method{.num_micro_batches = num_micro_batches,
                  .options = {.layers = num_layers > 0 ? LayerChoice(AutoLayers{num_layers})
                                                       : LayerChoice(MarkedLayers{}),
                              .num_stages = num_stages,
                              .schedule = schedule},
                  .per_micro_batch = model == "wresnet"};
  if (model == "gpt_remat") method.remat = RematChoice{RematPolicy::kAll};
  for (const std::string& mesh : meshes) method.options.meshes.push_back(Mesh::Parse(mesh).value());
  ParallelizeOptions options{.devices = Devices()};
  if (place == Place::kInWorkers) options.workers = {.binary = MINKA_BINARY};
  auto run = Parallelize(subject.traced, Cluster::Local(8), method, options);
  ASSERT_TRUE(run.ok()) << Message(run.status());
  const auto report = CompareWithOneDevice(subject.traced.step, run->runner(), subject.inputs,
                                           kSteps, subject.one_device);
  ASSERT_TRUE(report.ok()) << Message(report.status());
  EXPECT_EQ(report->Failures(), "");

  const PlannedPipeline& planned = *run->pipeline();
  const std::string json = PipelinePlanToJson(planned.plan, planned.modules());
  const auto loaded = LoadPipeline(subject.traced.step, json);
  ASSERT_TRUE(loaded.ok()) << Message(loaded.status());
  EXPECT_EQ(PipelinePlanToJson(loaded->plan, loaded->modules()), json);
}

class PipelineResult : public testing::TestWithParam<Case> {};

TEST_P(PipelineResult, ComputesWhatOneDeviceComputes) {
  ExpectWhatOneDeviceComputes(GetParam(), 0);
}

// Layers cut anywhere, within attention, experts and residual blocks too.
class PipelineOfLayersByNumber : public testing::TestWithParam<Case> {};

TEST_P(PipelineOfLayersByNumber, ComputesWhatOneDeviceComputes) {
  const int num_stages = std::get<3>(GetParam());
  ExpectWhatOneDeviceComputes(GetParam(), 2 * num_stages + 1);
}

Case Of(const std::string& model, const std::string& schedule, std::vector<std::string> meshes,
        int num_stages, int num_micro_batches, Place place = Place::kInWorkers) {
  return {model, schedule, std::move(meshes), num_stages, num_micro_batches, place};
}

std::string NameOf(const testing::TestParamInfo<Case>& info) {
  const auto& [model, schedule, meshes, num_stages, num_micro_batches, place] = info.param;
  std::string name = fmt::format("{}_{}_{}_stages_{}_micro_batches_on_{}{}", model, schedule,
                                 num_stages, num_micro_batches, fmt::join(meshes, "_"),
                                 place == Place::kInProcess ? "_in_process" : "");
  std::ranges::replace(name, '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(
    Schedules, PipelineResult,
    testing::Values(
        Of("mlp", "gpipe", {"1", "1"}, 2, 4), Of("mlp", "1f1b", {"2", "2"}, 2, 1),
        Of("mlp", "1f1b", {"2", "2"}, 2, 4), Of("mlp", "eager-1f1b", {"1", "2"}, 2, 8),
        Of("mlp", "interleaved-1f1b", {"2", "2"}, 4, 4),
        Of("mlp", "zero-bubble-h1", {"2", "1", "2"}, 3, 4), Of("gpt", "1f1b", {"2x2", "2x2"}, 2, 4),
        Of("gpt", "1f1b", {"1", "2", "1x4"}, 3, 16), Of("gpt", "1f1b", {"8"}, 1, 2),
        Of("gpt", "zero-bubble-h1", {"1", "1", "2", "4"}, 4, 8),
        Of("gpt_remat", "1f1b", {"2", "2x2"}, 2, 4),
        Of("gpt_remat", "zero-bubble-h1", {"1", "2", "2"}, 3, 4),
        Of("bert", "1f1b", {"2", "2x2"}, 2, 4), Of("bert", "interleaved-1f1b", {"4", "4"}, 4, 2),
        Of("bert", "zero-bubble-h1", {"2", "2", "2", "2"}, 4, 4),
        Of("bert", "gpipe", {"4", "2"}, 2, 1), Of("moe", "1f1b", {"4", "4"}, 2, 4),
        Of("moe", "zero-bubble-h1", {"4", "2", "1"}, 3, 2), Of("wresnet", "1f1b", {"4", "4"}, 2, 4),
        Of("evaluation", "inference", {"2", "2x2"}, 2, 4)),
    NameOf);

INSTANTIATE_TEST_SUITE_P(
    Models, PipelineOfLayersByNumber,
    testing::Values(Of("mlp", "1f1b", {"2", "2"}, 2, 4, Place::kInProcess),
                    Of("gpt", "1f1b", {"1", "2", "1x4"}, 3, 4, Place::kInProcess),
                    Of("gpt_remat", "1f1b", {"2", "2"}, 2, 2, Place::kInProcess),
                    Of("bert", "zero-bubble-h1", {"2", "2", "2", "2"}, 4, 4, Place::kInProcess),
                    Of("moe", "1f1b", {"4", "2", "1"}, 3, 2, Place::kInProcess),
                    Of("wresnet", "1f1b", {"2", "2"}, 2, 4, Place::kInProcess),
                    Of("evaluation", "inference", {"2", "2x2"}, 2, 4, Place::kInProcess)),
    NameOf);

// The same lists, played by one thread.
INSTANTIATE_TEST_SUITE_P(
    InProcess, PipelineResult,
    testing::Values(Of("mlp", "interleaved-1f1b", {"2", "2"}, 4, 4, Place::kInProcess),
                    Of("gpt", "1f1b", {"1", "2", "1x4"}, 3, 16, Place::kInProcess),
                    Of("bert", "zero-bubble-h1", {"2", "2", "2", "2"}, 4, 4, Place::kInProcess),
                    Of("evaluation", "inference", {"2", "2x2"}, 2, 4, Place::kInProcess)),
    NameOf);

// Less than the pipeline of two stages takes when nothing limits it.
TEST(PipelineUnderALimit, ComputesWhatOneDeviceComputes) {
  const Subject& subject = SubjectOf("gpt");
  const auto parallelize = [&](std::optional<int64_t> limit) {
    const Pipeline method{.num_micro_batches = 2,
                          .options = {.num_stages = 2},
                          .search = {.memory_limit_bytes = limit}};
    return Parallelize(subject.traced, Cluster::Local(4), method, {.devices = Devices()});
  };
  const auto free = parallelize(std::nullopt);
  ASSERT_TRUE(free.ok()) << Message(free.status());
  const int64_t limit = free->pipeline()->plan.peak_memory_bytes * 6 / 10;
  auto run = parallelize(limit);
  ASSERT_TRUE(run.ok()) << Message(run.status());
  const PipelinePlan& plan = run->pipeline()->plan;
  EXPECT_EQ(plan.memory_tier, MemoryTier::kCompiled);
  EXPECT_LE(plan.peak_memory_bytes, limit);
  EXPECT_FALSE(plan.remat.empty());
  const auto report = CompareWithOneDevice(subject.traced.step, run->runner(), subject.inputs,
                                           kSteps, subject.one_device);
  ASSERT_TRUE(report.ok()) << Message(report.status());
  EXPECT_EQ(report->Failures(), "");
}

}  // namespace
}  // namespace minka
