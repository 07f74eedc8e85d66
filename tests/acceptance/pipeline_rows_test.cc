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
#include "minka/frontend/trace.h"
#include "minka/models/bert.h"
#include "minka/oracle/oracle.h"
#include "minka/program/pipeline_program.h"
#include "minka/runtime/mesh/local_devices.h"
#include "minka/runtime/mesh/step_runner.h"
#include "minka/runtime/pipeline/session.h"
#include "tests/acceptance/pipeline_models.h"
#include "tests/same_result/step_inputs.h"

namespace minka {
namespace {

constexpr uint64_t kSeed = 5;

const LocalDevices& Devices() {
  static const LocalDevices devices = OpenLocalDevices({.num_devices = 8}).value();
  return devices;
}

void ExpectAsOneDevice(const TracedStep& traced, const Pipeline& method, int num_steps,
                       int num_devices = 4) {
  auto run = Parallelize(traced, Cluster::Local(num_devices), method, {.devices = Devices()});
  ASSERT_TRUE(run.ok()) << Message(run.status());
  const StepInputs inputs = InputsOf(traced, kSeed);
  const auto one_device = RunOnOneDevice(traced.step, Devices().client, inputs, num_steps);
  ASSERT_TRUE(one_device.ok()) << Message(one_device.status());
  const auto report =
      CompareWithOneDevice(traced.step, run->runner(), inputs, num_steps, *one_device);
  ASSERT_TRUE(report.ok()) << Message(report.status());
  EXPECT_EQ(report->Failures(), "");
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

// Smaller than Alpa's (batch 16, sequence 256, hidden 512, 8 heads).
Model SmallBert(int num_layers) {
  return BertLayers({.batch = 8,
                     .sequence = 16,
                     .hidden = 32,
                     .num_layers = num_layers,
                     .num_heads = 4,
                     .dropout = 0});
}

TEST(PipelineRows, GradientsWithoutAnUpdate) {
  for (const std::vector<int>& submeshes : {std::vector<int>{1, 1}, {2, 2}}) {
    ExpectAsOneDevice(Trace(DenseLayers(64, 16, 2, 2), GivesGradients()).value(),
                      TwoStages(4, submeshes), 1);
    ExpectAsOneDevice(Trace(SmallBert(2), GivesGradients()).value(), TwoStages(4, submeshes), 1);
  }
}

TEST(PipelineRows, LayersThatAreFound) {
  const auto automatic = [](int num_layers) {
    Pipeline method = TwoStages(4);
    method.options.layers = AutoLayers{num_layers};
    return method;
  };
  ExpectAsOneDevice(Trace(DenseLayers(64, 16, 1, 4), Sgd()).value(), automatic(2), 3);
  ExpectAsOneDevice(Trace(SmallBert(2), AdamW({.learning_rate = 1e-2})).value(), automatic(2), 1);
}

TEST(PipelineRows, EightLayersOnAsManyDevices) {
  Pipeline method{.num_micro_batches = 4};
  method.options.num_stages = 8;
  method.options.layers = AutoLayers{8};
  method.remat = RematChoice{RematPolicy::kAll};
  const TracedStep traced = Trace(SmallBert(8), AdamW({.learning_rate = 1e-2})).value();
  ExpectAsOneDevice(traced, method, 1, 8);
}

TEST(PipelineRows, BertLayersMayBeRecomputed) {
  for (const LayerChoice& layers : {LayerChoice(MarkedLayers{}), LayerChoice(AutoLayers{2})}) {
    Pipeline method = TwoStages(4);
    method.options.layers = layers;
    method.remat = RematChoice{RematPolicy::kAll};
    ExpectAsOneDevice(Trace(SmallBert(2), AdamW({.learning_rate = 1e-2})).value(), method, 1);
  }
}

TEST(PipelineRows, AGlobalNormOverBothStages) {
  const TraceOptions options{.scaling = {.clip_norm = 0.05}};
  ExpectAsOneDevice(Trace(DenseLayers(64, 16, 2, 2), Adam(), options).value(), TwoStages(4), 3);
}

// Batch forced to the first dimension of a (1,2) mesh, which leaves the other axis to operators,
// and of a (2,1) mesh.
TEST(PipelineRows, BatchesForcedToADimensionOfEachMesh) {
  const TracedStep traced = Trace(BertLayers({.batch = 4,
                                              .sequence = 4,
                                              .hidden = 4,
                                              .num_layers = 2,
                                              .num_heads = 1,
                                              .dropout = 0}),
                                  Adam())
                                .value();
  for (const Mesh& mesh :
       {Mesh({{"batch", 1}, {"model", 2}}), Mesh({{"batch", 2}, {"model", 1}})}) {
    Pipeline method{.num_micro_batches = 2};
    method.options.meshes = {mesh, mesh};
    method.options.stage_search.assign(2, {.limits = SearchLimits{.batch_axis = "batch"}});
    ExpectAsOneDevice(traced, method, 1);
  }
}

TEST(PipelineRows, StagesThatAreFound) {
  Pipeline method{.num_micro_batches = 4};
  ExpectAsOneDevice(Trace(DenseLayers(64, 16, 2, 2), Sgd()).value(), method, 3);
  ExpectAsOneDevice(Trace(SmallBert(2), AdamW({.learning_rate = 1e-2})).value(), method, 1);
  method.options.layers = AutoLayers{4};
  ExpectAsOneDevice(Trace(DenseLayers(64, 16, 2, 2), Sgd()).value(), method, 3);
  ExpectAsOneDevice(Trace(SmallBert(8), AdamW({.learning_rate = 1e-2})).value(), method, 1);
}

TEST(PipelineRows, LayersByHand) {
  Pipeline method = TwoStages(4);
  method.options.layers = ManualLayers{.starts = {"*/block_1/*"}};
  ExpectAsOneDevice(Trace(DenseLayers(64, 16, 2, 2), Sgd()).value(), method, 3);
}

Pipeline Inference(std::vector<int> submeshes) {
  Pipeline method = TwoStages(4, std::move(submeshes));
  method.options.schedule = "inference";
  return method;
}

TEST(PipelineRows, InferenceAlone) {
  ExpectAsOneDevice(TraceEvaluation(DenseLayers(64, 16, 2, 2)).value(), Inference({2, 2}), 1);
  Pipeline method = Inference({2, 2});
  method.options.stage_search.assign(2, {.limits = SearchLimits{.no_all_to_all = true}});
  ExpectAsOneDevice(TraceEvaluation(SmallBert(4)).value(), method, 1);
}

TEST(PipelineRows, InferenceOnStagesThatAreFound) {
  Pipeline method = Inference({});
  method.options.num_stages = 0;
  ExpectAsOneDevice(TraceEvaluation(DenseLayers(64, 16, 2, 2)).value(), method, 1);
  ExpectAsOneDevice(TraceEvaluation(SmallBert(4)).value(), method, 1);
}

// Their instruction lists differ, what they compute does not.
TEST(PipelineRows, TwoProgramsInOneSession) {
  const TracedStep traced = Trace(DenseLayers(64, 16, 2, 2), Sgd()).value();
  const ParameterValues values = InputsOf(traced, kSeed)(0).value();
  LocalSession session(Devices());
  std::vector<std::string> instructions;
  std::vector<std::vector<Literal>> states;
  std::vector<StepRunner> runners;  // both are loaded at once
  for (const char* schedule : {"gpipe", "1f1b"}) {
    Pipeline method = TwoStages(4);
    method.options.schedule = schedule;
    PlannedPipeline planned =
        PlanPipeline(traced.step, RequestFor(Cluster::Local(4), method, {}).value()).value();
    auto executor = CompilePipeline(planned, session);
    ASSERT_TRUE(executor.ok()) << Message(executor.status());
    instructions.push_back(InstructionsText((*executor)->program().meshes[0]));
    runners.emplace_back(planned.prepared, *std::move(executor));
  }
  EXPECT_NE(instructions[0], instructions[1]);
  for (StepRunner& runner : runners) {
    const StepOutput output = runner.Run(runner.CreateState(values).value(), values).value();
    std::vector<Literal>& state = states.emplace_back();
    for (const DistributedArray& array : output.state.arrays) {
      if (!array.empty()) state.push_back(array.ToHost().value());
    }
  }
  ASSERT_EQ(states[0].size(), states[1].size());
  ASSERT_FALSE(states[0].empty());
  for (size_t i = 0; i < states[0].size(); ++i) {
    EXPECT_EQ(*states[0][i].bytes == *states[1][i].bytes, true) << i;
  }
}

TEST(PipelineRows, ATableThatTwoStagesRead) {
  ExpectAsOneDevice(Trace(TiedTable(), AdamW({.learning_rate = 1e-2})).value(), TwoStages(2), 2);
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
