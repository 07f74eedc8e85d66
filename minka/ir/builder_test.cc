#include "minka/ir/builder.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/base/status.h"

namespace minka {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using ElementType::kF32;

std::vector<std::string> Names(const Computation& computation) {
  std::vector<std::string> names;
  for (const Instruction& instruction : computation.instructions) names.push_back(instruction.name);
  return names;
}

TEST(Builder, NamesAreUniqueAndOrderIsCalleesFirst) {
  ModuleBuilder builder("m");
  ComputationBuilder b = builder.Entry();
  const Value x = b.Parameter({kF32, {4}}, "params/w");
  const Value y = b.Parameter({kF32, {4}}, "add.1");
  const Value sum = b.Binary(Opcode::kAdd, x, y);
  const Value twice = b.Binary(Opcode::kAdd, sum, sum);
  b.SetResults({b.Reduce(twice, b.Scalar(kF32, 0), {0}, Opcode::kAdd)});
  auto module = std::move(builder).Finish();
  ASSERT_TRUE(module.ok()) << Message(module.status());
  EXPECT_THAT(Names(module->entry_computation()),
              ElementsAre("params_w", "add.1", "add", "add.2", "constant", "reduce"));
  EXPECT_EQ(module->entry_computation().instructions[0].op_name, "params/w");
  ASSERT_EQ(module->computations.size(), 2U);
  EXPECT_EQ(module->computations[0].name, "add_f32");
  EXPECT_EQ(module->entry, 1);
}

TEST(Builder, ScalarReducerIsMadeOncePerOpcodeAndType) {
  ModuleBuilder builder("m");
  const ComputationId add = builder.ScalarReducer(Opcode::kAdd, kF32);
  EXPECT_EQ(builder.ScalarReducer(Opcode::kAdd, kF32), add);
  EXPECT_NE(builder.ScalarReducer(Opcode::kAdd, ElementType::kS32), add);
  EXPECT_NE(builder.ScalarReducer(Opcode::kMaximum, kF32), add);
}

TEST(Builder, FirstMistakeIsKeptAndTheRestIgnored) {
  ModuleBuilder builder("m");
  ComputationBuilder b = builder.Entry();
  const Value x = b.Parameter({kF32, {4}}, "x");
  const Value y = b.Parameter({kF32, {5}}, "y");
  b.SetOpName("loss/sum");
  const Value bad = b.Binary(Opcode::kAdd, x, y);
  b.SetOpName("later");
  b.SetResults({b.Reduce(b.Unary(Opcode::kExponential, bad), bad, {3}, Opcode::kAdd)});
  EXPECT_EQ(Message(std::move(builder).Finish().status()),
            "in 'main', loss/sum: add: operand shapes f32[4] and f32[5] differ");
}

TEST(Builder, UnknownValueIsAMistake) {
  ModuleBuilder builder("m");
  builder.Entry().Unary(Opcode::kTanh, {7, 0});
  EXPECT_EQ(Message(std::move(builder).Finish().status()),
            "in 'main': tanh: operand 0 is no value of this computation");
}

TEST(Builder, DotTakesTheTypeItIsTold) {
  ModuleBuilder builder("m");
  ComputationBuilder b = builder.Entry();
  const Value x = b.Parameter({ElementType::kBF16, {2, 3, 4}}, "x");
  const Value y = b.Parameter({ElementType::kBF16, {2, 4, 5}}, "y");
  const DotAttributes batched = {{2}, {1}, {0}, {0}};
  EXPECT_EQ(ToString(b.shape(b.Dot(x, y, batched))), "bf16[2,3,5]");
  EXPECT_EQ(ToString(b.shape(b.Dot(x, y, batched, kF32))), "f32[2,3,5]");
  EXPECT_TRUE(builder.status().ok());
}

TEST(Builder, ConvertToTheSameTypeIsTheValueItself) {
  ModuleBuilder builder("m");
  ComputationBuilder b = builder.Entry();
  const Value x = b.Parameter({kF32, {2}}, "x");
  EXPECT_EQ(b.Convert(x, kF32), x);
  EXPECT_EQ(ToString(b.shape(b.Convert(x, ElementType::kS32))), "s32[2]");
  EXPECT_EQ(ToString(b.shape(b.BitcastConvert(x, ElementType::kU8))), "u8[2,4]");
  EXPECT_EQ(ToString(b.shape(b.FullLike(x, 3))), "f32[2]");
}

TEST(Builder, ImportBringsCalledComputationsAlong) {
  ModuleBuilder source("source");
  ComputationBuilder s = source.Entry();
  const Value v = s.Parameter({kF32, {4}}, "v");
  s.SetResults({s.Reduce(v, s.Scalar(kF32, 0), {0}, Opcode::kAdd)});
  const Module imported = *std::move(source).Finish();

  ModuleBuilder builder("m");
  const ComputationId copy = builder.Import(imported, imported.entry);
  ComputationBuilder b = builder.Entry();
  const Value x = b.Parameter({kF32, {4}}, "x");
  Instruction call = {.opcode = Opcode::kCall, .operands = {x}, .called = {copy}};
  b.SetResults({b.Append(std::move(call))});
  auto module = std::move(builder).Finish();
  ASSERT_TRUE(module.ok()) << Message(module.status());
  std::vector<std::string> names;
  for (const Computation& computation : module->computations) names.push_back(computation.name);
  EXPECT_THAT(names, ElementsAre("add_f32", "main", "main.1"));
  EXPECT_EQ(module->entry, 2);
}

TEST(Builder, RecursionIsRefused) {
  ModuleBuilder builder("m");
  ComputationBuilder b = builder.Entry();
  b.Append({.opcode = Opcode::kCall, .called = {0}});
  EXPECT_EQ(Message(std::move(builder).Finish().status()), "computation 'main' calls itself");
}

TEST(Builder, CollectivesChangeShapesByTheGroupSize) {
  ModuleBuilder builder("m");
  ComputationBuilder b = builder.Entry();
  const Value x = b.Parameter({kF32, {4, 6}}, "x");
  const std::vector<std::vector<int64_t>> groups = {{0, 1}, {2, 3}};
  EXPECT_EQ(ToString(b.shape(b.AllGather(x, 1, groups))), "f32[4,12]");
  EXPECT_EQ(ToString(b.shape(b.ReduceScatter(x, 0, Opcode::kAdd, groups))), "f32[2,6]");
  EXPECT_EQ(ToString(b.shape(b.AllToAll(x, 1, groups))), "f32[4,6]");
  const std::vector<Value> both = {x, x};
  EXPECT_EQ(b.AllReduce(both, Opcode::kAdd, groups).size(), 2U);
  EXPECT_EQ(ToString(b.shape(b.ReplicaId())), "u32[]");
  EXPECT_TRUE(builder.status().ok()) << Message(builder.status());
  b.ReduceScatter(x, 0, Opcode::kAdd, {{0, 1, 2}});
  EXPECT_THAT(Message(builder.status()),
              HasSubstr("reduce-scatter: 3 members do not divide dimension 0 of f32[4,6]"));
}

TEST(ModuleHash, LeavesOutNamesButNotConstantsOrAliases) {
  const auto build = [](const std::string& name, double constant, bool alias) {
    ModuleBuilder builder(name);
    ComputationBuilder b = builder.Entry();
    b.SetOpName(name + "/op");
    const Value x = b.Parameter({kF32, {4}}, name);
    b.SetResults({b.Binary(Opcode::kAdd, x, b.FullLike(x, constant))});
    if (alias) builder.AddAlias({.result = 0, .parameter = 0});
    builder.SetFrontendAttribute("key", name);
    return ModuleHash(*std::move(builder).Finish());
  };
  EXPECT_EQ(build("a", 1, false), build("b", 1, false));
  EXPECT_NE(build("a", 1, false), build("a", 2, false));
  EXPECT_NE(build("a", 1, false), build("a", 1, true));
}

TEST(WithEntry, ReplacesTheEntryAlone) {
  Module module{.name = "m",
                .computations = {{.name = "first"}, {.name = "main"}, {.name = "last"}},
                .entry = 1,
                .aliases = {{.result = 1, .parameter = 2}},
                .num_micro_batches = 3,
                .frontend_attributes = {{"key", "value"}},
                .undecoded = std::make_shared<const std::string>("fields")};
  const Module with = WithEntry(module, {.name = "other"});
  EXPECT_EQ(with.name, "m");
  ASSERT_EQ(with.computations.size(), 3U);
  EXPECT_EQ(with.computations[0].name, "first");
  EXPECT_EQ(with.entry_computation().name, "other");
  EXPECT_EQ(with.computations[2].name, "last");
  EXPECT_EQ(with.aliases, module.aliases);
  EXPECT_EQ(with.num_micro_batches, 3);
  EXPECT_EQ(with.frontend_attributes, module.frontend_attributes);
  EXPECT_EQ(with.undecoded, module.undecoded);
}

TEST(UseTable, OfNothingIsEmpty) {
  static_cast<void>(UseTable(Computation()));
  Computation computation;
  computation.instructions.resize(2);  // the first has no results
  computation.instructions[1].results.resize(1);
  EXPECT_TRUE(UseTable(computation).uses({1, 0}).empty());
}

TEST(UseTable, ListsUsersInOrderAndResults) {
  ModuleBuilder builder("m");
  ComputationBuilder b = builder.Entry();
  const Value x = b.Parameter({kF32, {4}}, "x");
  const std::vector<Value> barrier = b.OptBarrier(std::vector<Value>{x, x});
  const Value sum = b.Binary(Opcode::kAdd, barrier[1], x);
  b.SetResults({sum});
  const Module module = *std::move(builder).Finish();
  const UseTable uses(module.entry_computation());
  EXPECT_THAT(uses.uses(x), ElementsAre(Use{1, 0}, Use{1, 1}, Use{2, 1}));
  EXPECT_TRUE(uses.uses(barrier[0]).empty());
  EXPECT_THAT(uses.uses(barrier[1]), ElementsAre(Use{2, 0}));
  EXPECT_TRUE(uses.is_result(sum));
  EXPECT_FALSE(uses.is_result(x));
}

}  // namespace
}  // namespace minka
