#include "minka/lowering/stages.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/base/status.h"
#include "minka/driver/pipeline.h"
#include "minka/driver/prepare.h"
#include "minka/ir/builder.h"
#include "minka/ir/verifier.h"
#include "minka/models/registry.h"
#include "tests/pipeline/small_steps.h"

namespace minka {
namespace {

using testing::Contains;
using testing::UnorderedElementsAre;

Step InMicroBatches(const Step& step) {
  return Prepare(step, {.micro_batches = {.num_micro_batches = 4}}).value();
}

StagedStep Cut(const Step& prepared, int num_stages) {
  auto staged =
      CutIntoStages(prepared, {.stage_of_layer = EvenStages(*prepared.num_layers, num_stages)});
  EXPECT_TRUE(staged.ok()) << Message(staged.status());
  return *std::move(staged);
}

// "f32[2,4] 0 -> 1", in no order.
std::vector<std::string> Sent(const StagedStep& staged, bool per_micro_batch) {
  std::vector<std::string> sent;
  for (const Border& border : staged.borders) {
    if (border.per_micro_batch != per_micro_batch) continue;
    std::string text = fmt::format("{} {} ->", ToString(border.shape), border.from.stage);
    for (const StagePort& to : border.to) text += fmt::format(" {}", to.stage);
    sent.push_back(text);
  }
  return sent;
}

TEST(Stages, OneActivationGoesUpAndOneCotangentComesDown) {
  const StagedStep staged = Cut(InMicroBatches(SmallGpt()), 4);
  EXPECT_THAT(
      Sent(staged, /*per_micro_batch=*/true),
      UnorderedElementsAre("f32[2,8,16] 0 -> 1", "f32[2,8,16] 1 -> 2", "f32[2,8,16] 2 -> 3",
                           "f32[2,8,16] 1 -> 0", "f32[2,8,16] 2 -> 1", "f32[2,8,16] 3 -> 2"));
  // The number of updates.
  EXPECT_THAT(Sent(staged, /*per_micro_batch=*/false), UnorderedElementsAre("s32[] 0 -> 1 2 3"));
}

TEST(Stages, WhatIsReceivedSaysWhatItsDimensionsCount) {
  const StagedStep staged = Cut(InMicroBatches(SmallGpt()), 2);
  int num_activations = 0;
  for (const Border& border : staged.borders) {
    for (const StagePort& to : border.to) {
      const ParameterInfo& info = staged.stages[to.stage].step.parameters[to.number];
      if (!border.per_micro_batch) {
        EXPECT_EQ(info.received, std::nullopt) << info.name;
        continue;
      }
      ++num_activations;
      EXPECT_EQ(info.received, (ExampleDims{.batch = 0, .within = {1}})) << info.name;
    }
  }
  EXPECT_EQ(num_activations, 2);
}

TEST(Stages, AnEvaluationIsCutWhereItsConstantWeightsAre) {
  const Step step = InMicroBatches(SmallEvaluation());
  const StagedStep staged = Cut(step, 3);
  EXPECT_THAT(Sent(staged, /*per_micro_batch=*/true),
              UnorderedElementsAre("f32[6,16] 0 -> 1", "f32[6,16] 1 -> 2"));
  for (size_t i = 0; i < step.parameters.size(); ++i) {
    if (!step.parameters[i].name.starts_with("params/")) continue;
    EXPECT_EQ(staged.parameters[i].size(), 1u) << step.parameters[i].name;
  }
}

TEST(Stages, TiedWeightsLieOnStage0) {
  const Step step = InMicroBatches(SmallBert());
  const StagedStep staged = Cut(step, 2);
  for (size_t i = 0; i < step.parameters.size(); ++i) {
    if (!step.parameters[i].name.ends_with("embedding/word")) continue;
    ASSERT_EQ(staged.parameters[i].size(), 1u);
    EXPECT_EQ(staged.parameters[i][0].stage, 0) << step.parameters[i].name;
  }
}

// Of the tied weights one copy goes up and one gradient comes down in a step, however many
// micro-batches it has. Of all other gradients only the sum of their squares leaves their stage.
TEST(Stages, WhatTiesLayersTogetherIsSentOnce) {
  const StagedStep staged = Cut(InMicroBatches(SmallBert()), 2);
  EXPECT_THAT(Sent(staged, /*per_micro_batch=*/true),
              UnorderedElementsAre("f32[2,8,16] 0 -> 1", "f32[2,8,16] 1 -> 0"));
  EXPECT_THAT(Sent(staged, /*per_micro_batch=*/false),
              UnorderedElementsAre("f32[48,16] 0 -> 1", "f32[48,16] 1 -> 0",
                                   "f32[] 1 -> 0",    // a sum of squares
                                   "f32[] 0 -> 1",    // the factor of all gradients
                                   "pred[] 0 -> 1",   // is the norm finite?
                                   "f32[] 0 -> 1",    // the loss scale
                                   "s32[] 0 -> 1"));  // the number of updates
}

struct Case {
  Step (*make)();
  int num_stages;
};

class StagesOf : public testing::TestWithParam<Case> {};

TEST_P(StagesOf, EveryResultIsMadeOnce) {
  const auto& [make, num_stages] = GetParam();
  const Step step = InMicroBatches(make());
  const StagedStep staged = Cut(step, num_stages);
  std::vector<StagePort> made;
  for (size_t i = 0; i < step.results.size(); ++i) {
    const auto [stage, number] = staged.results[i];
    EXPECT_EQ(staged.stages[stage].step.results[number], step.results[i]);
    made.push_back(staged.results[i]);
  }
  for (const Border& border : staged.borders) made.push_back(border.from);
  std::ranges::sort(made);
  std::vector<StagePort> all;
  for (int stage = 0; stage < num_stages; ++stage) {
    const Step& of_stage = staged.stages[stage].step;
    const absl::Status verified = Verify(of_stage.module);
    EXPECT_TRUE(verified.ok()) << Message(verified);
    for (int i = 0; i < static_cast<int>(of_stage.results.size()); ++i) all.push_back({stage, i});
  }
  EXPECT_EQ(made, all);
}

TEST_P(StagesOf, EveryParameterOfAStageIsGivenOrReceived) {
  const auto& [make, num_stages] = GetParam();
  const Step step = InMicroBatches(make());
  const StagedStep staged = Cut(step, num_stages);
  std::vector<StagePort> filled;
  for (size_t i = 0; i < step.parameters.size(); ++i) {
    for (const StagePort& port : staged.parameters[i]) {
      EXPECT_EQ(staged.stages[port.stage].step.parameters[port.number].name,
                step.parameters[i].name);
      filled.push_back(port);
    }
  }
  for (const Border& border : staged.borders) {
    for (const StagePort& to : border.to) {
      EXPECT_NE(to.stage, border.from.stage);
      filled.push_back(to);
    }
  }
  std::ranges::sort(filled);
  std::vector<StagePort> all;
  for (int stage = 0; stage < num_stages; ++stage) {
    const Step& of_stage = staged.stages[stage].step;
    for (int i = 0; i < static_cast<int>(of_stage.parameters.size()); ++i) {
      all.push_back({stage, i});
    }
  }
  EXPECT_EQ(filled, all);
}

TEST_P(StagesOf, NewStateIsMadeWhereItLies) {
  const auto& [make, num_stages] = GetParam();
  const Step step = InMicroBatches(make());
  const StagedStep staged = Cut(step, num_stages);
  size_t num_aliases = 0;
  for (const StageStep& stage : staged.stages) num_aliases += stage.step.module.aliases.size();
  EXPECT_EQ(num_aliases, step.module.aliases.size());
  for (const Alias& alias : step.module.aliases) {
    ASSERT_EQ(staged.parameters[alias.parameter].size(), 1u);
    const StagePort parameter = staged.parameters[alias.parameter][0];
    const StagePort result = staged.results[alias.result];
    EXPECT_EQ(parameter.stage, result.stage) << step.parameters[alias.parameter].name;
    const Step& of_stage = staged.stages[parameter.stage].step;
    EXPECT_EQ(of_stage.parameters[parameter.number].state_result, result.number);
    EXPECT_THAT(of_stage.module.aliases,
                Contains(Alias{.result = result.number, .parameter = parameter.number}));
  }
}

// Does what the instruction makes depend on state, or on what the stage receives?
std::vector<bool> DependsOnState(const Step& stage) {
  const Computation& entry = stage.module.entry_computation();
  std::vector<bool> depends(entry.instructions.size());
  for (size_t i = 0; i < entry.parameters.size(); ++i) {
    const ParameterInfo& info = stage.parameters[i];
    depends[entry.parameters[i]] =
        info.role == ParameterRole::kState || info.name.starts_with("received/");
  }
  for (InstructionId id = 0; id < entry.num_instructions(); ++id) {
    for (const Value operand : entry.instructions[id].operands) {
      if (depends[operand.instruction]) depends[id] = true;
    }
  }
  return depends;
}

TEST_P(StagesOf, WhatDependsOnInputsAloneIsNotSent) {
  const auto& [make, num_stages] = GetParam();
  const StagedStep staged = Cut(InMicroBatches(make()), num_stages);
  for (const Border& border : staged.borders) {
    const Step& from = staged.stages[border.from.stage].step;
    const InstructionId sent =
        from.module.entry_computation().results[border.from.number].instruction;
    EXPECT_TRUE(DependsOnState(from)[sent]) << from.results[border.from.number].name;
  }
}

INSTANTIATE_TEST_SUITE_P(Small, StagesOf,
                         testing::Values(Case{SmallMlp, 1}, Case{SmallMlp, 4}, Case{SmallGpt, 3},
                                         Case{SmallBert, 2}, Case{SmallBert, 4}));

TEST(Stages, LayersThatDoNotFitAreRefused) {
  const Step step = InMicroBatches(SmallMlp());
  const auto refusal = [&](std::vector<int> stage_of_layer) {
    return Message(CutIntoStages(step, {.stage_of_layer = std::move(stage_of_layer)}).status());
  };
  EXPECT_EQ(refusal({0, 1}), "2 layers are given to stages; mlp has 9");
  EXPECT_EQ(refusal({0, 0, 1, 1, 0, 1, 1, 1, 1}),
            "layer 4 is given to stage 0 behind one of stage 1");
  EXPECT_EQ(refusal({0, 0, 0, 2, 2, 2, 2, 2, 2}),
            "layer 3 is given to stage 2 behind one of stage 0");
  EXPECT_EQ(refusal({1, 1, 1, 1, 1, 1, 1, 1, 1}), "layer 0 is given to stage 1; the first is 0");
}

TEST(Stages, AStepWithoutLayersIsRefused) {
  Step step = InMicroBatches(SmallMlp());
  step.num_layers = 0;
  EXPECT_EQ(Message(CutIntoStages(step, {}).status()),
            "mlp has no layers to make stages of: it marks no boundaries between them");
}

// Two layers. w is state, read by the second, and x an input.
class TwoLayers {
 public:
  TwoLayers() : module_("m"), b(module_.Entry()) {
    b.SetPart({.phase = Phase::kForward, .layer = 1});
    w = b.Parameter({ElementType::kF32, {32}}, "w");
    b.SetPart({});
    x = b.Parameter({ElementType::kF32, {32}}, "x");
  }
  void SetPart(Phase phase, int layer) { b.SetPart({.phase = phase, .layer = layer}); }
  absl::StatusOr<StagedStep> Cut(const std::vector<Value>& results) {
    b.SetResults(results);
    return CutIntoStages(
        {.module = std::move(module_).Finish().value(),
         .parameters = {{.role = ParameterRole::kState, .name = "w", .state_result = new_state},
                        {.role = ParameterRole::kBatch, .name = "x"}},
         .results = std::vector<ResultInfo>(results.size()),
         .num_layers = 2},
        {.stage_of_layer = {0, 1}});
  }

 private:
  ModuleBuilder module_;

 public:
  ComputationBuilder b;
  Value w, x;
  int new_state = -1;
};

// -w of layer 0 is read by the backward pass alone, also by that of layer 1, for which the backward
// program of layer 0 would make it too late.
TEST(Stages, WeightsForBackwardPassesOfLaterStagesAreMadeInFrontOfThem) {
  TwoLayers step;
  step.SetPart(Phase::kBackward, 0);
  const Value turned = step.b.Unary(Opcode::kNegate, step.w);
  step.SetPart(Phase::kForward, 0);
  const Value in_0 = step.b.Unary(Opcode::kTanh, step.x);
  step.SetPart(Phase::kForward, 1);
  const Value in_1 = step.b.Binary(Opcode::kAdd, in_0, step.w);
  step.SetPart(Phase::kBackward, 1);
  const Value from_1 = step.b.Binary(Opcode::kMultiply, in_1, turned);
  step.SetPart(Phase::kBackward, 0);
  const Value from_0 = step.b.Binary(Opcode::kMultiply, from_1, turned);
  const auto staged = step.Cut({from_0});
  ASSERT_TRUE(staged.ok()) << Message(staged.status());
  int num_turned = 0;
  for (const Border& border : staged->borders) {
    const StageStep& from = staged->stages[border.from.stage];
    const Computation& entry = from.step.module.entry_computation();
    const InstructionId made = entry.results[border.from.number].instruction;
    if (entry.instructions[made].opcode != Opcode::kNegate) continue;
    ++num_turned;
    EXPECT_EQ(border.from.stage, 0);
    EXPECT_EQ(from.tasks[made].kind, ProgramKind::kForward);
  }
  EXPECT_EQ(num_turned, 1);
}

TEST(Stages, StateLiesWhereItIsUpdated) {
  TwoLayers step;
  step.new_state = 0;
  step.SetPart(Phase::kApply, 0);
  const Value updated = step.b.Unary(Opcode::kNegate, step.w);
  step.SetPart(Phase::kForward, 1);
  const auto staged = step.Cut({updated, step.b.Unary(Opcode::kTanh, step.w)});
  ASSERT_TRUE(staged.ok()) << Message(staged.status());
  EXPECT_EQ(staged->parameters[0][0].stage, 0);
  EXPECT_EQ(staged->results[0].stage, 0);
  EXPECT_EQ(staged->results[1].stage, 1);
}

TEST(Stages, AStageThatHasNothingToDoIsRefused) {
  TwoLayers step;
  step.new_state = 0;
  step.SetPart(Phase::kApply, 0);
  const Value updated = step.b.Unary(Opcode::kNegate, step.w);
  step.SetPart(Phase::kForward, 1);
  EXPECT_EQ(Message(step.Cut({updated, step.b.Unary(Opcode::kTanh, step.x)}).status()),
            "stage 1 would have nothing to do: what its layers compute depends on no weights and "
            "is made wherever it is read");
}

// Every task would do all of it, and update the state again.
TEST(Stages, MicroBatchesOfNothingAreRefused) {
  const Step whole = Prepare(SmallMlp()).value();
  EXPECT_EQ(Message(ScheduleFor(whole, "1f1b", {.num_meshes = 2, .num_micro_batches = 2}).status()),
            "2 micro-batches of what? No operation of mlp works on slices of its batch inputs");
}

TEST(Stages, WhatNothingReadsLiesOnStage0) {
  TwoLayers step;
  step.SetPart(Phase::kForward, 1);
  const auto staged = step.Cut({step.b.Unary(Opcode::kTanh, step.w)});
  ASSERT_TRUE(staged.ok()) << Message(staged.status());
  EXPECT_EQ(staged->parameters[0], (std::vector<StagePort>{{.stage = 1, .number = 0}}));
  EXPECT_EQ(staged->parameters[1], (std::vector<StagePort>{{.stage = 0, .number = 0}}));
}

TEST(Stages, AStageThatWouldWaitForALaterOneIsRefused) {
  TwoLayers step;
  step.SetPart(Phase::kForward, 1);
  const Value late = step.b.Unary(Opcode::kTanh, step.w);
  step.SetPart(Phase::kForward, 0);
  EXPECT_EQ(Message(step.Cut({step.b.Unary(Opcode::kNegate, late)}).status()),
            "the layers cannot be stages here: negate (forward of stage 0) reads tanh (forward of "
            "stage 1), which would come later");
}

// Also by way of what is made wherever it is read.
TEST(Stages, AStageThatWouldBroadcastWhatALaterOneMakesIsRefused) {
  TwoLayers step;
  step.SetPart(Phase::kForward, 1);
  const Value late = step.b.Unary(Opcode::kTanh, step.w);
  step.SetPart(Phase::kForward, -1);
  const Value everywhere = step.b.Broadcast(late, {32, 32}, {0});
  step.SetPart(Phase::kForward, 0);
  EXPECT_EQ(Message(step.Cut({step.b.Unary(Opcode::kNegate, everywhere)}).status()),
            "the layers cannot be stages here: broadcast (forward of stage 0) reads tanh (forward "
            "of stage 1), which would come later");
}

}  // namespace
}  // namespace minka
