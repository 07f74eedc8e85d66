#include "minka/analysis/liveness.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/ir/builder.h"

namespace minka {
namespace {

using ::testing::ElementsAre;

TEST(Liveness, RangesReachTheLastUseOrTheEnd) {
  ModuleBuilder builder("m");
  ComputationBuilder b = builder.Entry();
  const Value x = b.Parameter({ElementType::kF32, {4}}, "x");  // 0
  const Value a = b.Unary(Opcode::kTanh, x);                   // 1
  const Value c = b.Unary(Opcode::kNegate, a);                 // 2
  const Value unused = b.Unary(Opcode::kAbs, c);               // 3
  const Value d = b.Binary(Opcode::kAdd, a, c);                // 4
  b.SetResults({d});
  const Module module = *std::move(builder).Finish();
  const Liveness liveness(module.entry_computation());
  EXPECT_EQ(liveness.range(x), (LiveRange{0, 1}));
  EXPECT_EQ(liveness.range(a), (LiveRange{1, 4}));
  EXPECT_EQ(liveness.range(unused), (LiveRange{3, 3}));
  EXPECT_EQ(liveness.range(d), (LiveRange{4, 5}));
  // x throughout; at 3: x, a, c and the unused value.
  EXPECT_THAT(LiveBytes(module.entry_computation(), liveness), ElementsAre(16, 32, 48, 64, 64));
}

}  // namespace
}  // namespace minka
