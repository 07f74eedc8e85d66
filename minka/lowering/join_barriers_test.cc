#include "minka/lowering/join_barriers.h"

#include "gtest/gtest.h"
#include "minka/ir/builder.h"
#include "minka/ir/verifier.h"

namespace minka {
namespace {

Value Lane(ComputationBuilder& b, Value x, const std::string& barrier) {
  return b.Append({.opcode = Opcode::kOptBarrier,
                   .operands = {x},
                   .results = {b.shape(x)},
                   .frontend_attributes = {{kBarrierAttribute, barrier}}});
}

TEST(JoinBarriers, WhatIsBehindOneLaneWaitsForAll) {
  ModuleBuilder module("m");
  ComputationBuilder b = module.Entry();
  const Value x = b.Parameter({ElementType::kF32, {2}}, "x");
  const Value first = Lane(b, x, "0");
  const Value recomputed = b.Unary(Opcode::kExponential, first);
  const Value gradient = b.Unary(Opcode::kNegate, x);
  const Value second = Lane(b, gradient, "0");
  b.SetResults({b.Binary(Opcode::kMultiply, recomputed, second), second});
  const Module joined = JoinBarriers(*std::move(module).Finish());
  ASSERT_TRUE(Verify(joined).ok()) << Verify(joined);
  const Computation& entry = joined.entry_computation();
  ASSERT_EQ(entry.num_instructions(), 5);
  EXPECT_EQ(entry.instructions[1].opcode, Opcode::kNegate);
  EXPECT_EQ(entry.instructions[2].opcode, Opcode::kOptBarrier);
  EXPECT_EQ(entry.instructions[2].operands, (std::vector<Value>{{0, 0}, {1, 0}}));
  EXPECT_EQ(entry.instructions[3].operands, (std::vector<Value>{{2, 0}}));
  EXPECT_EQ(entry.instructions[4].operands, (std::vector<Value>{{3, 0}, {2, 1}}));
  EXPECT_EQ(entry.results[1], (Value{2, 1}));
}

TEST(JoinBarriers, LanesThatDependOnEachOtherStayApart) {
  ModuleBuilder module("m");
  ComputationBuilder b = module.Entry();
  const Value first = Lane(b, b.Parameter({ElementType::kF32, {2}}, "x"), "0");
  b.SetResults({Lane(b, first, "0")});
  const Module source = *std::move(module).Finish();
  EXPECT_EQ(JoinBarriers(source).entry_computation().num_instructions(), 3);
}

}  // namespace
}  // namespace minka
