#include "minka/lowering/split_stacks.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/base/status.h"
#include "minka/ir/hlo_proto.h"
#include "minka/ir/testing/evaluator.h"
#include "minka/ir/verifier.h"

namespace minka {
namespace {

using ::testing::ElementsAre;

// Two layers x = x w[i], what their loops are written out to, with momentum m = m / 2 + gradient
// and weights w - m, and the sum of the gradient's elements.
constexpr char kLayers[] = R"(HloModule step

sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

ENTRY step {
  w = f32[2,2,2] parameter(0)
  x = f32[2,2] parameter(1)
  m = f32[2,2,2] parameter(2)
  w_0 = f32[1,2,2] slice(w), slice={[0:1], [0:2], [0:2]}
  w_1 = f32[1,2,2] slice(w), slice={[1:2], [0:2], [0:2]}
  w0 = f32[2,2] reshape(w_0)
  w1 = f32[2,2] reshape(w_1)
  y = f32[2,2] dot(x, w0), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  z = f32[2,2] dot(y, w1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  g1 = f32[2,2] dot(y, z), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  gy = f32[2,2] dot(z, w1), lhs_contracting_dims={1}, rhs_contracting_dims={1}
  g0 = f32[2,2] dot(x, gy), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  g_0 = f32[1,2,2] reshape(g0)
  g_1 = f32[1,2,2] reshape(g1)
  stacked = f32[2,2,2] concatenate(g_0, g_1), dimensions={0}
  g = f32[2,2,2] opt-barrier(stacked), frontend_attributes={minka.mark="gradient 0"}
  half = f32[] constant(0.5)
  halves = f32[2,2,2] broadcast(half), dimensions={}
  kept = f32[2,2,2] multiply(m, halves)
  m_new = f32[2,2,2] add(kept, g)
  w_new = f32[2,2,2] subtract(w, m_new)
  zero = f32[] constant(0)
  total = f32[] reduce(g, zero), dimensions={0,1,2}, to_apply=sum
  ROOT out = (f32[2,2,2], f32[], f32[2,2,2]) tuple(w_new, total, m_new)
}
)";

Step StepOf(const std::string& text) {
  Module module = ParseHloText(text).value();
  module.aliases = {{.result = 0, .parameter = 0}, {.result = 2, .parameter = 2}};
  Step step =
      MakeStep(std::move(module), {.batch_inputs = {"1"}, .states = {"0:0", "2:2"}, .loss = 1})
          .value();
  step.parameters[0].name = "w";
  step.parameters[1].name = "x";
  step.parameters[2].name = "m";
  return step;
}

std::vector<std::string> Names(const Step& step) {
  std::vector<std::string> names;
  for (const ParameterInfo& parameter : step.parameters) names.push_back(parameter.name);
  return names;
}

int64_t Count(const Step& step, Opcode opcode) {
  return std::ranges::count(step.module.entry_computation().instructions, opcode,
                            &Instruction::opcode);
}

std::string Replaced(std::string text, const std::string& what, const std::string& by) {
  text.replace(text.find(what), what.size(), by);
  return text;
}

Shape FloatsOf(std::vector<int64_t> dims) { return {ElementType::kF32, std::move(dims)}; }

TEST(SplitStacks, EachLayerHasItsRowOfWhatIsUpdatedRowByRow) {
  const SplitStep split = SplitStacks(StepOf(kLayers)).value();
  EXPECT_TRUE(Verify(split.step.module).ok()) << Message(Verify(split.step.module));
  EXPECT_THAT(Names(split.step), ElementsAre("w[0]", "w[1]", "x", "m[0]", "m[1]"));
  EXPECT_THAT(split.rows.parameters,
              ElementsAre(ElementsAre(0, 1), ElementsAre(2), ElementsAre(3, 4)));
  EXPECT_THAT(split.rows.results,
              ElementsAre(ElementsAre(0, 1), ElementsAre(2), ElementsAre(3, 4)));
  EXPECT_EQ(split.step.parameters[4].state_result, 4);
  EXPECT_EQ(split.step.module.aliases.size(), 4);
  EXPECT_EQ(Count(split.step, Opcode::kSlice) + Count(split.step, Opcode::kConcatenate), 0);
  ASSERT_EQ(split.step.marks.size(), 2);
  EXPECT_EQ(split.step.marks[0].index + split.step.marks[1].index, 1);
}

// The step with w and m split computes what it does without.
void ExpectSameResults(const Step& step, const SplitStep& split) {
  ASSERT_TRUE(Verify(split.step.module).ok()) << Message(Verify(split.step.module));
  ASSERT_THAT(Names(split.step), ElementsAre("w[0]", "w[1]", "x", "m[0]", "m[1]"));
  const std::vector<long double> w = {1, 2, 0, 1, 2, 0, 1, 1}, m = {2, 4, 6, 8, 1, 3, 5, 7};
  const testing::Array x{FloatsOf({2, 2}), {1, 2, 3, 4}};
  const auto row = [](const std::vector<long double>& all, int64_t i) {
    return testing::Array{FloatsOf({1, 2, 2}), {all.begin() + 4 * i, all.begin() + 4 * i + 4}};
  };
  const auto whole = testing::Evaluate(step.module, {testing::Array{FloatsOf({2, 2, 2}), w}, x,
                                                     testing::Array{FloatsOf({2, 2, 2}), m}});
  const auto rows =
      testing::Evaluate(split.step.module, {row(w, 0), row(w, 1), x, row(m, 0), row(m, 1)});
  EXPECT_EQ(rows[0].elements, row(whole[0].elements, 0).elements);
  EXPECT_EQ(rows[1].elements, row(whole[0].elements, 1).elements);
  EXPECT_EQ(rows[2].elements, whole[1].elements);
  EXPECT_EQ(rows[3].elements, row(whole[2].elements, 0).elements);
  EXPECT_EQ(rows[4].elements, row(whole[2].elements, 1).elements);
}

TEST(SplitStacks, ComputesWhatTheStepDoes) {
  const Step step = StepOf(kLayers);
  ExpectSameResults(step, SplitStacks(step).value());
}

TEST(SplitStacks, WhatReadsAStackAsAWholeReadsItsRowsPutTogether) {
  const Step step = StepOf(Replaced(
      kLayers, "total = f32[] reduce(g, zero)",
      "turned = f32[2,2,2] reverse(g), dimensions={0}\n  total = f32[] reduce(turned, zero)"));
  const SplitStep split = SplitStacks(step).value();
  ExpectSameResults(step, split);
  EXPECT_EQ(Count(split.step, Opcode::kConcatenate), 1);
}

// The rows of what each reader makes for itself are there, too, once a split stack has read them.
TEST(SplitStacks, SumsThatKeepRowsStaySumsOfTheWhole) {
  const Step step =
      StepOf(Replaced(kLayers, "total = f32[] reduce(g, zero), dimensions={0,1,2}, to_apply=sum",
                      "of_rows = f32[2] reduce(halves, zero), dimensions={1,2}, to_apply=sum\n"
                      "  of_all = f32[] reduce(g, zero), dimensions={0,1,2}, to_apply=sum\n"
                      "  of_both = f32[] reduce(of_rows, zero), dimensions={0}, to_apply=sum\n"
                      "  total = f32[] add(of_all, of_both)"));
  ExpectSameResults(step, SplitStacks(step).value());
}

TEST(SplitStacks, StateThatIsUpdatedAcrossRowsStaysWhole) {
  const std::string turned = "turned = f32[2,2,2] reverse(m_new), dimensions={0}\n  w_new = ";
  std::string text = Replaced(kLayers, "w_new = ", turned);
  text = Replaced(text, "tuple(w_new, total, m_new)", "tuple(w_new, total, turned)");
  EXPECT_THAT(Names(SplitStacks(StepOf(text)).value().step), ElementsAre("w", "x", "m"));
}

TEST(SplitStacks, ConstantsThatLayersReadAreSplit) {
  Step step = StepOf(kLayers);
  const auto constant = [&](int parameter) {
    step.parameters[parameter].role = ParameterRole::kConstant;
    step.parameters[parameter].state_result = -1;
    step.results[parameter].role = ResultRole::kMetric;
  };
  constant(0);
  constant(2);
  step.module.aliases.clear();
  const SplitStep split = SplitStacks(step).value();
  EXPECT_TRUE(Verify(split.step.module).ok()) << Message(Verify(split.step.module));
  EXPECT_THAT(Names(split.step), ElementsAre("w[0]", "w[1]", "x", "m[0]", "m[1]"));
  // Results that are no state stay whole.
  EXPECT_THAT(split.rows.results, ElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre(2)));
}

TEST(SplitStacks, WhatNoLayerReadsStaysAsItIs) {
  std::string text = Replaced(kLayers, "stacked = f32[2,2,2] concatenate(g_0, g_1), dimensions={0}",
                              "one = f32[4,2] concatenate(g0, g1), dimensions={0}\n"
                              "  stacked = f32[2,2,2] reshape(one)");
  text = Replaced(text, "w_1 = f32[1,2,2] slice(w), slice={[1:2], [0:2], [0:2]}",
                  "w_1 = f32[1,2,2] slice(w), slice={[0:1], [0:2], [0:2]}");
  const Step step = StepOf(text);
  const SplitStep split = SplitStacks(step).value();
  EXPECT_EQ(ModuleHash(split.step.module), ModuleHash(step.module));
  EXPECT_THAT(split.rows.parameters, ElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre(2)));
}

// A random key, of which new words are put together where a step counts.
constexpr char kKeyOfTwoWords[] = R"(HloModule step

ENTRY step {
  key = u32[2] parameter(0)
  counts = pred[] parameter(1)
  first = u32[1] slice(key), slice={[0:1]}
  second = u32[1] slice(key), slice={[1:2]}
  mixed = u32[1] xor(first, second)
  next = u32[2] concatenate(second, mixed), dimensions={0}
  ROOT now = u32[2] select(counts, next, key)
}
)";

TEST(SplitStacks, WordsOfARandomKeyAreNoLayers) {
  Module module = ParseHloText(kKeyOfTwoWords).value();
  module.aliases = {{.result = 0, .parameter = 0}};
  const Step step = MakeStep(std::move(module), {.states = {"0:0"}}).value();
  EXPECT_THAT(SplitStacks(step).value().rows.parameters,
              ElementsAre(ElementsAre(0), ElementsAre(1)));
}

TEST(SplitStacks, SplitsWhatItIsToldTo) {
  const SplitStep split = SplitStacks(StepOf(kLayers), {"m"}).value();
  EXPECT_TRUE(Verify(split.step.module).ok()) << Message(Verify(split.step.module));
  EXPECT_THAT(Names(split.step), ElementsAre("w", "x", "m[0]", "m[1]"));
}

// Whole weights for two layers from one number each: a result that is made row by row, one that is
// made of other rows, and one that stays whole.
constexpr char kInitialValues[] = R"(HloModule initial_values

ENTRY initial_values {
  scales = f32[2] parameter(0)
  wide = f32[2,3] broadcast(scales), dimensions={0}
  counts = f32[2,3] iota(), iota_dimension=1
  by_row = f32[2,3] multiply(wide, counts)
  turned = f32[2,3] reverse(by_row), dimensions={0}
  ROOT out = (f32[2,3], f32[2,3], f32[2,3]) tuple(by_row, turned, wide)
}
)";

TEST(SplitResults, SplitsTheseAlone) {
  const Step step = MakeStep(ParseHloText(kInitialValues).value(), {}).value();
  const SplitStep split = SplitResults(step, {0, 1}).value();
  ASSERT_TRUE(Verify(split.step.module).ok()) << Message(Verify(split.step.module));
  EXPECT_THAT(split.rows.parameters, ElementsAre(ElementsAre(0)));
  EXPECT_THAT(split.rows.results,
              ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3), ElementsAre(4)));
  const testing::Array scales{FloatsOf({2}), {3, 5}};
  const auto whole = testing::Evaluate(step.module, {scales});
  const auto rows = testing::Evaluate(split.step.module, {scales});
  ASSERT_EQ(rows.size(), 5);
  EXPECT_THAT(rows[1].elements, ElementsAre(0, 5, 10));
  EXPECT_THAT(rows[2].elements, ElementsAre(0, 5, 10));
  EXPECT_EQ(rows[3].shape, FloatsOf({1, 3}));
  EXPECT_EQ(rows[4].elements, whole[2].elements);
}

TEST(SplitResults, OfNoneIsTheStepAsItIs) {
  const Step step = MakeStep(ParseHloText(kInitialValues).value(), {}).value();
  const SplitStep split = SplitResults(step, {}).value();
  EXPECT_EQ(ModuleHash(split.step.module), ModuleHash(step.module));
}

}  // namespace
}  // namespace minka
