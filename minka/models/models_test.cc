// Whole models on the host evaluator: they learn, their gradients are true, and they are JAX's.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>

#include "minka/base/status.h"
#include "minka/ir/testing/evaluator.h"
#include "minka/models/bert.h"
#include "minka/models/gpt.h"
#include "minka/models/mlp.h"
#include "minka/models/unet.h"
#include "minka/models/wresnet.h"
#include "nlohmann/json.hpp"

namespace minka {
namespace {

using testing::Array;
using testing::Evaluate;
using testing::FromLiteral;

// Element j of input n where nothing is drawn; the same as in testdata/make_reference.py.
long double InputElement(const BatchInput& input, size_t n, int64_t j) {
  if (input.num_values > 0) return (7 * j + j / 5 + 1) % input.num_values;
  return std::sin(0.61L * static_cast<long double>(j) + static_cast<long double>(n));
}

std::vector<Array> InitialInputs(const TracedStep& traced) {
  const Computation& entry = traced.step.module.entry_computation();
  std::vector<Array> inputs;
  size_t next_input = 0;
  for (size_t i = 0; i < traced.initializers.size(); ++i) {
    const Shape& shape = entry.instructions[entry.parameters[i]].shape();
    const ParameterInfo& info = traced.step.parameters[i];
    if (traced.initializers[i]) {
      inputs.push_back(FromLiteral(InitialValue(*traced.initializers[i], shape, info.name, 1)));
    } else if (info.role == ParameterRole::kKey) {
      inputs.push_back({shape, {1, 2}});
    } else {
      Array array{shape, {}};
      for (int64_t j = 0; j < shape.num_elements(); ++j) {
        array.elements.push_back(InputElement(traced.inputs[next_input], next_input, j));
      }
      inputs.push_back(std::move(array));
      ++next_input;
    }
  }
  return inputs;
}

// The inputs after one step with these.
std::vector<Array> NextInputs(const TracedStep& traced, std::vector<Array> inputs,
                              const std::vector<Array>& results) {
  for (size_t p = 0; p < inputs.size(); ++p) {
    const int result = traced.step.parameters[p].state_result;
    if (result >= 0) inputs[p] = results[result];
  }
  return inputs;
}

long double LossOf(const TracedStep& traced, const std::vector<Array>& results) {
  const auto loss = std::ranges::find(traced.step.results, ResultRole::kLoss, &ResultInfo::role);
  return results[loss - traced.step.results.begin()].elements.front();
}

double LossAfter(const TracedStep& traced, int num_steps) {
  std::vector<Array> inputs = InitialInputs(traced), results;
  for (int i = 0; i < num_steps; ++i) {
    results = Evaluate(traced.step.module, inputs);
    inputs = NextInputs(traced, inputs, results);
  }
  return static_cast<double>(LossOf(traced, results));
}

// Logits that are not equal at first cost more than `first_loss`, and there are few labels.
void ExpectLossFalls(const Model& model, double first_loss, double tolerance = 0.2) {
  const auto traced = Trace(model, AdamW({.learning_rate = 0.01}));
  ASSERT_TRUE(traced.ok()) << Message(traced.status());
  EXPECT_NEAR(LossAfter(*traced, 1), first_loss, tolerance * first_loss);
  EXPECT_LT(LossAfter(*traced, 6), 0.9 * first_loss);
}

TEST(ModelsTest, SmallGptLearns) {
  ExpectLossFalls(Gpt({.batch = 2,
                       .sequence = 6,
                       .vocabulary = 11,
                       .hidden = 8,
                       .num_layers = 2,
                       .num_heads = 2,
                       .dropout = 0.1}),
                  std::log(11));
}

GptConfig SmallMoe() {
  return {.batch = 2,
          .sequence = 6,
          .vocabulary = 11,
          .hidden = 8,
          .num_layers = 3,
          .num_heads = 2,
          .mlp_factor = 2,
          .experts = GptExperts{.num_experts = 3, .group_size = 6}};
}

TEST(ModelsTest, SmallMixtureOfExpertsLearns) { ExpectLossFalls(Gpt(SmallMoe()), std::log(11)); }

Model SmallWideResNet() {
  return WideResNet({.batch = 3,
                     .image_size = 4,
                     .channels = 1,
                     .num_classes = 5,
                     .width = 2,
                     .width_factor = 2,
                     .blocks_per_stage = {1, 1},
                     .small_images = true});
}

TEST(ModelsTest, SmallWideResNetLearns) { ExpectLossFalls(SmallWideResNet(), std::log(5), 0.3); }

Model SmallUnet() {
  return Unet({.batch = 2,
               .image_size = 4,
               .channels = 1,
               .target_channels = 2,
               .width = 8,
               .num_blocks = 2,
               .num_heads = 2,
               .num_groups = 2});
}

TEST(ModelsTest, SmallBertLearns) {
  for (LookUp look_up : {LookUp::kGather, LookUp::kOneHot}) {
    ExpectLossFalls(BertMaskedLanguageModel({.batch = 2,
                                             .sequence = 6,
                                             .vocabulary = 11,
                                             .hidden = 8,
                                             .num_layers = 2,
                                             .num_heads = 2,
                                             .look_up = look_up}),
                    std::log(11));
  }
}

// One step of plain gradient descent with rate 1 moves the parameters by the gradient; the loss
// must change along a random direction as the gradient says.
void ExpectTrueGradient(const Model& model) {
  const auto traced = Trace(model, Sgd({.learning_rate = 1, .momentum = 0}));
  ASSERT_TRUE(traced.ok()) << Message(traced.status());
  std::vector<Array> inputs = InitialInputs(*traced);
  const std::vector<Array> results = Evaluate(traced->step.module, inputs);
  const auto sign = [](size_t i, size_t j) { return (i * 31 + j * 17 + j / 3) % 5 < 2 ? -1 : 1; };
  long double expected = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!traced->step.parameters[i].name.starts_with("params/")) continue;
    for (size_t j = 0; j < inputs[i].elements.size(); ++j) {
      expected += sign(i, j) * (inputs[i].elements[j] - results[i].elements[j]);
    }
  }
  const auto loss_at = [&](long double step) {
    std::vector<Array> moved = inputs;
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (!traced->step.parameters[i].name.starts_with("params/")) continue;
      for (size_t j = 0; j < inputs[i].elements.size(); ++j) {
        moved[i].elements[j] += step * sign(i, j);
      }
    }
    return LossOf(*traced, Evaluate(traced->step.module, moved));
  };
  const long double step = 1e-6;
  const long double quotient = (loss_at(step) - loss_at(-step)) / (2 * step);
  EXPECT_NEAR(double(expected / quotient), 1, 1e-6);
}

TEST(ModelsTest, GradientsOfWholeModelsEqualDifferenceQuotients) {
  ExpectTrueGradient(Gpt({.batch = 2,
                          .sequence = 5,
                          .vocabulary = 7,
                          .hidden = 6,
                          .num_layers = 2,
                          .num_heads = 3,
                          .dropout = 0.2}));
  ExpectTrueGradient(Gpt(SmallMoe()));
  ExpectTrueGradient(SmallUnet());
  ExpectTrueGradient(SmallWideResNet());
  for (LookUp look_up : {LookUp::kGather, LookUp::kOneHot}) {
    ExpectTrueGradient(BertMaskedLanguageModel({.batch = 2,
                                                .sequence = 5,
                                                .vocabulary = 7,
                                                .hidden = 6,
                                                .num_layers = 2,
                                                .num_heads = 3,
                                                .look_up = look_up}));
  }
}

// Losses of four steps and the norms of the parameters after them must be JAX's.
void ExpectJaxResults(const Model& model, const Optimizer& optimizer, const std::string& name,
                      const TraceOptions& options = {}) {
  std::ifstream file(std::string(MINKA_TESTDATA) + "/reference.json");
  const nlohmann::json expected = nlohmann::json::parse(file).at(name);
  const auto traced = Trace(model, optimizer, options);
  ASSERT_TRUE(traced.ok()) << Message(traced.status());
  std::vector<Array> inputs = InitialInputs(*traced);
  const size_t num_parameters = expected.at("norms").size();
  for (size_t i = 0; i < num_parameters; ++i) {
    const bool is_scale = traced->step.parameters[i].name.ends_with("/scale");
    for (size_t j = 0; j < inputs[i].elements.size(); ++j) {
      const auto phase = 1 + static_cast<double>(i) + 0.37 * static_cast<double>(j);
      inputs[i].elements[j] = 0.3 * std::sin(phase) + (is_scale ? 1 : 0);
    }
  }
  for (const nlohmann::json& loss : expected.at("losses")) {
    const std::vector<Array> results = Evaluate(traced->step.module, inputs);
    EXPECT_NEAR(double(LossOf(*traced, results) / loss.get<double>()), 1, 1e-6) << name;
    inputs = NextInputs(*traced, inputs, results);
  }
  for (size_t i = 0; i < num_parameters; ++i) {
    long double sum = 0;
    for (const long double element : inputs[i].elements) sum += element * element;
    const std::string parameter = traced->step.parameters[i].name.substr(std::strlen("params/"));
    const double norm = expected.at("norms").at(parameter);
    EXPECT_NEAR(double(std::sqrt(sum)) / norm, 1, 1e-6) << parameter;
  }
}

TEST(ModelsTest, FourStepsEqualThoseOfJax) {
  MlpConfig mlp = {.batch = 2, .hidden = 6, .num_layers = 2};
  ExpectJaxResults(Mlp(mlp), Sgd({.learning_rate = 0.1, .momentum = 0.9}), "mlp");
  const GptConfig gpt = {
      .batch = 2, .sequence = 5, .vocabulary = 7, .hidden = 6, .num_layers = 2, .num_heads = 3};
  ExpectJaxResults(Gpt(gpt), AdamW({.learning_rate = 1e-2, .weight_decay = 0.1}), "gpt");
  BertConfig bert = {.batch = 2,
                     .sequence = 5,
                     .vocabulary = 7,
                     .hidden = 6,
                     .num_layers = 2,
                     .num_heads = 3,
                     .dropout = 0,
                     .loss_scale = 0.1234};
  for (LookUp look_up : {LookUp::kGather, LookUp::kOneHot}) {
    bert.look_up = look_up;
    ExpectJaxResults(BertMaskedLanguageModel(bert), Adam({.learning_rate = 1e-2}), "bert");
  }
}

LearningRate ScheduleOf(double peak, LearningRate::Decay decay, int64_t warmup, int64_t end,
                        double last) {
  LearningRate schedule(peak);
  schedule.decay = decay;
  schedule.warmup_updates = warmup;
  schedule.decay_updates = end;
  schedule.final_fraction = last;
  return schedule;
}

TEST(ModelsTest, OptimizersUpdateAsThoseOfOptax) {
  const Model mlp = Mlp({.batch = 2, .hidden = 6, .num_layers = 2});
  const auto expect = [&](const std::string& name, const Optimizer& optimizer,
                          const GradientScaling& scaling = {}) {
    ExpectJaxResults(mlp, optimizer, "mlp_" + name, {.scaling = scaling});
    // A power of two multiplies the loss exactly, and is taken off again.
    ExpectJaxResults(mlp, optimizer, "mlp_" + name,
                     {.scaling = {.loss_scale = LossScale{}, .clip_norm = scaling.clip_norm}});
  };
  expect("nesterov", Sgd({.learning_rate = 0.1, .nesterov = true}));
  expect("lion", Lion({.learning_rate = 1e-2, .weight_decay = 0.1}));
  expect("lamb", Lamb({.learning_rate = 1e-2, .weight_decay = 0.1}));
  expect("adafactor", Adafactor());
  expect("adafactor_factored", Adafactor({.min_factored_dim = 4}));
  expect(
      "adafactor_unscaled",
      Adafactor({.clipping_threshold = 0.5, .scales_by_parameter = false, .min_factored_dim = 4}));
  using enum LearningRate::Decay;
  expect("cosine", Sgd({.learning_rate = ScheduleOf(0.2, kCosine, 2, 5, 0.1), .momentum = 0}));
  expect("linear", Sgd({.learning_rate = ScheduleOf(0.2, kLinear, 0, 3, 0.25)}));
  expect("inverse_sqrt", Adam({.learning_rate = ScheduleOf(0.2, kInverseSqrt, 0, 0, 0)}));
  expect("clipped", Adam({.learning_rate = 1e-2}), {.clip_norm = 0.1});
  expect("hardly_clipped", Sgd({.learning_rate = 0.1, .momentum = 0}), {.clip_norm = 1e3});
}

TEST(ModelsTest, BertLayersHaveTwelveParametersEach) {
  const auto parameters = ParametersOf(BertLayers({.num_layers = 2}));
  ASSERT_TRUE(parameters.ok()) << Message(parameters.status());
  EXPECT_EQ(parameters->size(), 24);
  const auto mlm = ParametersOf(BertMaskedLanguageModel({.num_layers = 2}));
  ASSERT_TRUE(mlm.ok()) << Message(mlm.status());
  EXPECT_EQ(mlm->size(), 34);
}

}  // namespace
}  // namespace minka
