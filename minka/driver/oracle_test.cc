#include "minka/driver/oracle.h"

#include <cmath>

#include "gtest/gtest.h"
#include "minka/ir/builder.h"

namespace minka {
namespace {

Literal Filled(ElementType type, double value) { return FilledLiteral({type, {4}}, value); }

Step StepWith(ElementType type, bool uses_rng) {
  ModuleBuilder module("step");
  ComputationBuilder b = module.Entry();
  Value x = b.Parameter({type, {4}}, "x");
  if (uses_rng) {
    const Value zero = b.Scalar(type, 0), one = b.Scalar(type, 1);
    x = b.Binary(Opcode::kAdd, x,
                 b.Append({.opcode = Opcode::kRng,
                           .operands = {zero, one},
                           .results = {{type, {4}}},
                           .attributes = RngAttributes{.distribution = 1}}));
  }
  b.SetResults({x});
  return {.module = *std::move(module).Finish(), .parameters = {{}}, .results = {{.name = "y"}}};
}

OutputComparison Compare(const Step& step, Literal minka, Literal single, Literal nudged,
                         Literal reference) {
  return CompareResults(step, {minka},
                        {.single = {single}, .nudged = {nudged}, .reference = {reference}})
      .outputs[0];
}

OutputComparison Compare(const Step& step, Literal minka, Literal single, Literal reference) {
  return Compare(step, minka, single, single, reference);
}

TEST(CompareResults, AllowsFourTimesTheErrorOfOneDevice) {
  const Step step = StepWith(ElementType::kF32, false);
  const Literal reference = Filled(ElementType::kF64, 1), single = Filled(ElementType::kF32, 1.001);
  EXPECT_TRUE(Compare(step, Filled(ElementType::kF32, 0.997), single, reference).ok);
  EXPECT_FALSE(Compare(step, Filled(ElementType::kF32, 0.995), single, reference).ok);
  // One device is exact: a few roundings are allowed.
  const Literal exact = Filled(ElementType::kF32, 1);
  EXPECT_TRUE(Compare(step, Filled(ElementType::kF32, 1.000001), exact, reference).ok);
  EXPECT_FALSE(Compare(step, Filled(ElementType::kF32, 1.00001), exact, reference).ok);
}

TEST(CompareResults, AllowsFourTimesWhatARoundingOfTheInputsDoes) {
  const Step step = StepWith(ElementType::kF32, false);
  const Literal reference = Filled(ElementType::kF64, 1), exact = Filled(ElementType::kF32, 1);
  const Literal nudged = Filled(ElementType::kF32, 1.001);
  EXPECT_TRUE(Compare(step, Filled(ElementType::kF32, 0.997), exact, nudged, reference).ok);
  EXPECT_FALSE(Compare(step, Filled(ElementType::kF32, 0.995), exact, nudged, reference).ok);
}

TEST(Nudged, MovesFractionsByOneRoundingAndNothingElse) {
  const Literal fractions = Filled(ElementType::kF32, 0.7);
  const Literal nudged = Nudged(fractions, 3);
  for (int64_t i = 0; i < 4; ++i) {
    const double moved = ElementAsDouble(nudged, i) / ElementAsDouble(fractions, i) - 1;
    EXPECT_GT(std::abs(moved), 0);
    EXPECT_LT(std::abs(moved), std::ldexp(1, -22));
  }
  const Literal whole = Filled(ElementType::kF32, 3);
  EXPECT_EQ(Nudged(whole, 3), whole);
  const Literal integers = Filled(ElementType::kS32, 3);
  EXPECT_EQ(Nudged(integers, 3), integers);
}

TEST(CompareResults, IntegersMustBeEqual) {
  const Step step = StepWith(ElementType::kS32, false);
  const Literal one = Filled(ElementType::kS32, 1), two = Filled(ElementType::kS32, 2);
  EXPECT_TRUE(Compare(step, one, one, one).ok);
  const OutputComparison different = Compare(step, two, one, one);
  EXPECT_FALSE(different.ok);
  EXPECT_EQ(different.largest_difference, 1);
}

TEST(CompareResults, InfinityIsOnlyFineWhereOneDeviceHasIt) {
  const Step step = StepWith(ElementType::kF32, false);
  const Literal infinite = Filled(ElementType::kF32, INFINITY), one = Filled(ElementType::kF32, 1);
  EXPECT_FALSE(Compare(step, infinite, one, Filled(ElementType::kF64, 1)).ok);
  EXPECT_TRUE(Compare(step, infinite, infinite, Filled(ElementType::kF64, INFINITY)).ok);
}

TEST(CompareResults, RandomOutputsOnlyKeepTheirRange) {
  const Step step = StepWith(ElementType::kF32, true);
  EXPECT_EQ(DependsOnRng(step), std::vector<bool>{true});
  const Literal reference = Filled(ElementType::kF64, 0.5);
  Literal single = Filled(ElementType::kF32, 0.5);
  EXPECT_TRUE(Compare(step, single, single, reference).ok);
  EXPECT_FALSE(Compare(step, Filled(ElementType::kF32, 7), single, reference).ok);
}

}  // namespace
}  // namespace minka
