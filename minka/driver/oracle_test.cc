#include "minka/driver/oracle.h"

#include <cmath>

#include "gtest/gtest.h"
#include "minka/ir/builder.h"
#include "minka/ir/hlo_proto.h"

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
  const Literal nudged = Nudged(fractions, std::ldexp(1, -23), 3);
  for (int64_t i = 0; i < 4; ++i) {
    const double moved = ElementAsDouble(nudged, i) / ElementAsDouble(fractions, i) - 1;
    EXPECT_GT(std::abs(moved), 0);
    EXPECT_LT(std::abs(moved), std::ldexp(1, -22));
  }
  const Literal whole = Filled(ElementType::kF32, 3);
  EXPECT_EQ(Nudged(whole, std::ldexp(1, -23), 3), whole);
  const Literal integers = Filled(ElementType::kS32, 3);
  EXPECT_EQ(Nudged(integers, std::ldexp(1, -23), 3), integers);
}

// y = x - 0.5 * f32(type(x)), which replaces x.
Step UpdateThrough(ElementType type) {
  ModuleBuilder module("step");
  ComputationBuilder b = module.Entry();
  const Value x = b.Parameter({ElementType::kF32, {4}}, "x");
  const Value narrow = b.Convert(b.Convert(x, type), ElementType::kF32);
  const Value half = b.Broadcast(b.Scalar(ElementType::kF32, 0.5), {4}, {});
  b.SetResults({b.Binary(Opcode::kSubtract, x, b.Binary(Opcode::kMultiply, half, narrow)), x});
  return {.module = *std::move(module).Finish(),
          .parameters = {{.role = ParameterRole::kState, .state_result = 0}},
          .results = {{ResultRole::kState, "y"}, {.name = "x"}}};
}

TEST(FindPathEpsilons, AreThoseOfTheNarrowestTypeOnTheWay) {
  for (const auto& [type, mantissa_bits] :
       {std::pair(ElementType::kBF16, 7), std::pair(ElementType::kF16, 10),
        std::pair(ElementType::kF32, 23), std::pair(ElementType::kF64, 23)}) {
    const PathEpsilons epsilons = FindPathEpsilons(UpdateThrough(type));
    const double epsilon = std::ldexp(1, -mantissa_bits);
    // The second result is narrow through the state that is fed back.
    EXPECT_EQ(epsilons.of_results, std::vector<double>({epsilon, epsilon})) << TypeName(type);
    EXPECT_EQ(epsilons.of_parameters, std::vector<double>({epsilon})) << TypeName(type);
  }
}

TEST(FindPathEpsilons, LookIntoWhatIsCalled) {
  const Module module = *ParseHloText(R"(HloModule called

narrow {
  p = f32[4] parameter(0)
  n = bf16[4] convert(p)
  ROOT w = f32[4] convert(n)
}

ENTRY main {
  x = f32[4] parameter(0)
  y = f32[4] parameter(1)
  c = f32[4] call(x), to_apply=narrow
  r = f32[4] reduce-precision(y), exponent_bits=8, mantissa_bits=10
  ROOT t = (f32[4], f32[4], f32[4]) tuple(c, r, y)
}
)");
  const PathEpsilons epsilons =
      FindPathEpsilons({.module = module, .parameters = {{}, {}}, .results = {{}, {}, {}}});
  EXPECT_EQ(epsilons.of_results,
            std::vector<double>({std::ldexp(1, -7), std::ldexp(1, -10), std::ldexp(1, -23)}));
  EXPECT_EQ(epsilons.of_parameters, std::vector<double>({std::ldexp(1, -7), std::ldexp(1, -10)}));
}

TEST(CompareResults, NarrowTypesOnTheWayLoosenWhatAnUpdateChangesAndNotTheState) {
  const Step step = UpdateThrough(ElementType::kBF16);
  // The update takes 1000 to 999: what it does may be 4 sqrt(2^-7) of 1 off, not of 1000.
  const auto compare = [&](double minka, double nudged_before, double nudged) {
    const auto filled = [](double value) { return Filled(ElementType::kF32, value); };
    const Literal x = filled(1000);
    return CompareResults(step, {filled(minka), x},
                          {.single = {filled(999), x},
                           .nudged = {filled(nudged), x},
                           .reference = {Filled(ElementType::kF64, 999), x},
                           .before = {x, {}},
                           .nudged_before = {filled(nudged_before), {}}})
        .outputs[0];
  };
  EXPECT_TRUE(compare(999.35, 1000, 999).ok);
  EXPECT_FALSE(compare(999.4, 1000, 999).ok);
  EXPECT_FALSE(compare(1000, 1000, 999).ok) << "the update was not applied";
  // Nudged state is far away, what the step adds to it is not.
  EXPECT_FALSE(compare(999.4, 1008, 1007).ok);
  EXPECT_TRUE(compare(999.4, 1008, 1007.1).ok);
}

TEST(CompareResults, NarrowTypesOnTheWayLoosenOtherResults) {
  Step step = UpdateThrough(ElementType::kBF16);
  step.parameters[0] = {};
  step.results[0].role = ResultRole::kLoss;
  const Literal exact = Filled(ElementType::kF32, 1), x = exact;
  const auto ok = [&](double minka) {
    return CompareResults(step, {Filled(ElementType::kF32, minka), x},
                          {.single = {exact, x},
                           .nudged = {exact, x},
                           .reference = {Filled(ElementType::kF64, 1), x}})
        .outputs[0]
        .ok;
  };
  EXPECT_TRUE(ok(1.12));
  EXPECT_FALSE(ok(1.13));
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
