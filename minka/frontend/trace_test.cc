#include "minka/frontend/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "minka/base/status.h"
#include "minka/frontend/nn.h"
#include "minka/ir/testing/evaluator.h"

namespace minka {
namespace {

using testing::Array;
using ::testing::ElementsAre;
using testing::Evaluate;
using testing::FromLiteral;

// Dense layers of 4 features in blocks, with dropout between them.
Model SmallModel(int num_blocks, double dropout) {
  const Shape shape{ElementType::kF32, {8, 4}};
  return {.name = "small",
          .inputs = {{"x", shape}, {"y", shape}},
          .forward = [=](const Scope& scope, std::span<const Tensor> inputs) {
            Tensor x = Convert(inputs[0], scope.compute_type());
            for (int i = 0; i < num_blocks; ++i) {
              x = (scope / fmt::format("block_{}", i)).Block(x, [&](const Scope& block, Tensor in) {
                const Tensor out = Tanh(Dense(block / "dense", in, {.features = {4}}));
                return Dropout(block / "dropout", LayerNorm(block / "norm", out), dropout);
              });
            }
            return ModelOutput{.loss = MeanSquaredError(Convert(x, ElementType::kF32), inputs[1])};
          }};
}

TracedStep MustTrace(const Model& model, const Optimizer& optimizer, TraceOptions options = {}) {
  absl::StatusOr<TracedStep> traced = Trace(model, optimizer, options);
  EXPECT_TRUE(traced.ok()) << Message(traced.status());
  return *std::move(traced);
}

std::vector<Array> InitialInputs(const TracedStep& traced) {
  const Step& step = traced.step;
  std::vector<Array> inputs;
  for (size_t i = 0; i < step.parameters.size(); ++i) {
    const Computation& entry = step.module.entry_computation();
    const Shape& shape = entry.instructions[entry.parameters[i]].shape();
    if (traced.initializers[i]) {
      inputs.push_back(
          FromLiteral(InitialValue(*traced.initializers[i], shape, step.parameters[i].name, 1)));
    } else if (shape.type == ElementType::kU32) {
      inputs.push_back({shape, {1, 2}});
    } else {
      inputs.push_back(FromLiteral(
          InitialValue({Initializer::Kind::kNormal, 1}, shape, step.parameters[i].name, 1)));
    }
  }
  return inputs;
}

// Losses of `num_steps` steps on the same batch and key.
std::vector<double> Losses(const TracedStep& traced, int num_steps) {
  std::vector<Array> inputs = InitialInputs(traced);
  std::vector<double> losses;
  for (int i = 0; i < num_steps; ++i) {
    const std::vector<Array> results = Evaluate(traced.step.module, inputs);
    for (size_t p = 0; p < inputs.size(); ++p) {
      const int result = traced.step.parameters[p].state_result;
      if (result >= 0) inputs[p] = results[result];
    }
    losses.push_back(static_cast<double>(results.back().elements.front()));
  }
  return losses;
}

TEST(TraceTest, StepDescribesStateBatchKeyAndMarks) {
  const TracedStep traced = MustTrace(SmallModel(3, 0.25), AdamW());
  const Step& step = traced.step;
  std::vector<std::string> names;
  for (const ParameterInfo& info : step.parameters) {
    if (info.name.find("block_1") != std::string::npos ||
        info.name.find('/') == std::string::npos || info.name == "optimizer/count") {
      names.push_back(info.name);
    }
  }
  EXPECT_THAT(names,
              ElementsAre("params/block_1/dense/kernel", "params/block_1/dense/bias",
                          "params/block_1/norm/scale", "params/block_1/norm/bias",
                          "optimizer/m/block_1/dense/kernel", "optimizer/m/block_1/dense/bias",
                          "optimizer/m/block_1/norm/scale", "optimizer/m/block_1/norm/bias",
                          "optimizer/v/block_1/dense/kernel", "optimizer/v/block_1/dense/bias",
                          "optimizer/v/block_1/norm/scale", "optimizer/v/block_1/norm/bias",
                          "optimizer/count", "x", "y", "key"));
  EXPECT_EQ(step.parameters[37].role, ParameterRole::kBatch);
  EXPECT_EQ(step.parameters[37].batch_dim, 0);
  EXPECT_EQ(step.parameters[39].role, ParameterRole::kKey);
  EXPECT_EQ(step.results.size(), 38);
  EXPECT_EQ(step.results.back().role, ResultRole::kLoss);
  EXPECT_EQ(step.module.aliases.size(), 37);
  const auto count = [&](MarkKind kind) {
    return std::ranges::count(step.marks, kind, &Mark::kind);
  };
  EXPECT_EQ(count(MarkKind::kLoss), 1);
  EXPECT_EQ(count(MarkKind::kGradient), 12);
  EXPECT_EQ(count(MarkKind::kLayerBoundary), 4);
  EXPECT_TRUE(std::ranges::is_sorted(step.marks, {}, &Mark::value));
}

TEST(TraceTest, DescriptionTravelsInTheModule) {
  const TracedStep traced = MustTrace(SmallModel(3, 0.25), AdamW());
  const absl::StatusOr<Step> read = MakeStep(ToModule(traced.step), {});
  ASSERT_TRUE(read.ok()) << Message(read.status());
  EXPECT_EQ(read->parameters, traced.step.parameters);
  EXPECT_EQ(read->results, traced.step.results);
  EXPECT_EQ(read->marks, traced.step.marks);
  EXPECT_EQ(ModuleHash(read->module), ModuleHash(traced.step.module));
}

TEST(TraceTest, TrainingLowersTheLossWithEachOptimizer) {
  for (const Optimizer& optimizer :
       {Sgd({.learning_rate = 0.1}), Sgd({.learning_rate = 0.1, .momentum = 0}),
        Adam({.learning_rate = 0.02}), AdamW({.learning_rate = 0.02, .weight_decay = 0.1}),
        Adafactor({.learning_rate = 0.05, .min_factored_dim = 2}), Lion({.learning_rate = 0.01}),
        Lamb({.learning_rate = 0.02})}) {
    const std::vector<double> losses = Losses(MustTrace(SmallModel(2, 0), optimizer), 20);
    EXPECT_LT(losses.back(), 0.9 * losses.front()) << optimizer.name;
  }
}

TEST(TraceTest, AdamsFirstStepIsTheLearningRateAndAFractionOfItWhileWarmingUp) {
  for (int64_t warmup : {0, 10}) {
    LearningRate rate = 0.01;
    rate.warmup_updates = warmup;
    const TracedStep traced = MustTrace(SmallModel(1, 0), Adam({.learning_rate = rate}));
    const std::vector<Array> inputs = InitialInputs(traced);
    const std::vector<Array> results = Evaluate(traced.step.module, inputs);
    for (size_t i = 0; i < inputs[0].elements.size(); ++i) {
      EXPECT_NEAR(double(std::abs(results[0].elements[i] - inputs[0].elements[i])),
                  warmup == 0 ? 0.01 : 0.001, 1e-6);
    }
  }
}

int ParameterNamed(const TracedStep& traced, const std::string& name) {
  const auto& parameters = traced.step.parameters;
  return static_cast<int>(std::ranges::find(parameters, name, &ParameterInfo::name) -
                          parameters.begin());
}

TEST(TraceTest, AdafactorKeepsMeansOfMatricesAndWholeMomentsOfVectors) {
  const TracedStep traced = MustTrace(SmallModel(1, 0), Adafactor({.min_factored_dim = 4}));
  std::vector<std::string> slots;
  for (const ParameterInfo& info : traced.step.parameters) {
    if (info.name.starts_with("optimizer/")) slots.push_back(info.name);
  }
  EXPECT_THAT(slots,
              ElementsAre("optimizer/v/block_0/dense/bias", "optimizer/v/block_0/norm/scale",
                          "optimizer/v/block_0/norm/bias", "optimizer/v_row/block_0/dense/kernel",
                          "optimizer/v_col/block_0/dense/kernel", "optimizer/count"));
}

// The scale of the loss grows after two finite updates; an update whose gradients are not finite
// keeps all state and halves the scale.
TEST(TraceTest, DynamicLossScaleSkipsUpdatesThatAreNotFinite) {
  TraceOptions options;
  options.scaling.loss_scale = LossScale{.initial = 1024, .growth_interval = 2};
  options.scaling.clip_norm = 1;
  const TracedStep traced = MustTrace(SmallModel(1, 0), Adam(), options);
  const int scale = ParameterNamed(traced, "loss_scale/scale");
  const int count = ParameterNamed(traced, "optimizer/count");
  std::vector<Array> inputs = InitialInputs(traced);
  const auto run = [&](long double first_target) {
    inputs[ParameterNamed(traced, "y")].elements[0] = first_target;
    const std::vector<Array> results = Evaluate(traced.step.module, inputs);
    for (size_t p = 0; p < inputs.size(); ++p) {
      const int result = traced.step.parameters[p].state_result;
      if (result >= 0) inputs[p] = results[result];
    }
  };
  run(0);
  EXPECT_EQ(inputs[scale].elements[0], 1024);
  run(0);
  EXPECT_EQ(inputs[scale].elements[0], 2048);
  const std::vector<Array> before = inputs;
  run(std::numeric_limits<long double>::infinity());
  EXPECT_EQ(inputs[scale].elements[0], 1024);
  EXPECT_EQ(inputs[count].elements[0], 2);
  for (int p = 0; p < scale; ++p) EXPECT_EQ(inputs[p].elements, before[p].elements) << p;
  run(0);
  EXPECT_EQ(inputs[count].elements[0], 3);
  EXPECT_NE(inputs[0].elements, before[0].elements);
}

TEST(TraceTest, MixedPrecisionKeepsStateInF32AndComputesInBf16) {
  const TracedStep traced =
      MustTrace(SmallModel(2, 0), AdamW(), {.dtype = {.compute = ElementType::kBF16}});
  const Computation& entry = traced.step.module.entry_computation();
  for (const Instruction& instruction : entry.instructions) {
    if (instruction.opcode == Opcode::kDot) {
      EXPECT_EQ(instruction.shape().type, ElementType::kBF16);
    }
  }
  for (const Instruction& instruction : entry.instructions) {
    if (instruction.opcode == Opcode::kReduce) {
      EXPECT_EQ(instruction.shape().type, ElementType::kF32) << instruction.op_name;
    }
  }
  for (const Mark& mark : traced.step.marks) {
    if (mark.kind == MarkKind::kGradient) {
      EXPECT_EQ(entry.shape(mark.value).type, ElementType::kF32);
    }
  }
  for (size_t i = 0; i < traced.step.parameters.size(); ++i) {
    if (traced.step.parameters[i].role != ParameterRole::kState) continue;
    EXPECT_NE(entry.instructions[entry.parameters[i]].shape().type, ElementType::kBF16);
  }
}

TEST(TraceTest, EvaluationHasNoDropoutAndNoKey) {
  const absl::StatusOr<TracedStep> dropped = TraceEvaluation(SmallModel(2, 0.25));
  const absl::StatusOr<TracedStep> plain = TraceEvaluation(SmallModel(2, 0));
  ASSERT_TRUE(dropped.ok()) << Message(dropped.status());
  ASSERT_TRUE(plain.ok());
  EXPECT_EQ(ModuleHash(dropped->step.module), ModuleHash(plain->step.module));
  EXPECT_EQ(dropped->step.parameters.front().role, ParameterRole::kConstant);
  EXPECT_EQ(dropped->step.results.size(), 1);
}

TEST(TraceTest, BadShapesAreReportedWithTheirScope) {
  Model model = SmallModel(1, 0);
  model.inputs[1].shape.dims = {8, 5};
  EXPECT_EQ(Message(Trace(model, Sgd()).status()),
            "subtract: shapes f32[8,4] and f32[8,5] cannot be broadcast to common dimensions");
  model.forward = [](const Scope& scope, std::span<const Tensor> inputs) {
    return ModelOutput{
        .loss = Mean(Attention(scope / "attention", inputs[0],
                               CausalBias(scope.graph(), ElementType::kF32, 8), {.num_heads = 3}))};
  };
  EXPECT_EQ(Message(Trace(model, Sgd()).status()),
            "attention: 4 features cannot be cut into 3 heads");
}

TEST(TraceTest, TwoMasksOfOneScopeAreRefused) {
  Model model = SmallModel(1, 0);
  model.forward = [](const Scope& scope, std::span<const Tensor> inputs) {
    const Tensor x = Dropout(scope / "drop", inputs[0], 0.5);
    return ModelOutput{.loss = Mean(Dropout(scope / "drop", x, 0.5))};
  };
  EXPECT_EQ(Message(Trace(model, Sgd()).status()),
            "drop: two random masks have the path drop; give each its own scope");
}

}  // namespace
}  // namespace minka
