#include "minka/oracle/rounding.h"

#include <cmath>
#include <utility>

#include "gtest/gtest.h"
#include "minka/ir/builder.h"
#include "minka/ir/hlo_proto.h"

namespace minka {
namespace {

TEST(Nudged, MovesFractionsByOneRoundingAndNothingElse) {
  const Literal fractions = FilledLiteral({ElementType::kF32, {4}}, 0.7);
  const Literal nudged = Nudged(fractions, std::ldexp(1, -23), 3);
  for (int64_t i = 0; i < 4; ++i) {
    const double moved = ElementAsDouble(nudged, i) / ElementAsDouble(fractions, i) - 1;
    EXPECT_GT(std::abs(moved), 0);
    EXPECT_LT(std::abs(moved), std::ldexp(1, -22));
  }
  const Literal whole = FilledLiteral({ElementType::kF32, {4}}, 3);
  EXPECT_EQ(Nudged(whole, std::ldexp(1, -23), 3), whole);
  const Literal integers = FilledLiteral({ElementType::kS32, {4}}, 3);
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

TEST(DependsOnRng, FollowsRandomNumbersToTheResult) {
  for (const bool uses_rng : {false, true}) {
    ModuleBuilder module("step");
    ComputationBuilder b = module.Entry();
    const Shape shape{ElementType::kF32, {4}};
    const Value x = b.Parameter(shape, "x");
    const Value zero = b.Scalar(ElementType::kF32, 0), one = b.Scalar(ElementType::kF32, 1);
    const Value random = b.Append({.opcode = Opcode::kRng,
                                   .operands = {zero, one},
                                   .results = {shape},
                                   .attributes = RngAttributes{.distribution = 1}});
    b.SetResults({b.Binary(Opcode::kAdd, x, uses_rng ? random : x)});
    const Step step{.module = *std::move(module).Finish(), .parameters = {{}}, .results = {{}}};
    EXPECT_EQ(DependsOnRng(step), std::vector<bool>{uses_rng});
  }
}

}  // namespace
}  // namespace minka
