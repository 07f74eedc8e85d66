#include "minka/lowering/dots_as_convolutions.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "minka/ir/builder.h"
#include "minka/ir/testing/evaluator.h"
#include "minka/ir/verifier.h"
#include "minka/lowering/compiled_forms.h"

namespace minka {
namespace {

using Dims = std::vector<int64_t>;

using ElementType::kF32;

struct DotCase {
  const char* what;
  Dims lhs, rhs;
  DotAttributes attributes;
  bool becomes_convolution;
  ElementType result_type = kF32;
};

TEST(DotsAsConvolutions, ComputesTheSame) {
  const DotCase cases[] = {
      {"by a matrix", {2, 5, 4, 3}, {3, 6}, {{3}, {0}}, true},
      {"by a transposed matrix", {2, 5, 4, 3}, {6, 3}, {{3}, {1}}, true},
      {"three spatial dimensions", {2, 2, 5, 4, 3}, {3, 6}, {{4}, {0}}, true},
      {"gradient", {2, 5, 4, 3}, {2, 5, 4, 6}, {{0, 1, 2}, {0, 1, 2}}, true},
      {"gradient, in another order", {2, 5, 4, 3}, {2, 5, 4, 6}, {{2, 0, 1}, {2, 0, 1}}, true},
      {"gradient in volumes", {2, 2, 5, 4, 3}, {2, 2, 5, 4, 6}, {{0, 1, 2, 3}, {0, 1, 2, 3}}, true},
      {"other dimensions meet", {2, 4, 4, 3}, {2, 4, 4, 6}, {{0, 1, 2}, {0, 2, 1}}, false},
      {"features first", {2, 3, 5, 4}, {3, 6}, {{1}, {0}}, false},
      {"a sequence", {2, 5, 3}, {3, 6}, {{2}, {0}}, false},
      {"a batch of products", {2, 5, 4, 3}, {2, 5, 3, 6}, {{3}, {2}, {0, 1}, {0, 1}}, false},
      {"a wider result", {2, 5, 4, 3}, {3, 6}, {{3}, {0}}, false, ElementType::kF64}};
  for (const DotCase& c : cases) {
    SCOPED_TRACE(c.what);
    ModuleBuilder module("m");
    ComputationBuilder b = module.Entry();
    const Shape lhs = {kF32, c.lhs}, rhs = {kF32, c.rhs};
    const Value x = b.Parameter(lhs, "x"), y = b.Parameter(rhs, "y");
    b.SetResults({b.Dot(x, y, c.attributes, c.result_type)});
    const Module source = *std::move(module).Finish();
    const Module written = DotsAsConvolutions(source);
    ASSERT_TRUE(Verify(written).ok()) << Verify(written);
    const bool has_dot = std::ranges::count(written.entry_computation().instructions, Opcode::kDot,
                                            &Instruction::opcode) > 0;
    EXPECT_EQ(has_dot, !c.becomes_convolution);
    const std::vector<testing::Array> parameters = {testing::SmallWholeNumbers(lhs, 1),
                                                    testing::SmallWholeNumbers(rhs, 2)};
    EXPECT_EQ(testing::Evaluate(source, parameters)[0].elements,
              testing::Evaluate(written, parameters)[0].elements);
  }
}

TEST(DotsAsConvolutions, ArePartOfWhatIsCompiledForGpus) {
  ModuleBuilder module("m");
  ComputationBuilder b = module.Entry();
  const Value x = b.Parameter({kF32, {2, 5, 4, 3}}, "x"), y = b.Parameter({kF32, {3, 6}}, "y");
  b.SetResults({b.Dot(x, y, {{3}, {0}})});
  const Module dot = *std::move(module).Finish();
  for (const Platform platform : {Platform::kCpu, Platform::kCuda}) {
    const Module compiled = CompiledForms(dot, Departures::Of(platform));
    const bool has_dot = std::ranges::count(compiled.entry_computation().instructions, Opcode::kDot,
                                            &Instruction::opcode) > 0;
    EXPECT_EQ(has_dot, platform == Platform::kCpu);
  }
}

}  // namespace
}  // namespace minka
