#include "minka/lowering/compared_maxima.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "gtest/gtest.h"
#include "minka/ir/builder.h"
#include "minka/ir/testing/evaluator.h"
#include "minka/ir/verifier.h"
#include "minka/sharding/rule_builder.h"

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

// The reducer of a collective stays, also where a reduction in a loop's body has the same.
TEST(ComparedMaxima, LeavesCollectivesTheirReducer) {
  ModuleBuilder module("m");
  ComputationBuilder b = module.Entry();
  const Shape counter{kS32, {}}, matrix{kF32, {4, 5}}, row{kF32, {4}};
  ComputationBuilder body = module.AddComputation("body");
  const Value i = body.Parameter(counter, "i"), rows = body.Parameter(matrix, "rows");
  body.Parameter(row, "maxima");
  body.SetResults({body.Binary(Opcode::kAdd, i, body.Scalar(kS32, 1)), rows,
                   body.Reduce(rows, body.Scalar(kF32, -100), {1}, Opcode::kMaximum)});
  ComputationBuilder condition = module.AddComputation("condition");
  const Value count = condition.Parameter(counter, "i");
  condition.Parameter(matrix, "rows");
  condition.Parameter(row, "maxima");
  condition.SetResults(
      {condition.Compare(CompareAttributes::Direction::kLt, count, condition.Scalar(kS32, 3))});
  const Value x = b.Parameter(matrix, "x"), y = b.Parameter(row, "y");
  const Value loop = b.Append({.opcode = Opcode::kWhile,
                               .name = "loop",
                               .operands = {b.Scalar(kS32, 0), x, y},
                               .called = {module.id(body), module.id(condition)}});
  const Value maxima[] = {{loop.instruction, 2}};
  b.SetResults({b.AllReduce(maxima, Opcode::kMaximum, {{0, 1}})[0]});
  const Module written = ComparedMaxima(*std::move(module).Finish());
  ASSERT_TRUE(Verify(written).ok()) << Verify(written);
  int num_maxima = 0, num_selects = 0;
  for (const Computation& computation : written.computations) {
    num_maxima +=
        std::ranges::count(computation.instructions, Opcode::kMaximum, &Instruction::opcode);
    num_selects +=
        std::ranges::count(computation.instructions, Opcode::kSelect, &Instruction::opcode);
  }
  EXPECT_EQ(num_maxima, 1);
  EXPECT_EQ(num_selects, 1);
  const Instruction& result =
      written.entry_computation().instruction(written.entry_computation().results[0]);
  EXPECT_EQ(result.opcode, Opcode::kAllReduce);
  EXPECT_EQ(BinaryReducer(written, result.called[0]), Opcode::kMaximum);
}

// Of integers there is nothing to hand on; sums have another reducer.
TEST(ComparedMaxima, LeavesOthers) {
  EXPECT_TRUE(HasOpcode(ComparedMaxima(ReducedRows(kS32, Opcode::kMaximum)), Opcode::kMaximum));
  EXPECT_TRUE(HasOpcode(ComparedMaxima(ReducedRows(kF32, Opcode::kAdd)), Opcode::kAdd));
}

}  // namespace
}  // namespace minka
