// Alpa's tests of pipelines (OSDI'22) with the same sizes: what they compute is what one device
// computes.
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/base/status.h"
#include "minka/driver/evaluation.h"
#include "minka/driver/inputs.h"
#include "minka/driver/parallelize.h"
#include "minka/frontend/nn.h"
#include "minka/frontend/trace.h"
#include "minka/oracle/oracle.h"
#include "minka/runtime/mesh/local_devices.h"
#include "tests/same_result/step_inputs.h"

namespace minka {
namespace {

constexpr uint64_t kSeed = 5;

const LocalDevices& Devices() {
  static const LocalDevices devices = OpenLocalDevices({.num_devices = 4}).value();
  return devices;
}

// Dense layers in blocks, as many in each, and the mean squared error.
Model DenseLayers(int64_t batch, int64_t width, int num_blocks, int layers_per_block) {
  const Shape shape{ElementType::kF32, {batch, width}};
  return {.name = "dense_layers",
          .inputs = {{"x", shape}, {"y", shape}},
          .forward = [=](const Scope& scope, std::span<const Tensor> inputs) {
            Tensor x = inputs[0];
            for (int i = 0; i < num_blocks; ++i) {
              x = (scope / fmt::format("block_{}", i)).Block(x, [&](const Scope& block, Tensor in) {
                for (int j = 0; j < layers_per_block; ++j) {
                  in = Dense(block / fmt::format("dense_{}", j), in, {.features = {width}});
                }
                return in;
              });
            }
            const Tensor difference = x - inputs[1];
            return ModelOutput{.loss = Mean(difference * difference, {0, 1}),
                               .outputs = {{"y", x}}};
          }};
}

// A table of 256 rows looked up at the bottom and multiplied with at the top; the loss is a sum.
Model TiedTable() {
  constexpr int64_t kRows = 256, kWidth = 16;
  return {.name = "tied_table",
          .inputs = {{"tokens", {ElementType::kS32, {8, 8}}, kRows}},
          .forward = [=](const Scope& scope, std::span<const Tensor> inputs) {
            const Tensor table =
                EmbeddingTable(scope / "table", {.num_rows = kRows, .features = kWidth});
            const Tensor x = (scope / "look_up").Block(inputs[0], [&](const Scope&, Tensor ids) {
              return EmbeddingRows(table, ids, ElementType::kF32);
            });
            const Tensor logits = Einsum("bsh,vh->bsv", x, table);
            return ModelOutput{.loss = Sum(logits, {0, 1, 2})};
          }};
}

void ExpectAsOneDevice(const TracedStep& traced, const Pipeline& method, int num_steps) {
  auto run = Parallelize(traced, Cluster::Local(4), method, {.devices = Devices()});
  ASSERT_TRUE(run.ok()) << Message(run.status());
  const StepInputs inputs = InputsOf(traced, kSeed);
  const auto one_device = RunOnOneDevice(traced.step, Devices().client, inputs, num_steps);
  ASSERT_TRUE(one_device.ok()) << Message(one_device.status());
  const auto report =
      CompareWithOneDevice(traced.step, run->runner(), inputs, num_steps, *one_device);
  ASSERT_TRUE(report.ok()) << Message(report.status());
  EXPECT_EQ(report->Failures(), "");
}

Pipeline TwoStages(int num_micro_batches, std::vector<int> submeshes = {2, 2}) {
  Pipeline method{.num_micro_batches = num_micro_batches};
  method.options.num_stages = 2;
  method.options.submeshes = std::move(submeshes);
  return method;
}

TEST(PipelineRows, DenseLayersWithMomentum) {
  const TracedStep traced =
      Trace(DenseLayers(64, 16, 2, 2), Sgd({.learning_rate = 1e-2, .momentum = 0.9})).value();
  for (const char* schedule : {"gpipe", "1f1b"}) {
    Pipeline method = TwoStages(4);
    method.options.schedule = schedule;
    ExpectAsOneDevice(traced, method, 3);
  }
}

TEST(PipelineRows, DenseLayersOnOneDeviceEach) {
  ExpectAsOneDevice(Trace(DenseLayers(64, 16, 2, 2), Sgd()).value(), TwoStages(4, {1, 1}), 3);
}

TEST(PipelineRows, AMarkedLayerMayBeRecomputed) {
  Pipeline method = TwoStages(4);
  method.remat = RematChoice{RematPolicy::kAll};
  ExpectAsOneDevice(Trace(DenseLayers(64, 16, 2, 2), Sgd()).value(), method, 3);
}

TEST(PipelineRows, SixDenseLayersInTwoStages) {
  ExpectAsOneDevice(Trace(DenseLayers(128, 128, 6, 1), AdamW()).value(), TwoStages(2), 2);
}

TEST(PipelineRows, ATableThatTwoStagesRead) {
  ExpectAsOneDevice(Trace(TiedTable(), AdamW({.learning_rate = 1e-2})).value(), TwoStages(2), 2);
}

TEST(PipelineRows, AStageMayForbidGatheringAndPinItsWeights) {
  Pipeline method = TwoStages(2);
  method.options.meshes = {Mesh({{"dummy", 1}, {"model", 2}}), Mesh({{"dummy", 1}, {"data", 2}})};
  method.options.submeshes.clear();
  method.options.stage_pins = {{"params/block_0/dense_0/kernel=[-,model]"}, {"y=[-,data,-]"}};
  const TracedStep traced = Trace(DenseLayers(64, 16, 2, 2), Sgd()).value();
  const PlanRequest request = RequestFor(Cluster::Local(4), method, {}).value();
  const auto planned = PlanPipeline(traced.step, request);
  ASSERT_TRUE(planned.ok()) << Message(planned.status());
  const auto program = LowerPipeline(*planned);
  ASSERT_TRUE(program.ok()) << Message(program.status());
  for (size_t i = 0; i < traced.step.parameters.size(); ++i) {
    if (traced.step.parameters[i].name != "params/block_0/dense_0/kernel") continue;
    const MeshSlot at = program->parameters[i].front();
    EXPECT_EQ(at.mesh, 0);
    EXPECT_EQ(ToString(LocalShape(program->slot(at).shape, program->slot(at).sharding,
                                  program->meshes[0].mesh)),
              "f32[16,8]");
  }
  ExpectAsOneDevice(traced, method, 2);
}

// Parameters lie where the training has them, another batch goes through.
TEST(PipelineRows, AnEvaluationFollowsItsTraining) {
  const TracedStep training = Trace(DenseLayers(32, 8, 4, 1), AdamW()).value();
  const TracedStep evaluation = TraceEvaluation(DenseLayers(64, 8, 4, 1)).value();
  const auto loss_by = [&](const ParallelMethod& method) {
    auto run = Parallelize(training, Cluster::Local(4), method, {.devices = Devices()}).value();
    Evaluation evaluated = Evaluation::Create(evaluation, run, Cluster::Local(4), {}).value();
    State state = run.Initialize(kSeed).value();
    Batch batch;
    for (size_t i = 0; i < evaluation.step.parameters.size(); ++i) {
      if (evaluation.step.parameters[i].role != ParameterRole::kBatch) continue;
      batch.push_back(RandomInput(evaluation.step, static_cast<int>(i), kSeed).value());
    }
    const std::vector<Literal> results = evaluated.Run(state, batch).value();
    return ScalarValue(results[evaluated.FindResult("loss")]);
  };
  const double of_shard = loss_by(Shard{});
  EXPECT_NEAR(loss_by(TwoStages(2)), of_shard, 1e-5 * of_shard);
}

}  // namespace
}  // namespace minka
