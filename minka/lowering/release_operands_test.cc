#include "minka/lowering/release_operands.h"

#include "gtest/gtest.h"
#include "minka/ir/builder.h"
#include "minka/ir/verifier.h"
#include "minka/lowering/join_barriers.h"

namespace minka {
namespace {

Shape F32(std::vector<int64_t> dims) { return {ElementType::kF32, std::move(dims)}; }

Value MatMul(ComputationBuilder& b, Value x, Value y, int64_t x_dim, int64_t y_dim) {
  return b.Dot(x, y, {.lhs_contracting = {x_dim}, .rhs_contracting = {y_dim}});
}

// Two layers backwards: the first dot is a weight's gradient, the second hands the gradient on.
TEST(ReleaseOperands, TheNextDotWaitsForAWeightsGradient) {
  ModuleBuilder module("m");
  ComputationBuilder b = module.Entry();
  const Value activation = b.Unary(Opcode::kExponential, b.Parameter(F32({64, 8}), "x"));
  const Value gradient = b.Unary(Opcode::kNegate, b.Parameter(F32({64, 8}), "dy"));
  const Value weight = b.Parameter(F32({8, 8}), "w");
  const Value of_weight = MatMul(b, activation, gradient, 0, 0);
  const Value handed_on = MatMul(b, gradient, weight, 1, 1);
  b.SetResults({b.Unary(Opcode::kNegate, of_weight), handed_on});
  const Module source = *std::move(module).Finish();
  const Module waits = JoinBarriers(ReleaseOperands(source)).module;
  ASSERT_TRUE(Verify(waits).ok()) << Verify(waits);
  const Computation& entry = waits.entry_computation();
  ASSERT_EQ(entry.num_instructions(), source.entry_computation().num_instructions() + 1);
  const Instruction& barrier = entry.instructions[6];
  ASSERT_EQ(barrier.opcode, Opcode::kOptBarrier);
  EXPECT_EQ(barrier.operands, (std::vector<Value>{{5, 0}, {3, 0}}));  // its result, and gradient
  EXPECT_EQ(entry.instructions[7].operands[0], (Value{6, 1}));
  EXPECT_EQ(entry.instructions[8].operands[0], (Value{6, 0}));
}

// As under ZeRO: what is read later is the device's part of the gradient.
TEST(ReleaseOperands, TheNextDotWaitsForTheReduceScatterOfAWeightsGradient) {
  ModuleBuilder module("m");
  ComputationBuilder b = module.Entry();
  const Value activation = b.Unary(Opcode::kExponential, b.Parameter(F32({64, 8}), "x"));
  const Value gradient = b.Unary(Opcode::kNegate, b.Parameter(F32({64, 8}), "dy"));
  const Value weight = b.Parameter(F32({8, 8}), "w");
  const Value part =
      b.ReduceScatter(MatMul(b, activation, gradient, 0, 0), 0, Opcode::kAdd, {{0, 1}});
  const Value handed_on = MatMul(b, gradient, weight, 1, 1);
  b.SetResults({b.Unary(Opcode::kNegate, part), handed_on});
  const Module waits = JoinBarriers(ReleaseOperands(*std::move(module).Finish())).module;
  ASSERT_TRUE(Verify(waits).ok()) << Verify(waits);
  const Computation& entry = waits.entry_computation();
  const Instruction& barrier = entry.instructions[part.instruction + 1];
  ASSERT_EQ(barrier.opcode, Opcode::kOptBarrier);
  EXPECT_EQ(barrier.operands, (std::vector<Value>{part, gradient}));
}

// Its state is there from the start, so that it could begin the step.
TEST(ReleaseOperands, AGatherForSeveralDotsWaitsForWhatTheFirstMultipliesItWith) {
  ModuleBuilder module("m");
  ComputationBuilder b = module.Entry();
  const Value part = b.Parameter(F32({4, 8}), "part"), x = b.Parameter(F32({64, 8}), "x");
  const Value first = b.Unary(Opcode::kTanh, MatMul(b, x, b.Parameter(F32({8, 8}), "w"), 1, 0));
  const Value gather = b.Transpose(b.AllGather(part, 0, {{0, 1}}), {1, 0});
  const Value second = MatMul(b, first, gather, 1, 0);
  const Value other = b.AllGather(b.Parameter(F32({4, 8}), "other"), 0, {{0, 1}});
  b.SetResults({MatMul(b, MatMul(b, second, other, 1, 0), gather, 1, 1)});
  const Module waits = JoinBarriers(ReleaseOperands(*std::move(module).Finish())).module;
  ASSERT_TRUE(Verify(waits).ok()) << Verify(waits);
  std::vector<std::vector<Value>> barriers;
  for (const Instruction& instruction : waits.entry_computation().instructions) {
    if (instruction.opcode == Opcode::kOptBarrier) barriers.push_back(instruction.operands);
  }
  EXPECT_EQ(barriers, (std::vector<std::vector<Value>>{{first, part}}));
}

TEST(ReleaseOperands, LeavesDotsThatTheNextOneReadsAndThoseThatFreeNothing) {
  ModuleBuilder module("m");
  ComputationBuilder b = module.Entry();
  const Value x = b.Unary(Opcode::kExponential, b.Parameter(F32({64, 8}), "x"));
  const Value weight = b.Parameter(F32({8, 8}), "w");
  const Value query = MatMul(b, x, weight, 1, 0);
  const Value key = MatMul(b, x, weight, 1, 1);
  const Value scores = MatMul(b, query, key, 1, 1);
  b.SetResults({scores, x});
  const Module source = *std::move(module).Finish();
  EXPECT_EQ(ReleaseOperands(source).entry_computation().num_instructions(),
            source.entry_computation().num_instructions());
}

}  // namespace
}  // namespace minka
