#include "minka/analysis/widen.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/base/status.h"
#include "minka/ir/builder.h"
#include "minka/ir/verifier.h"

namespace minka {
namespace {

using ::testing::ElementsAre;

using ElementType::kBF16;
using ElementType::kF32;
using ElementType::kU32;

// "opcode result-type" of every instruction.
std::vector<std::string> Summary(const Computation& computation) {
  std::vector<std::string> lines;
  for (const Instruction& instruction : computation.instructions) {
    lines.push_back(
        fmt::format("{} {}", OpcodeName(instruction.opcode), ToString(instruction.shape())));
  }
  return lines;
}

Module Widened(ModuleBuilder&& builder) {
  auto module = std::move(builder).Finish();
  EXPECT_TRUE(module.ok()) << Message(module.status());
  Module widened = WidenFloats(*module);
  EXPECT_TRUE(Verify(widened).ok()) << Message(Verify(widened));
  return widened;
}

TEST(WidenFloats, ConversionsBetweenFloatsVanish) {
  ModuleBuilder builder("m");
  ComputationBuilder b = builder.Entry();
  const Value x = b.Parameter({kF32, {4}}, "x");
  const Value y = b.Parameter({kBF16, {4}}, "y");
  const Value sum = b.Binary(Opcode::kAdd, b.Convert(x, kBF16), y);
  const Value rounded = b.Append({.opcode = Opcode::kReducePrecision,
                                  .operands = {b.Convert(sum, kF32)},
                                  .attributes = ReducePrecisionAttributes{8, 7}});
  b.SetResults({rounded, b.Convert(sum, ElementType::kS32), b.Convert(sum, ElementType::kF16)});
  builder.AddAlias({.result = 0, .parameter = 0});
  const Module module = Widened(std::move(builder));
  EXPECT_THAT(Summary(module.entry_computation()),
              ElementsAre("parameter f64[4]", "parameter f64[4]", "add f64[4]", "convert s32[4]"));
  EXPECT_EQ(module.entry_computation().results[0], module.entry_computation().results[2]);
  EXPECT_EQ(module.aliases.size(), 1U);
}

TEST(WidenFloats, BitPatternsKeepTheirTypeUntilArithmetic) {
  // Uniform numbers from random bits, as frontends make them: mantissa bits of [1, 2), minus 1.
  ModuleBuilder builder("m");
  ComputationBuilder b = builder.Entry();
  const Value bits = b.Parameter({kU32, {4}}, "bits");
  const Value in_one_two = b.BitcastConvert(b.Binary(Opcode::kOr, bits, bits), kF32);
  const Value moved = b.Reshape(in_one_two, {2, 2});
  const Value uniform = b.Binary(Opcode::kSubtract, moved, b.FullLike(moved, 1));
  const Value back = b.BitcastConvert(moved, kU32);
  b.SetResults({uniform, back});
  const Module module = Widened(std::move(builder));
  EXPECT_THAT(Summary(module.entry_computation()),
              ElementsAre("parameter u32[4]", "or u32[4]", "bitcast-convert f32[4]",
                          "reshape f32[2,2]", "constant f64[]", "broadcast f64[2,2]",
                          "convert f64[2,2]", "subtract f64[2,2]", "bitcast-convert u32[2,2]"));
}

TEST(WidenFloats, BitsOfAWidenedValueAreThoseOfItsOldType) {
  ModuleBuilder builder("m");
  ComputationBuilder b = builder.Entry();
  const Value x = b.Parameter({kF32, {4}}, "x");
  b.SetResults({b.BitcastConvert(x, kU32), b.BitcastConvert(b.Reshape(x, {2, 2}), kU32)});
  const Module module = Widened(std::move(builder));
  EXPECT_THAT(Summary(module.entry_computation()),
              ElementsAre("parameter f64[4]", "convert f32[4]", "bitcast-convert u32[4]",
                          "reshape f64[2,2]", "convert f32[2,2]", "bitcast-convert u32[2,2]"));
}

TEST(WidenFloats, ReducersLoopsAndLiteralsAreWidened) {
  ModuleBuilder builder("m");
  const Shape shape = {kBF16, {4}};
  ComputationBuilder body = builder.AddComputation("body");
  const Value v = body.Parameter(shape, "v");
  body.SetResults({body.Binary(Opcode::kMultiply, v, body.FullLike(v, 0.1))});
  ComputationBuilder condition = builder.AddComputation("condition");
  condition.Parameter(shape, "v");
  condition.SetResults({condition.Scalar(ElementType::kPred, 0)});
  ComputationBuilder b = builder.Entry();
  const Value x = b.Parameter({ElementType::kU16, {4}}, "x");
  const Value loop = b.Append({.opcode = Opcode::kWhile,
                               .operands = {b.BitcastConvert(x, kBF16)},
                               .called = {builder.id(body), builder.id(condition)}});
  b.SetResults({b.Reduce(loop, b.Scalar(kBF16, 0.1), {0}, Opcode::kAdd)});
  const Module module = Widened(std::move(builder));
  EXPECT_THAT(Summary(module.entry_computation()),
              ElementsAre("parameter u16[4]", "bitcast-convert bf16[4]", "convert f64[4]",
                          "while f64[4]", "constant f64[]", "reduce f64[]"));
  // A literal keeps the value that its old type could hold.
  const double literal =
      ScalarValue(module.entry_computation().instructions[4].As<ConstantAttributes>().literal);
  EXPECT_EQ(literal, ScalarValue(ScalarLiteral(kBF16, 0.1)));
}

TEST(WidenFloats, CustomCallsKeepTheirTypes) {
  ModuleBuilder builder("m");
  ComputationBuilder b = builder.Entry();
  const Value x = b.Parameter({kF32, {4}}, "x");
  const Value called = b.Append({.opcode = Opcode::kCustomCall,
                                 .operands = {x},
                                 .results = {{kF32, {4}}},
                                 .attributes = OpaqueAttributes{.name = "f"}});
  b.SetResults({b.Binary(Opcode::kAdd, called, x)});
  const Module module = Widened(std::move(builder));
  EXPECT_THAT(Summary(module.entry_computation()),
              ElementsAre("parameter f64[4]", "convert f32[4]", "custom-call f32[4]",
                          "convert f64[4]", "add f64[4]"));
}

TEST(WidenFloats, ComplexNumbersBecomeC128) {
  ModuleBuilder builder("m");
  ComputationBuilder b = builder.Entry();
  const Value x = b.Parameter({kF32, {}}, "x");
  const Value z = b.Binary(Opcode::kComplex, x, x);
  const Value sum = b.Binary(Opcode::kAdd, z, b.Scalar(ElementType::kC64, 1.5));
  b.SetResults({b.Unary(Opcode::kReal, sum)});
  const Module module = Widened(std::move(builder));
  EXPECT_THAT(Summary(module.entry_computation()),
              ElementsAre("parameter f64[]", "complex c128[]", "constant c128[]", "add c128[]",
                          "real f64[]"));
}

}  // namespace
}  // namespace minka
