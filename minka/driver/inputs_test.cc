#include "minka/driver/inputs.h"

#include <algorithm>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/base/status.h"
#include "minka/data/text_data.h"
#include "minka/ir/builder.h"
#include "minka/models/registry.h"

namespace minka {
namespace {

Module TwoParameters() {
  ModuleBuilder module("two");
  ComputationBuilder b = module.Entry();
  b.Parameter({ElementType::kF32, {2}}, "x");
  b.SetResults({b.Parameter({ElementType::kS32, {}}, "n")});
  return *std::move(module).Finish();
}

TEST(InputsFromTensors, NamesWhatDoesNotFit) {
  const Module module = TwoParameters();
  TensorFile file;
  file.tensors["0"] = {{ElementType::kF32, {2}}, std::string(8, '\0')};
  EXPECT_EQ(Message(InputsFromTensors(module, file).status()),
            "the inputs have no tensor \"1\" for parameter 1 (n, s32[])");
  file.tensors["1"] = {{ElementType::kS32, {1}}, std::string(4, '\0')};
  EXPECT_EQ(Message(InputsFromTensors(module, file).status()),
            "input \"1\" is s32[1]; parameter 1 (n) is s32[]");
  file.tensors["1"].shape.dims.clear();
  EXPECT_EQ(InputsFromTensors(module, file)->size(), 2u);
  file.tensors["2"] = file.tensors["1"];
  EXPECT_EQ(Message(InputsFromTensors(module, file).status()),
            "the inputs have a tensor \"2\"; the module has parameters 0 to 1");
}

int ParameterNamed(const Step& step, const std::string& name) {
  for (size_t i = 0; i < step.parameters.size(); ++i) {
    if (step.parameters[i].name == name) return static_cast<int>(i);
  }
  return -1;
}

TEST(IndexBound, FollowsLookUpsAndOneHotRows) {
  const TracedStep gpt = *TraceModel("gpt-tiny");
  EXPECT_EQ(IndexBound(gpt.step.module, ParameterNamed(gpt.step, "tokens")), 256);
  EXPECT_EQ(IndexBound(gpt.step.module, ParameterNamed(gpt.step, "labels")), 256);
  const TracedStep bert = *TraceModel("bert-tiny");
  EXPECT_EQ(IndexBound(bert.step.module, ParameterNamed(bert.step, "type_ids")), 2);
  EXPECT_EQ(IndexBound(bert.step.module, ParameterNamed(bert.step, "input_ids")), 1024);
  EXPECT_EQ(IndexBound(bert.step.module, ParameterNamed(bert.step, "mask")), std::nullopt);
}

TEST(RandomInputs, AreReproducibleAndInRange) {
  const TracedStep bert = *TraceModel("bert-tiny");
  const std::vector<Literal> first = *RandomInputs(bert.step, 1);
  EXPECT_EQ(first, *RandomInputs(bert.step, 1));
  const int ids = ParameterNamed(bert.step, "input_ids");
  EXPECT_NE(first[ids], (*RandomInputs(bert.step, 2))[ids]);
  int64_t largest = 0;
  for (int64_t i = 0; i < first[ids].shape.num_elements(); ++i) {
    const auto value = static_cast<int64_t>(ElementAsDouble(first[ids], i));
    ASSERT_GE(value, 0);
    largest = std::max(largest, value);
  }
  EXPECT_GT(largest, 900);
  EXPECT_LT(largest, 1024);
  // Second moments of an optimizer, of which roots are taken.
  for (int64_t i = 0; i < first[0].shape.num_elements(); ++i) {
    ASSERT_GE(ElementAsDouble(first[0], i), 0);
  }
}

TEST(BigramEntropy, OfAlternatingLettersIsZero) {
  EXPECT_DOUBLE_EQ(BigramEntropy("abababab"), 0);
  // After a: a, b, a, b ... with equal frequency; after b always a.
  EXPECT_NEAR(BigramEntropy("aabaabaabaab"), 0.693 * 8 / 11, 0.01);
}

TEST(SpreadTextBatch, LabelsAreTheNextBytes) {
  const std::vector<Literal> batch = SpreadTextBatch("abcdefghij", 2, 4, 0, 1);
  EXPECT_EQ(ElementAsDouble(batch[0], 0), 'a');
  EXPECT_EQ(ElementAsDouble(batch[1], 0), 'b');
  EXPECT_EQ(ElementAsDouble(batch[0], 4), 'd');
  EXPECT_EQ(ElementAsDouble(batch[1], 7), 'h');
}

TEST(LoadText, SaysHowToGetOne) {
  EXPECT_THAT(Message(LoadText("/nonexistent/text").status()),
              testing::HasSubstr("/nonexistent/text"));
}

}  // namespace
}  // namespace minka
