#include "minka/ir/rewriter.h"

#include "gtest/gtest.h"
#include "minka/ir/builder.h"
#include "minka/ir/verifier.h"

namespace minka {
namespace {

TEST(Rewriter, CopiesAndSaysWhatValuesHaveBecome) {
  ModuleBuilder module("m");
  ComputationBuilder b = module.Entry();
  const Value x = b.Parameter({ElementType::kF32, {4}}, "x");
  const Value y = b.Unary(Opcode::kNegate, x);
  const Value z = b.Unary(Opcode::kNegate, y);
  b.SetResults({b.Binary(Opcode::kAdd, z, y)});
  Module built = *std::move(module).Finish();
  const Computation source = built.entry_computation();

  // A negation of a negation is what was negated.
  Rewriter rewriter(source);
  for (InstructionId id = 0; id < source.num_instructions(); ++id) {
    if (id == z.instruction) {
      rewriter.Map(z, rewriter.Now(x));
    } else {
      rewriter.Copy(id);
    }
  }
  EXPECT_TRUE(rewriter.IsMapped(z.instruction));
  EXPECT_NE(rewriter.NewName(source.instruction(y).name), source.instruction(y).name);
  built.entry_computation() = std::move(rewriter).Finish();
  ASSERT_TRUE(Verify(built).ok()) << Verify(built);
  const Computation& copy = built.entry_computation();
  ASSERT_EQ(copy.num_instructions(), 3);
  EXPECT_EQ(copy.parameters, source.parameters);
  EXPECT_EQ(copy.instruction(copy.results[0]).operands, (std::vector<Value>{x, y}));
}

TEST(Rewriter, MovesAsItCopies) {
  ModuleBuilder module("m");
  ComputationBuilder b = module.Entry();
  const Value x = b.Parameter({ElementType::kF32, {4}}, "x");
  const Value y = b.Unary(Opcode::kNegate, x);
  const std::vector<Value> both = b.OptBarrier(std::vector<Value>{x, y});
  b.SetResults({b.Binary(Opcode::kAdd, both[1], both[0])});
  Computation source = (*std::move(module).Finish()).entry_computation();
  Rewriter copying(source);
  for (InstructionId id = 0; id < source.num_instructions(); ++id) copying.Copy(id);
  const Computation copied = std::move(copying).Finish();
  Rewriter moving(source);
  for (InstructionId id = 0; id < source.num_instructions(); ++id)
    moving.Move(id, std::move(source.instructions[id]));
  EXPECT_EQ(moving.Now(both[1]), both[1]);
  const Computation moved = std::move(moving).Finish();
  ASSERT_EQ(moved.num_instructions(), copied.num_instructions());
  for (InstructionId id = 0; id < moved.num_instructions(); ++id) {
    EXPECT_EQ(moved.instructions[id].name, copied.instructions[id].name);
    EXPECT_EQ(moved.instructions[id].operands, copied.instructions[id].operands);
    EXPECT_EQ(moved.instructions[id].results, copied.instructions[id].results);
  }
  EXPECT_EQ(moved.parameters, copied.parameters);
  EXPECT_EQ(moved.results, copied.results);
}

TEST(Rewriter, LaterReadersReadWhatAValueWasMappedToLast) {
  ModuleBuilder module("m");
  ComputationBuilder b = module.Entry();
  const Value x = b.Parameter({ElementType::kF32, {4}}, "x");
  const Value first = b.Unary(Opcode::kNegate, x);
  const Value second = b.Unary(Opcode::kNegate, x);
  b.SetResults({first, second});
  const Module built = *std::move(module).Finish();
  const Computation& source = built.entry_computation();
  Rewriter rewriter(source);
  rewriter.Copy(x.instruction);
  rewriter.Copy(first.instruction);
  Instruction barrier = {.opcode = Opcode::kOptBarrier,
                         .name = rewriter.NewName("barrier"),
                         .operands = {rewriter.Now(x)},
                         .results = {source.shape(x)}};
  const Value passed = rewriter.AppendOne(std::move(barrier));
  rewriter.Map(x, passed);
  rewriter.Copy(second.instruction);
  rewriter.Map(x, {0, 0});
  const Computation copy = std::move(rewriter).Finish();
  EXPECT_EQ(copy.instruction(copy.results[0]).operands[0], (Value{0, 0}));
  EXPECT_EQ(copy.instruction(copy.results[1]).operands[0], passed);
}

TEST(Rewriter, TakesParametersAndResultsOfItsOwn) {
  ModuleBuilder module("m");
  ComputationBuilder b = module.Entry();
  const Shape shape{ElementType::kF32, {4}};
  const Value x = b.Parameter(shape, "x");
  b.SetResults({b.Unary(Opcode::kNegate, x)});
  Module built = *std::move(module).Finish();
  const Computation source = built.entry_computation();
  // -x and --x, behind a parameter in front of x.
  Rewriter rewriter(source);
  rewriter.AppendOne({.opcode = Opcode::kParameter,
                      .name = "first",
                      .results = {shape},
                      .attributes = ParameterAttributes{.number = 0}});
  Instruction second = source.instruction(x);
  second.attributes = ParameterAttributes{.number = 1};
  rewriter.Map(x, rewriter.AppendOne(std::move(second)));
  const std::vector<Value> once = rewriter.Inline(source, {rewriter.Now(x)});
  const std::vector<Value> twice = rewriter.Inline(source, once);
  built.entry_computation() = std::move(rewriter).Finish({twice[0], once[0]});
  const Computation& copy = built.entry_computation();
  EXPECT_EQ(copy.parameters, (std::vector<InstructionId>{0, 1}));
  ASSERT_EQ(copy.num_instructions(), 4);
  EXPECT_EQ(copy.results, (std::vector<Value>{{3, 0}, {2, 0}}));
  EXPECT_EQ(copy.instruction(copy.results[0]).operands, once);
  EXPECT_EQ(copy.instruction(copy.results[1]).operands, (std::vector<Value>{{1, 0}}));
}

}  // namespace
}  // namespace minka
