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
  const JoinedBarriers all = JoinBarriers(*std::move(module).Finish());
  EXPECT_TRUE(all.apart.empty());
  const Module& joined = all.module;
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
  const JoinedBarriers joined = JoinBarriers(*std::move(module).Finish());
  EXPECT_EQ(joined.module.entry_computation().num_instructions(), 3);
  EXPECT_EQ(joined.apart,
            (std::vector<BarrierApart>{{.barrier = "0", .num_apart = 1, .num_lanes = 2}}));
  EXPECT_EQ(NotesOnBarriers(joined.apart),
            std::vector<std::string>{
                "of barrier \"0\", 1 of 2 lanes stay apart, because some wait for others: what is "
                "behind one need not wait for all, so memory may be held for longer"});
}

// "0" has three lanes, of which the last waits for the first; "1" is free of circles.
TEST(JoinBarriers, OnlyWhatWaitsForOthersStaysApart) {
  ModuleBuilder module("m");
  ComputationBuilder b = module.Entry();
  const Value x = b.Parameter({ElementType::kF32, {2}}, "x");
  const Value y = b.Parameter({ElementType::kF32, {2}}, "y");
  const Value first = Lane(b, x, "0"), second = Lane(b, y, "0");
  const Value third = Lane(b, b.Unary(Opcode::kNegate, first), "0");
  b.SetResults({Lane(b, second, "1"), Lane(b, third, "1")});
  const JoinedBarriers joined = JoinBarriers(*std::move(module).Finish());
  ASSERT_TRUE(Verify(joined.module).ok()) << Verify(joined.module);
  EXPECT_EQ(joined.apart,
            (std::vector<BarrierApart>{{.barrier = "0", .num_apart = 1, .num_lanes = 3}}));
  std::vector<size_t> num_lanes;
  for (const Instruction& instruction : joined.module.entry_computation().instructions) {
    if (instruction.opcode == Opcode::kOptBarrier) num_lanes.push_back(instruction.operands.size());
  }
  EXPECT_EQ(num_lanes, (std::vector<size_t>{2, 1, 2}));
}

// Each by itself has no circle, but "0" would wait for "1" and "1" for "0".
TEST(JoinBarriers, OfTwoThatWaitForEachOtherTheFirstIsJoined) {
  ModuleBuilder module("m");
  ComputationBuilder b = module.Entry();
  const Value x = b.Parameter({ElementType::kF32, {2}}, "x");
  const Value before = Lane(b, x, "0"), other = Lane(b, x, "1");
  b.SetResults({Lane(b, before, "1"), Lane(b, other, "0")});
  const JoinedBarriers joined = JoinBarriers(*std::move(module).Finish());
  ASSERT_TRUE(Verify(joined.module).ok()) << Verify(joined.module);
  EXPECT_EQ(joined.apart,
            (std::vector<BarrierApart>{{.barrier = "1", .num_apart = 1, .num_lanes = 2}}));
  EXPECT_EQ(joined.module.entry_computation().num_instructions(), 4);
}

}  // namespace
}  // namespace minka
