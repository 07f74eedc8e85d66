#include "minka/ir/step.h"

#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/base/status.h"
#include "minka/ir/builder.h"
#include "minka/ir/trained_parameters.h"

namespace minka {
namespace {

using ::testing::HasSubstr;

Module SmallModule() {
  ModuleBuilder module("m");
  ComputationBuilder b = module.Entry();
  const Value w = b.Parameter({ElementType::kF32, {4}}, "state/w");
  const Value x = b.Parameter({ElementType::kF32, {8, 4}}, "batch/x");
  const Value key = b.Parameter({ElementType::kU32, {2}}, "key");
  const Value sum = b.Reduce(x, b.Scalar(ElementType::kF32, 0), {0}, Opcode::kAdd);
  b.SetResults({b.Binary(Opcode::kSubtract, w, sum), key});
  module.AddAlias({.result = 0, .parameter = 0});
  return *std::move(module).Finish();
}

TEST(MatchesGlob, StarCrossesSlashes) {
  EXPECT_TRUE(MatchesGlob("*/kernel", "params/layer_0/kernel"));
  EXPECT_TRUE(MatchesGlob("params/*_?/*", "params/layer_0/kernel"));
  EXPECT_TRUE(MatchesGlob("**", ""));
  EXPECT_FALSE(MatchesGlob("*/bias", "params/layer_0/kernel"));
  EXPECT_FALSE(MatchesGlob("", "x"));
}

TEST(MakeStep, ConcludesStateFromDonationAndKeysFromTheirShape) {
  std::vector<std::string> inferred;
  const Step step = *MakeStep(SmallModule(), {.batch_inputs = {"batch/*"}}, &inferred);
  EXPECT_EQ(step.parameters[0], (ParameterInfo{ParameterRole::kState, "state/w", 0, -1}));
  EXPECT_EQ(step.parameters[1], (ParameterInfo{ParameterRole::kBatch, "batch/x", -1, 0}));
  EXPECT_EQ(step.parameters[2].role, ParameterRole::kKey);
  EXPECT_EQ(inferred, (std::vector<std::string>{
                          "parameter 0 (state/w) is state: its buffer is donated to result 0",
                          "parameter 2 (key) is a random key: it is u32[2]"}));
}

TEST(MakeStep, ManyDonatedParametersAreConcludedInOneLine) {
  ModuleBuilder module("many");
  ComputationBuilder b = module.Entry();
  std::vector<Value> results;
  for (int i = 0; i < 5; ++i) {
    const Value w = b.Parameter({ElementType::kF32, {4}}, fmt::format("w_{}", i));
    results.insert(results.begin(), b.Binary(Opcode::kAdd, w, w));
    module.AddAlias({.result = 4 - i, .parameter = i});
  }
  b.SetResults(results);
  std::vector<std::string> inferred;
  const Step step = *MakeStep(*std::move(module).Finish(), {}, &inferred);
  for (const ParameterInfo& info : step.parameters) EXPECT_EQ(info.role, ParameterRole::kState);
  EXPECT_EQ(inferred, std::vector<std::string>{
                          "5 parameters between 0 (w_0) and 4 (w_4) are state: their buffers are "
                          "donated to results"});
}

TEST(MakeStep, FlagsThatDoNotFitAreRefusedByName) {
  const auto message = [](const StepFlags& flags) {
    return Message(MakeStep(SmallModule(), flags).status());
  };
  EXPECT_EQ(message({.batch_inputs = {"y"}}),
            "no parameter is named \"y\"; there are 3, the first is \"state/w\"");
  EXPECT_EQ(message({.batch_inputs = {"1:2"}}),
            "parameter 1 (batch/x) f32[8,4] has no dimension 2 to be the batch");
  EXPECT_EQ(message({.states = {"1"}}), "state \"1\": expected PARAM:RESULT, e.g. 0:0");
  EXPECT_EQ(message({.loss = 2}), "loss 2: the module has 2 results, from 0 on");
  EXPECT_EQ(message({.loss = 0}),
            "loss 0: the result is f32[4] of state, not a floating-point scalar");
  EXPECT_EQ(message({.states = {"1:1"}}),
            "parameter 1 (batch/x) f32[8,4] cannot be state: result 1 is u32[2]");
}

TEST(TrainedParameters, AreNamedOrHaveAGradientAndOthersBelongToThem) {
  const auto step = [](std::vector<std::string> names) {
    ModuleBuilder module("m");
    ComputationBuilder b = module.Entry();
    std::vector<Value> values;
    Step out;
    for (size_t i = 0; i < names.size(); ++i) {
      values.push_back(b.Parameter({ElementType::kF32, {i == 3 ? 2 : 4}}, names[i]));
      out.parameters.push_back({ParameterRole::kState, names[i], static_cast<int>(i)});
    }
    b.SetResults(values);
    out.module = *std::move(module).Finish();
    return out;
  };
  Step named = step({"params/a/w", "params/b/w", "opt/0/mu/a/w", "opt/0/nu/a/w", "opt/0/w"});
  named.marks = {{.kind = MarkKind::kGradient, .index = 2}};
  EXPECT_EQ(TrainedParameters(named), (std::vector<bool>{true, true, false, false, false}));
  // One is smaller, as Adafactor's are; one has the end of a path only.
  EXPECT_EQ(OwnersOfState(named), (std::vector<int>{-1, -1, 0, -1, -1}));
  Step marked = step({"0/a/w", "0/b/w", "1/0/mu/a/w", "2", "1/0/mu/b/w"});
  EXPECT_EQ(TrainedParameters(marked), std::vector<bool>(5, true));
  marked.marks = {{.kind = MarkKind::kGradient, .index = 0},
                  {.kind = MarkKind::kGradient, .index = 1}};
  EXPECT_EQ(TrainedParameters(marked), (std::vector<bool>{true, true, false, false, false}));
  EXPECT_EQ(OwnersOfState(marked), (std::vector<int>{-1, -1, 0, -1, 1}));
}

TEST(ToModule, DescriptionAndMarksSurviveTheRoundTrip) {
  Step step = *MakeStep(SmallModule(), {.batch_inputs = {"1"}});
  const Value sum = step.module.entry_computation().instructions.back().operands[1];
  step.marks = {{MarkKind::kLayerBoundary, {1, 0}, 2},
                {MarkKind::kLoss, sum, 0},
                {MarkKind::kGradient, sum, 0}};
  const Module marked = ToModule(step);
  EXPECT_EQ(marked.entry_computation().num_instructions(),
            step.module.entry_computation().num_instructions() + 3);
  const Step read = *MakeStep(marked, {});
  EXPECT_EQ(read.parameters, step.parameters);
  EXPECT_EQ(read.results, step.results);
  EXPECT_EQ(read.marks, step.marks);
  EXPECT_EQ(ModuleHash(read.module), ModuleHash(step.module));
}

TEST(MakeStep, ADescriptionForAnotherModuleIsRefused) {
  Module module = SmallModule();
  module.frontend_attributes["minka.step"] =
      R"({"schema_version": 1, "parameters": [], "results": []})";
  EXPECT_EQ(Message(MakeStep(module, {}).status()),
            "minka.step describes 0 parameters and 0 results; the module has 3 and 2");
  const auto refused = [&](const std::string& first) {
    module.frontend_attributes["minka.step"] = fmt::format(
        R"({{"schema_version": 1, "parameters": [{{"name": "w", "role": "state", {}}},
             {{"name": "x", "role": "batch"}}, {{"name": "k", "role": "key"}}],
            "results": [{{"name": "w", "role": "state"}}, {{"name": "k", "role": "metric"}}]}})",
        first);
    return Message(MakeStep(module, {}).status());
  };
  EXPECT_EQ(refused(R"("state_result": 0)"), "");
  EXPECT_EQ(refused(R"("state_result": 2)"), "parameter 0 (w): the module has no result 2");
  EXPECT_EQ(refused(R"("state_result": -2)"), "parameter 0 (w): the module has no result -2");
  EXPECT_EQ(refused(R"("batch_dim": -3)"),
            "parameter 0 (w) f32[4] has no dimension -3 to be the batch");
  module.frontend_attributes["minka.step"] = "{";
  EXPECT_THAT(Message(MakeStep(module, {}).status()), HasSubstr("minka.step: not JSON: "));
}

TEST(MakeStep, MarksThatMeanNothingAreRefused) {
  Step step = *MakeStep(SmallModule(), {.batch_inputs = {"1"}});
  const Value sum = step.module.entry_computation().instructions.back().operands[1];
  step.marks = {{MarkKind::kGradient, sum, 3}};
  EXPECT_EQ(Message(MakeStep(ToModule(step), {}).status()),
            "minka.mark: \"gradient 3\" names no parameter; the module has 3");
  Module module = SmallModule();
  Instruction& last = module.entry_computation().instructions.back();
  last.frontend_attributes["minka.mark"] = "loss";
  EXPECT_EQ(Message(MakeStep(module, {}).status()),
            fmt::format("minka.mark: '{}' is subtract; marks are opt-barriers", last.name));
  last.frontend_attributes["minka.mark"] = "loss 99999999999999999999";
  last.opcode = Opcode::kOptBarrier;
  EXPECT_EQ(Message(MakeStep(module, {}).status()),
            "minka.mark: \"loss 99999999999999999999\" does not end in a number");
}

}  // namespace
}  // namespace minka
