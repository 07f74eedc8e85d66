#include "minka/ir/verifier.h"

#include "gtest/gtest.h"
#include "minka/base/status.h"
#include "minka/ir/builder.h"

namespace minka {
namespace {

// sum(x + x), x aliased with nothing: computations add_f32 (0) and main (1); instructions of main:
// x, add, constant, reduce.
Module Sum() {
  ModuleBuilder builder("m");
  ComputationBuilder b = builder.Entry();
  const Value x = b.Parameter({ElementType::kF32, {4}}, "x");
  const Value twice = b.Binary(Opcode::kAdd, x, x);
  const Value sum = b.Reduce(twice, b.Scalar(ElementType::kF32, 0), {0}, Opcode::kAdd);
  b.SetResults({sum, twice});
  return *std::move(builder).Finish();
}

TEST(Verify, AcceptsWhatTheBuilderMakes) { EXPECT_TRUE(Verify(Sum()).ok()); }

TEST(Verify, OperandsComeBeforeUsers) {
  Module module = Sum();
  module.entry_computation().instructions[1].operands[1] = {3, 0};
  EXPECT_EQ(Message(Verify(module)),
            "'add' in 'main': operand 1 is result 0 of instruction 3, which does not come before");
  module.entry_computation().instructions[1].operands[1] = {0, 1};
  EXPECT_EQ(Message(Verify(module)),
            "'add' in 'main': operand 1 is result 1 of instruction 0, which does not come before");
}

TEST(Verify, ShapesAreAsInferred) {
  Module module = Sum();
  module.entry_computation().instructions[3].results[0].dims = {1};
  EXPECT_EQ(Message(Verify(module)),
            "'reduce' in 'main': reduce: result 0 is f32[], declared f32[1]");
  module.entry_computation().instructions[3].results.clear();
  EXPECT_EQ(Message(Verify(module)), "'reduce' in 'main': reduce: has 1 results, declares 0");
}

TEST(Verify, NamesAreUniqueAndNotEmpty) {
  Module module = Sum();
  module.entry_computation().instructions[2].name = "add";
  EXPECT_EQ(Message(Verify(module)), "'main' has two instructions named 'add'");
  module.entry_computation().instructions[2].name = "";
  EXPECT_EQ(Message(Verify(module)), "instruction 2 of 'main' has no name");
  module = Sum();
  module.computations[0].name = "main";
  EXPECT_EQ(Message(Verify(module)), "two computations named 'main'");
}

TEST(Verify, CalleesComeBeforeCallers) {
  Module module = Sum();
  module.entry_computation().instructions[3].called = {1};
  EXPECT_EQ(
      Message(Verify(module)),
      "'reduce' in 'main': calls computation 1; callees come before their callers (this is 1)");
}

TEST(Verify, ParametersAreNumberedWithoutGaps) {
  Module module = Sum();
  std::get<ParameterAttributes>(module.entry_computation().instructions[0].attributes).number = 1;
  EXPECT_EQ(Message(Verify(module)), "'main' has no parameter number 0 where its list says");
  module = Sum();
  module.entry_computation().parameters.clear();
  EXPECT_EQ(Message(Verify(module)), "'main' has 1 parameters, lists 0");
}

TEST(Verify, ResultsExist) {
  Module module = Sum();
  module.entry_computation().results.push_back({9, 0});
  EXPECT_EQ(Message(Verify(module)),
            "result 2 of 'main' is result 0 of instruction 9, which does not exist");
}

TEST(Verify, AliasesJoinEqualShapes) {
  Module module = Sum();
  module.aliases = {{.result = 1, .parameter = 0}};
  EXPECT_TRUE(Verify(module).ok());
  module.aliases = {{.result = 0, .parameter = 0}};
  EXPECT_EQ(Message(Verify(module)),
            "alias of result 0 (f32[]) and parameter 0 (f32[4]): shapes differ");
  module.aliases = {{.result = 1, .parameter = 0}, {.result = 1, .parameter = 0}};
  EXPECT_EQ(Message(Verify(module)),
            "alias of result 1 and parameter 0: one of them is aliased twice");
  module.aliases = {{.result = 5, .parameter = 0}};
  EXPECT_EQ(Message(Verify(module)), "alias of result 5 and parameter 0: there are 2 and 1");
}

TEST(Verify, EntryExists) {
  EXPECT_EQ(Message(Verify(Module{.name = "empty"})),
            "module 'empty': entry computation -1 of 0 does not exist");
}

}  // namespace
}  // namespace minka
