#include "minka/lowering/rematerialize.h"

#include <algorithm>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/analysis/structure.h"
#include "minka/base/status.h"
#include "minka/ir/builder.h"
#include "minka/ir/verifier.h"
#include "minka/lowering/join_barriers.h"

namespace minka {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

constexpr RematPolicy kNone = RematPolicy::kNone;
constexpr RematPolicy kDots = RematPolicy::kDots;
constexpr RematPolicy kAll = RematPolicy::kAll;

const Shape kRows{ElementType::kF32, {4, 4}};

// Two layers, differentiated by hand; every operation has its name as op_name:
//
//   start = -x, u0 = start w0, x1 = tanh(u0) | u1 = x1 w1, x2 = tanh(u1) | s = exp(x2), loss = sum
//   s d2 = s s, e1 = d2 factor(u1), g1 = x1^T e1, d1 = e1 w1^T, e0 = d1 factor(u0), g0 = start^T e0
//
// `shuffled`: the factors, which are made of forward values alone, stand in the forward pass, and
// g1 stands behind everything. `late`: another gradient enters layer 1 behind all of these but
// g0, of r = tanh(x2), loss = sum s r: t = r r, g1 += x1^T (t factor(u1)), so that e1 and what
// reads it wait until g0 asks for them, and
// g0 += d1 u0.
Step TwoLayers(bool shuffled = false, bool late = false) {
  ModuleBuilder module("step");
  ComputationBuilder b = module.Entry();
  const Value w0 = b.Parameter(kRows, "w0"), w1 = b.Parameter(kRows, "w1");
  const Value x = b.Parameter(kRows, "x");
  const auto unary = [&](const char* name, Opcode opcode, Value operand) {
    b.SetOpName(name);
    return b.Unary(opcode, operand);
  };
  const auto product = [&](const char* name, Value first, Value second) {
    b.SetOpName(name);
    return b.Binary(Opcode::kMultiply, first, second);
  };
  const auto dot = [&](const char* name, Value first, Value second, DotAttributes attributes) {
    b.SetOpName(name);
    return b.Dot(first, second, std::move(attributes));
  };
  Value factor0, factor1;
  const Value start = unary("start", Opcode::kNegate, x);
  const Value u0 = dot("u0", start, w0, {{1}, {0}});
  if (shuffled) factor0 = unary("factor0", Opcode::kCosine, u0);
  const Value x1 = unary("x1", Opcode::kTanh, u0);
  const Value u1 = dot("u1", x1, w1, {{1}, {0}});
  if (shuffled) factor1 = unary("factor1", Opcode::kCosine, u1);
  const Value x2 = unary("x2", Opcode::kTanh, u1);
  const Value s = unary("s", Opcode::kExponential, x2);
  const Value r = late ? unary("r", Opcode::kTanh, x2) : Value();
  const Value lost = late ? product("sr", s, r) : s;
  const Value loss = b.Reduce(lost, b.Scalar(ElementType::kF32, 0), {0, 1}, Opcode::kAdd);
  const Value d2 = product("d2", s, s);
  if (!shuffled) factor1 = unary("factor1", Opcode::kCosine, u1);
  const Value e1 = product("e1", d2, factor1);
  Value g1 = shuffled ? Value() : dot("g1", x1, e1, {{0}, {0}});
  const Value d1 = dot("d1", e1, w1, {{1}, {1}});
  if (!shuffled) factor0 = unary("factor0", Opcode::kCosine, u0);
  const Value e0 = product("e0", d1, factor0);
  Value late_g0;
  if (late) {
    const Value t = product("t", r, r);
    g1 = b.Binary(Opcode::kAdd, g1, dot("more", x1, product("te", t, factor1), {{0}, {0}}));
    late_g0 = product("late_g0", d1, u0);
  }
  Value g0 = dot("g0", start, e0, {{0}, {0}});
  if (late) g0 = b.Binary(Opcode::kAdd, g0, late_g0);
  if (shuffled) g1 = dot("g1", x1, e1, {{0}, {0}});
  b.SetResults({b.Binary(Opcode::kSubtract, w0, g0), b.Binary(Opcode::kSubtract, w1, g1), loss});
  Step step;
  step.module = *std::move(module).Finish();
  step.parameters = {{.role = ParameterRole::kState, .name = "w0", .state_result = 0},
                     {.role = ParameterRole::kState, .name = "w1", .state_result = 1},
                     {.role = ParameterRole::kBatch, .name = "x", .batch_dim = 0}};
  step.results = {{ResultRole::kState, "w0"}, {ResultRole::kState, "w1"}, {ResultRole::kLoss, ""}};
  step.marks = {{MarkKind::kLayerBoundary, x1, 0},
                {MarkKind::kLayerBoundary, x2, 1},
                {MarkKind::kGradient, g0, 0},
                {MarkKind::kGradient, g1, 1}};
  std::ranges::sort(step.marks, {}, &Mark::value);
  return WithStructure(std::move(step));
}

Step MustRematerialize(const Step& step, const RematChoice& choice) {
  absl::StatusOr<Step> remat = Rematerialize(step, choice);
  EXPECT_TRUE(remat.ok()) << Message(remat.status());
  EXPECT_TRUE(Verify(remat->module).ok()) << Message(Verify(remat->module));
  return *std::move(remat);
}

// op_names of the copies, in order.
std::vector<std::string> Copies(const Step& step) {
  std::vector<std::string> copies;
  for (const Instruction& instruction : step.module.entry_computation().instructions) {
    const bool is_copy = instruction.op_name.starts_with("recompute/");
    if (is_copy) {
      EXPECT_EQ(instruction.part.phase, Phase::kBackward);
      EXPECT_GE(instruction.part.layer, 0);
    }
    if (is_copy && instruction.opcode != Opcode::kOptBarrier) copies.push_back(instruction.op_name);
  }
  return copies;
}

InstructionId Find(const Step& step, const std::string& op_name) {
  const auto& instructions = step.module.entry_computation().instructions;
  const auto found = std::ranges::find(instructions, op_name, &Instruction::op_name);
  EXPECT_NE(found, instructions.end()) << op_name;
  return static_cast<InstructionId>(found - instructions.begin());
}

// What the operation reads, by op_name.
std::vector<std::string> Reads(const Step& step, const std::string& op_name) {
  const Computation& entry = step.module.entry_computation();
  std::vector<std::string> names;
  for (const Value operand : entry.instructions[Find(step, op_name)].operands) {
    const bool is_lane = entry.instruction(operand).opcode == Opcode::kOptBarrier;
    names.push_back((is_lane ? "lane of " : "") + entry.instruction(operand).op_name);
  }
  return names;
}

TEST(Rematerialize, AllComputesEverythingAgainFromWhatEntersTheLayers) {
  const Step remat = MustRematerialize(TwoLayers(), {kAll});
  EXPECT_THAT(Copies(remat), ElementsAre("recompute/u1", "recompute/start", "recompute/u0"));
  EXPECT_THAT(Reads(remat, "factor1"), ElementsAre("recompute/u1"));
  EXPECT_THAT(Reads(remat, "recompute/u1"), ElementsAre("lane of recompute/x1", "w1"));
  EXPECT_THAT(Reads(remat, "e1"), ElementsAre("lane of recompute/d2", "factor1"));
  EXPECT_THAT(Reads(remat, "g0"), ElementsAre("recompute/start", "e0"));
  // The forward pass stays as it was.
  EXPECT_THAT(Reads(remat, "x1"), ElementsAre("u0"));
}

TEST(Rematerialize, DotsStay) {
  const Step remat = MustRematerialize(TwoLayers(), {kDots});
  EXPECT_THAT(Copies(remat), ElementsAre("recompute/start"));
  EXPECT_THAT(Reads(remat, "factor0"), ElementsAre("u0"));
}

TEST(Rematerialize, LayersAreChosenOneByOne) {
  EXPECT_THAT(Copies(MustRematerialize(TwoLayers(), {kNone, kAll, kNone})),
              ElementsAre("recompute/u1"));
  EXPECT_THAT(Copies(MustRematerialize(TwoLayers(), {kAll, kDots, kNone})),
              ElementsAre("recompute/start", "recompute/u0"));
}

TEST(Rematerialize, OneBarrierPerLayerHoldsBackUntilTheGradientArrives) {
  const Step remat = MustRematerialize(TwoLayers(), {kAll});
  std::vector<int> regions;
  for (const Mark& mark : remat.marks) {
    if (mark.kind == MarkKind::kRematRegion) regions.push_back(mark.index);
  }
  EXPECT_THAT(regions, ElementsAre(1, 0));
  const Module joined = JoinBarriers(remat.module).module;
  std::vector<size_t> barriers;
  for (const Instruction& instruction : joined.entry_computation().instructions) {
    if (instruction.opcode == Opcode::kOptBarrier) barriers.push_back(instruction.operands.size());
  }
  EXPECT_THAT(barriers, ElementsAre(2, 2)) << "x1 and d2, x and e1";
}

TEST(Rematerialize, WhatReadsCopiesWaitsForThem) {
  const Step remat = MustRematerialize(TwoLayers(/*shuffled=*/true), {kAll});
  EXPECT_THAT(Reads(remat, "factor0"), ElementsAre("recompute/u0"));
  EXPECT_GT(Find(remat, "factor1"), Find(remat, "d2"));
  EXPECT_GT(Find(remat, "factor0"), Find(remat, "e1"));
}

TEST(Rematerialize, WeightsGradientsComeAsSoonAsTheGradientsThatTheyRead) {
  const Step remat = MustRematerialize(TwoLayers(/*shuffled=*/true), {kAll});
  EXPECT_THAT(Reads(remat, "g1"), ElementsAre("lane of recompute/x1", "e1"));
  EXPECT_LT(Find(remat, "g1"), Find(remat, "recompute/u0"));
}

TEST(Rematerialize, WeightsGradientsComeBeforeWhatAsksForTheGradientsThatTheyRead) {
  const Step remat = MustRematerialize(TwoLayers(/*shuffled=*/false, /*late=*/true), {kAll});
  EXPECT_THAT(Copies(remat),
              UnorderedElementsAre("recompute/u1", "recompute/start", "recompute/u0"));
  EXPECT_LT(Find(remat, "t"), Find(remat, "e1"));
  EXPECT_LT(Find(remat, "g1"), Find(remat, "recompute/u0"));
}

TEST(EffectiveRemat, FindsLayersThatNobodyMarked) {
  Step unmarked = TwoLayers();
  std::erase_if(unmarked.marks, [](const Mark& mark) { return mark.kind != MarkKind::kGradient; });
  EXPECT_THAT(*EffectiveRemat(WithStructure(unmarked), {kAll}), ElementsAre(kAll, kNone))
      << "behind x1: the rest";
}

TEST(EffectiveRemat, LeavesOutLayersThatKeepNothing) {
  EXPECT_THAT(*EffectiveRemat(TwoLayers(), {kAll}), ElementsAre(kAll, kAll, kNone));
  EXPECT_THAT(*EffectiveRemat(TwoLayers(), {kNone}), IsEmpty());
  EXPECT_THAT(*EffectiveRemat(TwoLayers(), {}), IsEmpty());
}

TEST(EffectiveRemat, RefusesByName) {
  EXPECT_EQ(Message(EffectiveRemat(TwoLayers(), {kAll, kAll}).status()),
            "rematerialisation is chosen for 2 layers; the step has 3 (those in front of the first "
            "and behind the last boundary count)");
  EXPECT_THAT(Message(EffectiveRemat(TwoLayers(), {kNone, kNone, kAll}).status()),
              HasSubstr("keep nothing for a backward pass"));
  Step without_loss = TwoLayers();
  without_loss.marks.clear();
  without_loss.results.back().role = ResultRole::kMetric;
  EXPECT_THAT(Message(EffectiveRemat(WithStructure(without_loss), {kDots}).status()),
              HasSubstr("the step does not say which result is its loss"));
}

}  // namespace
}  // namespace minka
