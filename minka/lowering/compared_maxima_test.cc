#include "minka/lowering/compared_maxima.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "gtest/gtest.h"
#include "minka/ir/builder.h"
#include "minka/ir/testing/evaluator.h"
#include "minka/ir/verifier.h"

namespace minka {
namespace {

using ElementType::kF32, ElementType::kS32;

Module ReducedRows(ElementType type, Opcode reducer) {
  ModuleBuilder module("m");
  ComputationBuilder b = module.Entry();
  const Value x = b.Parameter({type, {4, 5}}, "x");
  b.SetResults(
      {b.Reduce(x, b.Scalar(type, reducer == Opcode::kMaximum ? -100 : 100), {1}, reducer)});
  return *std::move(module).Finish();
}

bool HasOpcode(const Module& module, Opcode opcode) {
  return std::ranges::any_of(module.computations, [&](const Computation& computation) {
    return std::ranges::find(computation.instructions, opcode, &Instruction::opcode) !=
           computation.instructions.end();
  });
}

TEST(ComparedMaxima, ComputesTheSame) {
  for (const Opcode reducer : {Opcode::kMaximum, Opcode::kMinimum}) {
    const Module source = ReducedRows(kF32, reducer);
    const Module written = ComparedMaxima(source);
    ASSERT_TRUE(Verify(written).ok()) << Verify(written);
    EXPECT_FALSE(HasOpcode(written, reducer));
    const std::vector<testing::Array> x = {testing::SmallWholeNumbers({kF32, {4, 5}}, 1)};
    EXPECT_EQ(testing::Evaluate(written, x)[0].elements, testing::Evaluate(source, x)[0].elements);
  }
}

TEST(ComparedMaxima, HandsOnWhatIsNotANumber) {
  const Module written = ComparedMaxima(ReducedRows(kF32, Opcode::kMaximum));
  for (const int place : {0, 2, 4}) {
    std::vector<testing::Array> x = {testing::SmallWholeNumbers({kF32, {4, 5}}, 1)};
    x[0].elements[place] = std::numeric_limits<long double>::quiet_NaN();
    const testing::Array maxima = testing::Evaluate(written, x)[0];
    EXPECT_TRUE(std::isnan(maxima.elements[0])) << place;
    EXPECT_FALSE(std::isnan(maxima.elements[1]));
  }
}

// Of integers there is nothing to hand on; sums have another reducer.
TEST(ComparedMaxima, LeavesOthers) {
  EXPECT_TRUE(HasOpcode(ComparedMaxima(ReducedRows(kS32, Opcode::kMaximum)), Opcode::kMaximum));
  EXPECT_TRUE(HasOpcode(ComparedMaxima(ReducedRows(kF32, Opcode::kAdd)), Opcode::kAdd));
}

}  // namespace
}  // namespace minka
