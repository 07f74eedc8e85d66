#include "minka/models/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "minka/base/status.h"
#include "minka/frontend/testing/evaluator.h"
#include "minka/models/bert.h"
#include "minka/models/gpt.h"

namespace minka {
namespace {

using testing::Array;
using testing::Evaluate;
using testing::FromLiteral;

double BillionParameters(const std::string& name) {
  const absl::StatusOr<NamedModel> named = MakeModel(name);
  EXPECT_TRUE(named.ok()) << Message(named.status());
  const auto parameters = ParametersOf(named->model);
  EXPECT_TRUE(parameters.ok()) << Message(parameters.status());
  return 1e-9 * static_cast<double>(NumElements(*parameters));
}

TEST(RegistryTest, GptSizesAreAlpasUntiedOnesWithPositionsForTheWholeSequence) {
  // Alpa's untied models have 512 position rows, these 1024, and an output bias, these none.
  struct Size {
    std::string name;
    double alpa_billions;
    double hidden;
  };
  for (const Size& size : std::vector<Size>{{"gpt-125m", 0.164, 768},
                                            {"gpt-350m", 0.408, 1024},
                                            {"gpt-760m", 0.838, 1536},
                                            {"gpt-1.3b", 1.419, 2048},
                                            {"gpt-2.6b", 2.781, 2560},
                                            {"gpt-6.7b", 6.866, 4096},
                                            {"gpt-15b", 15.630, 5120},
                                            {"gpt-39b", 39.503, 8192},
                                            {"gpt-76b", 76.559, 10240}}) {
    const double expected = size.alpa_billions + 512e-9 * size.hidden;
    EXPECT_NEAR(BillionParameters(size.name), expected, 0.00056) << size.name;
  }
  EXPECT_NEAR(BillionParameters("gpt-175b"), 175.3, 0.5);
  EXPECT_NEAR(BillionParameters("gpt-tiny"), 0.00146, 0.0001);
  EXPECT_NEAR(BillionParameters("bert-base"), 0.110, 0.001);
  EXPECT_NEAR(BillionParameters("bert-large"), 0.335, 0.002);
}

TEST(RegistryTest, EveryNameTracesToAStepAndAnEvaluation) {
  for (const std::string& name : ModelNames()) {
    const ModelOptions two_layers = {.num_layers = 2, .rematerialize = true};
    const auto step = TraceModel(name, two_layers);
    EXPECT_TRUE(step.ok()) << name << ": " << Message(step.status());
    const auto evaluation = TraceModelEvaluation(name, two_layers);
    EXPECT_TRUE(evaluation.ok()) << name << ": " << Message(evaluation.status());
  }
}

TEST(RegistryTest, AWholeGpt39bKeepsItsInstructionsModest) {
  const auto traced = TraceModel("gpt-39b");
  ASSERT_TRUE(traced.ok()) << Message(traced.status());
  EXPECT_LT(traced->step.module.entry_computation().num_instructions(), 48 * 620);
}

TEST(RegistryTest, UnknownNamesAndOptionsThatDoNotFitAreRefused) {
  EXPECT_EQ(Message(MakeModel("gpt").status()),
            "no model is named gpt; there are mlp, gpt-tiny, gpt-125m, gpt-350m, gpt-760m, "
            "gpt-1.3b, gpt-2.6b, gpt-6.7b, gpt-15b, gpt-39b, gpt-76b, gpt-175b, bert-tiny, "
            "bert-base, bert-large");
  EXPECT_EQ(Message(MakeModel("mlp", {.sequence = 8}).status()), "mlp has no sequence to set");
  EXPECT_EQ(Message(MakeModel("gpt-tiny", {.global_batch = 0}).status()),
            "the global batch must be at least 1, not 0");
  EXPECT_EQ(Message(MakeModel("gpt-tiny", {.dtype = ElementType::kS32}).status()),
            "models compute in f32, bf16 or f16, not s32");
  EXPECT_EQ(Message(MakeModel("gpt-tiny", {.optimizer = "lion"}).status()),
            "no optimizer is named lion; there are sgd, adam and adamw");
}

std::vector<Array> InitialInputs(const TracedStep& traced) {
  const Computation& entry = traced.step.module.entry_computation();
  std::map<std::string, int64_t> num_values;
  for (const BatchInput& input : traced.inputs) num_values[input.name] = input.num_values;
  std::vector<Array> inputs;
  for (size_t i = 0; i < traced.initializers.size(); ++i) {
    const Shape& shape = entry.instructions[entry.parameters[i]].shape();
    const std::string& name = traced.step.parameters[i].name;
    if (traced.initializers[i]) {
      inputs.push_back(FromLiteral(InitialValue(*traced.initializers[i], shape, name, 1)));
      continue;
    }
    Array array{shape, {}};
    const int64_t limit = name == "key" ? 1000 : num_values.at(name);
    for (int64_t j = 0; j < shape.num_elements(); ++j) {
      array.elements.push_back((j * 7 + j / 5 + 1) % limit);
    }
    inputs.push_back(std::move(array));
  }
  return inputs;
}

double LossAfter(const TracedStep& traced, int num_steps) {
  std::vector<Array> inputs = InitialInputs(traced), results;
  for (int i = 0; i < num_steps; ++i) {
    results = Evaluate(traced.step.module, inputs);
    for (size_t p = 0; p < inputs.size(); ++p) {
      const int result = traced.step.parameters[p].state_result;
      if (result >= 0) inputs[p] = results[result];
    }
  }
  return static_cast<double>(results.back().elements.front());
}

void ExpectLossFalls(const Model& model, double first_loss) {
  for (bool rematerialize : {false, true}) {
    const auto traced =
        Trace(model, AdamW({.learning_rate = 0.01}), {.rematerialize = rematerialize});
    ASSERT_TRUE(traced.ok()) << Message(traced.status());
    EXPECT_NEAR(LossAfter(*traced, 1), first_loss, 0.1 * first_loss);
    EXPECT_LT(LossAfter(*traced, 6), 0.9 * first_loss);
  }
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
  for (bool rematerialize : {false, true}) {
    const auto traced =
        Trace(model, Sgd({.learning_rate = 1, .momentum = 0}), {.rematerialize = rematerialize});
    ASSERT_TRUE(traced.ok()) << Message(traced.status());
    std::vector<Array> inputs = InitialInputs(*traced);
    const std::vector<Array> results = Evaluate(traced->step.module, inputs);
    const auto sign = [](size_t i, size_t j) { return (i * 31 + j * 17 + j / 3) % 5 < 2 ? -1 : 1; };
    long double expected = 0;
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (traced->step.parameters[i].role != ParameterRole::kState) continue;
      for (size_t j = 0; j < inputs[i].elements.size(); ++j) {
        expected += sign(i, j) * (inputs[i].elements[j] - results[i].elements[j]);
      }
    }
    const auto loss_at = [&](long double step) {
      std::vector<Array> moved = inputs;
      for (size_t i = 0; i < inputs.size(); ++i) {
        if (traced->step.parameters[i].role != ParameterRole::kState) continue;
        for (size_t j = 0; j < inputs[i].elements.size(); ++j) {
          moved[i].elements[j] += step * sign(i, j);
        }
      }
      return Evaluate(traced->step.module, moved).back().elements.front();
    };
    const long double step = 1e-6;
    const long double quotient = (loss_at(step) - loss_at(-step)) / (2 * step);
    EXPECT_NEAR(double(expected / quotient), 1, 1e-6);
  }
}

TEST(ModelsTest, GradientsOfWholeModelsEqualDifferenceQuotients) {
  ExpectTrueGradient(Gpt({.batch = 2,
                          .sequence = 5,
                          .vocabulary = 7,
                          .hidden = 6,
                          .num_layers = 2,
                          .num_heads = 3,
                          .dropout = 0.2}));
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
