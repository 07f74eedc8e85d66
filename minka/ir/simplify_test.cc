#include "minka/ir/simplify.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/base/status.h"
#include "minka/ir/builder.h"
#include "minka/ir/verifier.h"

namespace minka {
namespace {

using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

Shape Vector() { return {ElementType::kF32, {4}}; }

std::vector<std::string> Opcodes(const Computation& computation) {
  std::vector<std::string> opcodes;
  for (const Instruction& instruction : computation.instructions) {
    opcodes.emplace_back(OpcodeName(instruction.opcode));
  }
  return opcodes;
}

std::vector<std::string> ComputationNames(const Module& module) {
  std::vector<std::string> names;
  for (const Computation& computation : module.computations) names.push_back(computation.name);
  return names;
}

Instruction Call(ComputationId callee, std::vector<Value> operands) {
  return {.opcode = Opcode::kCall, .operands = std::move(operands), .called = {callee}};
}

// entry calls outer(x, y) = (y, inner(x)); inner(x) = tanh(x); the while body calls inner, too.
Module Nested() {
  ModuleBuilder builder("m");
  ComputationBuilder inner = builder.AddComputation("inner");
  inner.SetResults({inner.Unary(Opcode::kTanh, inner.Parameter(Vector(), "x"))});
  ComputationBuilder outer = builder.AddComputation("outer");
  const Value x = outer.Parameter(Vector(), "x");
  const Value y = outer.Parameter(Vector(), "y");
  outer.SetResults({y, outer.Append(Call(builder.id(inner), {x}))});
  ComputationBuilder body = builder.AddComputation("body");
  body.SetResults({body.Append(Call(builder.id(inner), {body.Parameter(Vector(), "v")}))});
  ComputationBuilder condition = builder.AddComputation("condition");
  condition.Parameter(Vector(), "v");
  condition.SetResults({condition.Scalar(ElementType::kPred, 0)});

  ComputationBuilder b = builder.Entry();
  const Value p = b.Parameter(Vector(), "p");
  const Value q = b.Parameter(Vector(), "q");
  const Value call = b.Append(Call(builder.id(outer), {p, q}));
  const Value loop = b.Append({.opcode = Opcode::kWhile,
                               .operands = {{call.instruction, 1}},
                               .called = {builder.id(body), builder.id(condition)}});
  b.SetResults({{call.instruction, 0}, loop});
  return *std::move(builder).Finish();
}

TEST(InlineCalls, ReachesNestedCallsAndWhileBodies) {
  const Module module = InlineCalls(Nested());
  EXPECT_TRUE(Verify(module).ok()) << Message(Verify(module));
  EXPECT_THAT(Opcodes(module.entry_computation()),
              ElementsAre("parameter", "parameter", "tanh", "while"));
  EXPECT_EQ(module.entry_computation().results[0], (Value{1, 0}));  // y passed through
  EXPECT_THAT(ComputationNames(module), UnorderedElementsAre("body", "condition", "main"));
  EXPECT_THAT(Opcodes(module.computations[0]), ElementsAre("parameter", "tanh"));
}

TEST(InlineCalls, DropsWhatNothingCalls) {
  Module module = InlineCalls(Nested());
  module.computations.insert(module.computations.begin(), module.computations[0]);
  module.computations.front().name = "unread";
  for (Computation& computation : module.computations) {
    for (Instruction& instruction : computation.instructions) {
      for (ComputationId& called : instruction.called) ++called;
    }
  }
  ++module.entry;
  EXPECT_THAT(ComputationNames(InlineCalls(std::move(module))),
              UnorderedElementsAre("body", "condition", "main"));
}

TEST(EliminateDeadCode, KeepsParametersAndSideEffects) {
  ModuleBuilder builder("m");
  ComputationBuilder b = builder.Entry();
  const Value x = b.Parameter(Vector(), "x");
  b.Parameter(Vector(), "unused");
  b.Reduce(x, b.Scalar(ElementType::kF32, 0), {0}, Opcode::kAdd);
  const auto custom_call = [&](std::shared_ptr<const std::string> undecoded) {
    return b.Append({.opcode = Opcode::kCustomCall,
                     .operands = {x},
                     .results = {Vector()},
                     .attributes = OpaqueAttributes{.name = "f"},
                     .undecoded = std::move(undecoded)});
  };
  custom_call(nullptr);
  // Field 65 (custom_call_has_side_effect) = true behind a string in field 28.
  custom_call(
      std::make_shared<const std::string>("\xe2\x01\x01"
                                          "f"
                                          "\x88\x04\x01"));
  custom_call(std::make_shared<const std::string>("\x88\x04" + std::string(1, '\0')));
  b.Append({.opcode = Opcode::kOther, .attributes = OpaqueAttributes{.name = "infeed"}});
  b.SetResults({x});
  const Module module = EliminateDeadCode(*std::move(builder).Finish());
  EXPECT_TRUE(Verify(module).ok()) << Message(Verify(module));
  EXPECT_THAT(Opcodes(module.entry_computation()),
              ElementsAre("parameter", "parameter", "custom-call", "other"));
  EXPECT_THAT(ComputationNames(module), ElementsAre("main"));
}

TEST(EliminateCommonSubexpressions, MergesEqualChainsAndConstantsByContent) {
  ModuleBuilder builder("m");
  ComputationBuilder b = builder.Entry();
  const Value x = b.Parameter(Vector(), "x");
  const Value one = b.Binary(Opcode::kAdd, x, b.FullLike(x, 1));
  const Value same = b.Binary(Opcode::kAdd, x, b.FullLike(x, 1));
  const Value other = b.Binary(Opcode::kAdd, x, b.FullLike(x, 2));
  b.SetResults({b.Unary(Opcode::kTanh, one), b.Unary(Opcode::kTanh, same), other});
  const Module module = EliminateCommonSubexpressions(*std::move(builder).Finish());
  EXPECT_TRUE(Verify(module).ok()) << Message(Verify(module));
  const Computation& entry = module.entry_computation();
  EXPECT_THAT(Opcodes(entry), ElementsAre("parameter", "constant", "broadcast", "add", "constant",
                                          "broadcast", "add", "tanh"));
  EXPECT_EQ(entry.results[0], entry.results[1]);
  EXPECT_NE(entry.results[0], entry.results[2]);
}

TEST(EliminateCommonSubexpressions, MergesCallsOfComputationsThatDifferInNamesOnly) {
  ModuleBuilder builder("m");
  const auto reducer = [&](const std::string& name, Opcode opcode) {
    ComputationBuilder computation = builder.AddComputation(name);
    const Value x = computation.Parameter({ElementType::kF32, {}}, name + "_x");
    const Value y = computation.Parameter({ElementType::kF32, {}}, name + "_y");
    computation.SetResults({computation.Binary(opcode, x, y)});
    return builder.id(computation);
  };
  ComputationBuilder b = builder.Entry();
  const Value x = b.Parameter(Vector(), "x");
  std::vector<Value> sums;
  for (const ComputationId id : {reducer("sum", Opcode::kAdd), reducer("total", Opcode::kAdd),
                                 reducer("largest", Opcode::kMaximum)}) {
    sums.push_back(b.Append({.opcode = Opcode::kReduce,
                             .operands = {x, b.Scalar(ElementType::kF32, 0)},
                             .attributes = DimensionsAttributes{{0}},
                             .called = {id}}));
  }
  b.SetResults(sums);
  const Module module = EliminateCommonSubexpressions(*std::move(builder).Finish());
  EXPECT_THAT(Opcodes(module.entry_computation()),
              ElementsAre("parameter", "constant", "reduce", "reduce"));
  const std::vector<Value>& results = module.entry_computation().results;
  EXPECT_EQ(results[0], results[1]);
  EXPECT_NE(results[0], results[2]);
}

TEST(EliminateCommonSubexpressions, BarriersKeepRecomputationApart) {
  ModuleBuilder builder("m");
  ComputationBuilder b = builder.Entry();
  const Value x = b.Parameter(Vector(), "x");
  const Value first = b.Unary(Opcode::kTanh, x);
  const Value again = b.Unary(Opcode::kTanh, b.OptBarrier(std::vector<Value>{x})[0]);
  const Value third = b.Unary(Opcode::kTanh, b.OptBarrier(std::vector<Value>{x})[0]);
  b.SetResults({first, again, third});
  const Module module = EliminateCommonSubexpressions(*std::move(builder).Finish());
  EXPECT_THAT(Opcodes(module.entry_computation()),
              ElementsAre("parameter", "tanh", "opt-barrier", "tanh", "opt-barrier", "tanh"));
}

TEST(EliminateCommonSubexpressions, NeverMergesRandomNumbersOrUnknownOpcodes) {
  ModuleBuilder builder("m");
  ComputationBuilder b = builder.Entry();
  const Value zero = b.Scalar(ElementType::kF32, 0);
  std::vector<Value> results;
  for (int i = 0; i < 2; ++i) {
    results.push_back(b.Append({.opcode = Opcode::kRng,
                                .operands = {zero, zero},
                                .results = {Vector()},
                                .attributes = RngAttributes{1}}));
    results.push_back(b.Append({.opcode = Opcode::kOther,
                                .results = {Vector()},
                                .attributes = OpaqueAttributes{.name = "recv"}}));
  }
  b.SetResults(results);
  const Module module = EliminateCommonSubexpressions(*std::move(builder).Finish());
  EXPECT_EQ(module.entry_computation().num_instructions(), 5);
}

// A dot of [2,3,5] and [2,5,7,4] over a batch of 2, transposed by the permutation.
Module TransposedDot(const std::vector<int64_t>& permutation, bool has_other_reader = false) {
  ModuleBuilder builder("m");
  ComputationBuilder b = builder.Entry();
  const Value x = b.Parameter({ElementType::kF32, {2, 3, 5}}, "x");
  const Value y = b.Parameter({ElementType::kF32, {2, 5, 7, 4}}, "y");
  const Value dot = b.Dot(
      x, y, {.lhs_contracting = {2}, .rhs_contracting = {1}, .lhs_batch = {0}, .rhs_batch = {0}});
  std::vector<Value> results = {b.Transpose(dot, permutation)};
  if (has_other_reader) results.push_back(b.Unary(Opcode::kTanh, dot));
  b.SetResults(results);
  return *std::move(builder).Finish();
}

TEST(ExchangeTransposedDots, WritesTheDotOfExchangedOperands) {
  const Module exchanged = EliminateDeadCode(ExchangeTransposedDots(TransposedDot({0, 2, 3, 1})));
  EXPECT_EQ(Message(Verify(exchanged)), Message(absl::OkStatus()));
  const Computation& entry = exchanged.entry_computation();
  EXPECT_THAT(Opcodes(entry), ElementsAre("parameter", "parameter", "dot"));
  const Instruction& dot = entry.instructions.back();
  EXPECT_THAT(dot.shape().dims, ElementsAre(2, 7, 4, 3));
  EXPECT_THAT(dot.operands, ElementsAre(Value{1, 0}, Value{0, 0}));
  EXPECT_THAT(dot.As<DotAttributes>().lhs_contracting, ElementsAre(1));
  EXPECT_THAT(dot.As<DotAttributes>().rhs_contracting, ElementsAre(2));
}

TEST(ExchangeTransposedDots, LeavesOtherTranspositionsAndDotsWithOtherReaders) {
  for (const Module& module : {TransposedDot({0, 3, 2, 1}), TransposedDot({1, 2, 3, 0}),
                               TransposedDot({0, 2, 3, 1}, /*has_other_reader=*/true)}) {
    EXPECT_THAT(Opcodes(ExchangeTransposedDots(module).entry_computation()),
                ::testing::Contains("transpose"));
  }
}

}  // namespace
}  // namespace minka
