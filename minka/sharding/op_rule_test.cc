#include "minka/sharding/op_rule.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/ir/builder.h"
#include "minka/ir/hlo.pb.h"
#include "minka/sharding/called_plan.h"

namespace minka {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using ElementType::kBF16;
using ElementType::kF32;
using ElementType::kPred;
using ElementType::kS32;

// The rule of the operation that `build` appends last, and its module.
struct Case {
  Module module;
  InstructionId id = 0;
  OpRule rule;
};

template <typename Build>
Case RuleOf(Build build) {
  ModuleBuilder builder("m");
  ComputationBuilder entry = builder.Entry();
  const Value value = build(entry);
  entry.SetResults({value});
  absl::StatusOr<Module> module = std::move(builder).Finish();
  if (!module.ok()) ADD_FAILURE() << module.status();
  Case result{*std::move(module), value.instruction, {}};
  result.rule = RuleFor(result.module, result.module.entry_computation(), result.id);
  return result;
}

std::vector<std::string> FactorNames(const OpRule& rule) {
  std::vector<std::string> names;
  for (const Factor& factor : rule.factors) names.push_back(factor.name);
  return names;
}

TEST(OpRule, DotHasBatchRowColumnContraction) {
  const Case dot = RuleOf([](ComputationBuilder& b) {
    const Value x = b.Parameter({kF32, {4, 8, 16}}, "x");
    const Value y = b.Parameter({kF32, {4, 16, 32}}, "y");
    return b.Dot(x, y, {{2}, {1}, {0}, {0}});
  });
  EXPECT_THAT(FactorNames(dot.rule), ElementsAre("batch", "row", "column", "contraction"));
  EXPECT_THAT(dot.rule.operand_dims, ElementsAre(ElementsAre(0, 1, 3), ElementsAre(0, 3, 2)));
  EXPECT_THAT(dot.rule.result_dims, ElementsAre(ElementsAre(0, 1, 2)));
  EXPECT_EQ(dot.rule.factors[3].kind, FactorKind::kSum);
  EXPECT_THAT(dot.rule.linear_groups, ElementsAre(ElementsAre(0), ElementsAre(1)));
}

TEST(OpRule, StrategiesOfADotGiveTheShardingsOfMatrixMultiplication) {
  const Case dot = RuleOf([](ComputationBuilder& b) {
    const Value x = b.Parameter({kF32, {8, 16}}, "x");
    const Value y = b.Parameter({kF32, {16, 6}}, "y");
    return b.Dot(x, y, {{1}, {0}, {}, {}});
  });
  const Mesh mesh = *Mesh::Parse("model=4");
  std::vector<std::string> lines;
  for (const Strategy& strategy : EnumerateStrategies(dot.rule, mesh)) {
    lines.push_back(ToString(strategy, dot.rule, mesh) + "  " +
                    ToString(OperandSharding(dot.rule, strategy, 0), mesh) + " " +
                    ToString(OperandSharding(dot.rule, strategy, 1), mesh) + " -> " +
                    ToString(ResultSharding(dot.rule, strategy, 0), mesh));
  }
  EXPECT_THAT(
      lines,
      ElementsAre("idle  [-,-] [-,-] -> [-,-]", "model: row  [model,-] [-,-] -> [model,-]",
                  "model: contraction  [-,model] [model,-] -> [-,-]{partial: model}",
                  "model: partial(0)  [-,-]{partial: model} [-,-] -> [-,-]{partial: model}",
                  "model: partial(1)  [-,-] [-,-]{partial: model} -> [-,-]{partial: model}"));
}

std::vector<std::vector<int>> ReshapeDims(std::vector<int64_t> from, std::vector<int64_t> to) {
  const OpRule rule = RuleOf([&](ComputationBuilder& b) {
                        return b.Reshape(b.Parameter({kF32, from}, "x"), to);
                      }).rule;
  std::vector<std::vector<int>> result = {rule.operand_dims[0], rule.result_dims[0], {}};
  for (const Factor& factor : rule.factors) result[2].push_back(static_cast<int>(factor.size));
  return result;
}

TEST(OpRule, ReshapeKeepsTheLeadingDimOfEachGroup) {
  // (B,S,3H) -> (B,S,H,3): the H split must survive.
  EXPECT_THAT(
      ReshapeDims({2, 4, 24}, {2, 4, 8, 3}),
      ElementsAre(ElementsAre(0, 1, 2), ElementsAre(0, 1, 2, kWholeDim), ElementsAre(2, 4, 8)));
  // Dimensions of size 1 come and go.
  EXPECT_THAT(ReshapeDims({32}, {1, 32, 1}),
              ElementsAre(ElementsAre(0), ElementsAre(kWholeDim, 0, kWholeDim), ElementsAre(32)));
  // What divides both leading dimensions.
  EXPECT_THAT(ReshapeDims({6, 4}, {8, 3}),
              ElementsAre(ElementsAre(0, kWholeDim), ElementsAre(0, kWholeDim), ElementsAre(2)));
  EXPECT_THAT(ReshapeDims({4, 8, 3}, {32, 3}),
              ElementsAre(ElementsAre(0, kWholeDim, 1), ElementsAre(0, 1), ElementsAre(4, 3)));
  EXPECT_THAT(ReshapeDims({3, 4}, {4, 3}),
              ElementsAre(ElementsAre(-1, -1), ElementsAre(-1, -1), IsEmpty()));
  EXPECT_THAT(ReshapeDims({0, 4}, {4, 0}),
              ElementsAre(ElementsAre(-1, -1), ElementsAre(-1, -1), IsEmpty()));
  EXPECT_THAT(ReshapeDims({1, 1}, {}), ElementsAre(ElementsAre(-1, -1), IsEmpty(), IsEmpty()));
}

TEST(OpRule, ReduceAddSumsAndCountsInitOnce) {
  const OpRule rule = RuleOf([](ComputationBuilder& b) {
                        const Value x = b.Parameter({kF32, {4, 8, 16}}, "x");
                        return b.Reduce(x, b.Scalar(kF32, 1), {1}, Opcode::kAdd);
                      }).rule;
  EXPECT_THAT(rule.operand_dims, ElementsAre(ElementsAre(0, 1, 2), IsEmpty()));
  EXPECT_THAT(rule.result_dims, ElementsAre(ElementsAre(0, 2)));
  EXPECT_EQ(rule.factors[1].kind, FactorKind::kSum);
  EXPECT_EQ(rule.factors[1].local_form, LocalForm::kInitOnFirst);
  EXPECT_THAT(rule.linear_groups, ElementsAre(ElementsAre(0)));
}

TEST(OpRule, ReduceMaxIsCompletedAtOnce) {
  const OpRule rule = RuleOf([](ComputationBuilder& b) {
                        const Value x = b.Parameter({kF32, {4, 8}}, "x");
                        return b.Reduce(x, b.Scalar(kF32, 0), {1}, Opcode::kMaximum);
                      }).rule;
  const Mesh mesh = *Mesh::Parse("x=2,y=2");
  const Strategy strategy = *ParseStrategy("y: dim 1", rule, mesh);
  EXPECT_EQ(CombineAxes(rule, strategy), AxisSet::Of(1));
  EXPECT_EQ(rule.factors[1].combiner, Opcode::kMaximum);
  EXPECT_TRUE(ResultSharding(rule, strategy, 0).is_replicated());
  EXPECT_THAT(rule.linear_groups, IsEmpty());
}

TEST(OpRule, GatherSplitsTableAsMaskedSum) {
  // An embedding: table (100, 16), indices (4, 8, 1) -> (4, 8, 16).
  const OpRule rule = RuleOf([](ComputationBuilder& b) {
                        const Value table = b.Parameter({kF32, {100, 16}}, "table");
                        const Value indices = b.Parameter({kS32, {4, 8, 1}}, "indices");
                        GatherAttributes gather;
                        gather.offset_dims = {2};
                        gather.collapsed_slice_dims = {0};
                        gather.start_index_map = {0};
                        gather.slice_sizes = {1, 16};
                        gather.index_vector_dim = 2;
                        return b.Gather(table, indices, gather);
                      }).rule;
  EXPECT_THAT(FactorNames(rule), ElementsAre("dim 0", "dim 1", "dim 2", "table 0"));
  EXPECT_THAT(rule.operand_dims, ElementsAre(ElementsAre(3, 2), ElementsAre(0, 1, kWholeDim)));
  EXPECT_THAT(rule.result_dims, ElementsAre(ElementsAre(0, 1, 2)));
  EXPECT_EQ(rule.factors[3].kind, FactorKind::kSum);
  EXPECT_EQ(rule.factors[3].local_form, LocalForm::kIndexOffset);
  EXPECT_THAT(rule.linear_groups, ElementsAre(ElementsAre(0)));
}

OpRule EmbeddingGradient(std::optional<double> table, Opcode combiner) {
  return RuleOf([&](ComputationBuilder& b) {
           Value operand = b.Parameter({kF32, {100, 16}}, "table");
           if (table) operand = b.FullLike(operand, *table);
           const Value indices = b.Parameter({kS32, {4, 1}}, "indices");
           const Value updates = b.Parameter({kF32, {4, 16}}, "updates");
           ScatterAttributes scatter;
           scatter.update_window_dims = {1};
           scatter.inserted_window_dims = {0};
           scatter.scatter_dims_to_operand_dims = {0};
           scatter.index_vector_dim = 1;
           return b.Scatter(operand, indices, updates, scatter, combiner);
         })
      .rule;
}

TEST(OpRule, ScatterAddSumsOverUpdates) {
  const OpRule rule = EmbeddingGradient(std::nullopt, Opcode::kAdd);
  EXPECT_THAT(FactorNames(rule), ElementsAre("dim 1", "dim 0", "updates 0"));
  EXPECT_THAT(rule.operand_dims,
              ElementsAre(ElementsAre(1, 0), ElementsAre(2, kWholeDim), ElementsAre(2, 0)));
  EXPECT_THAT(rule.result_dims, ElementsAre(ElementsAre(1, 0)));
  EXPECT_EQ(rule.factors[1].local_form, LocalForm::kIndexOffset);
  EXPECT_EQ(rule.factors[2].kind, FactorKind::kSum);
  EXPECT_EQ(rule.factors[2].local_form, LocalForm::kInitOnFirst);
  EXPECT_THAT(rule.linear_groups, ElementsAre(ElementsAre(0, 2)));
  EXPECT_THAT(EmbeddingGradient(0, Opcode::kAdd).linear_groups, ElementsAre(ElementsAre(2)));
  EXPECT_THAT(EmbeddingGradient(1, Opcode::kAdd).linear_groups, ElementsAre(ElementsAre(0, 2)));
}

TEST(OpRule, ScatterWithAnotherCombinerKeepsUpdatesWhole) {
  const OpRule rule = EmbeddingGradient(std::nullopt, Opcode::kMaximum);
  EXPECT_THAT(rule.operand_dims,
              ElementsAre(ElementsAre(1, 0), ElementsAre(-1, -1), ElementsAre(kWholeDim, 0)));
  EXPECT_THAT(rule.linear_groups, IsEmpty());
}

std::vector<std::vector<int>> GroupsOfConvert(ElementType from, ElementType to) {
  return RuleOf([&](ComputationBuilder& b) { return b.Convert(b.Parameter({from, {4}}, "x"), to); })
      .rule.linear_groups;
}

TEST(OpRule, OnlyWideningConvertsAreLinear) {
  EXPECT_THAT(GroupsOfConvert(kBF16, kF32), ElementsAre(ElementsAre(0)));
  EXPECT_THAT(GroupsOfConvert(kF32, kBF16), IsEmpty());
  EXPECT_THAT(GroupsOfConvert(kBF16, ElementType::kF16), IsEmpty());
  EXPECT_THAT(GroupsOfConvert(kS32, kF32), IsEmpty());
}

TEST(OpRule, SelectIsLinearInBothBranchesOrInOneBesideZero) {
  const auto groups = [](bool zero) {
    return RuleOf([&](ComputationBuilder& b) {
             const Value p = b.Parameter({ElementType::kPred, {}}, "p");
             const Value x = b.Parameter({kF32, {4}}, "x");
             const Value y = zero ? b.FullLike(x, 0) : b.Parameter({kF32, {4}}, "y");
             return b.Select(p, x, y);
           })
        .rule.linear_groups;
  };
  EXPECT_THAT(groups(false), ElementsAre(ElementsAre(1, 2)));
  EXPECT_THAT(groups(true), ElementsAre(ElementsAre(1)));
}

TEST(OpRule, PadIsLinearAloneOnlyBesideZeroPadding) {
  const auto rule = [](double padding) {
    return RuleOf([&](ComputationBuilder& b) {
             const Value x = b.Parameter({kF32, {4, 6}}, "x");
             return b.Pad(x, b.Scalar(kF32, padding), {{0, 1}, {0, 1}, {0, 0}});
           })
        .rule;
  };
  EXPECT_THAT(rule(0).linear_groups, ElementsAre(ElementsAre(0)));
  EXPECT_THAT(rule(1).linear_groups, ElementsAre(ElementsAre(0, 1)));
  EXPECT_THAT(rule(1).operand_dims, ElementsAre(ElementsAre(0, kWholeDim), IsEmpty()));
}

TEST(OpRule, IntegerDivisionAndPredicatesAreNotLinear) {
  const auto groups = [](Opcode opcode, ElementType type) {
    return RuleOf([&](ComputationBuilder& b) {
             const Value x = b.Parameter({type, {4}}, "x");
             return b.Binary(opcode, x, b.Parameter({type, {4}}, "y"));
           })
        .rule.linear_groups;
  };
  EXPECT_THAT(groups(Opcode::kDivide, kF32), ElementsAre(ElementsAre(0)));
  EXPECT_THAT(groups(Opcode::kDivide, kS32), IsEmpty());
  EXPECT_THAT(groups(Opcode::kMultiply, kS32), ElementsAre(ElementsAre(0), ElementsAre(1)));
  EXPECT_THAT(groups(Opcode::kAdd, kS32), ElementsAre(ElementsAre(0, 1)));
  EXPECT_THAT(groups(Opcode::kMaximum, kF32), IsEmpty());
}

TEST(OpRule, BarrierSplitsEachOperandByItself) {
  const Case barrier = RuleOf([](ComputationBuilder& b) {
    const Value x = b.Parameter({kF32, {4, 8}}, "x");
    const Value y = b.Parameter({kF32, {6}}, "y");
    return b.OptBarrier(std::vector<Value>{x, y})[0];
  });
  const Mesh mesh = *Mesh::Parse("x=2,y=2");
  const Strategy strategy =
      *ParseStrategy("x: dim 1 | x: dim 0, y: partial(0)", barrier.rule, mesh);
  EXPECT_EQ(ToString(strategy, barrier.rule, mesh), "x: dim 1 | x: dim 0, y: partial(0)");
  EXPECT_EQ(ToString(OperandSharding(barrier.rule, strategy, 0), mesh), "[-,x]");
  EXPECT_EQ(ToString(ResultSharding(barrier.rule, strategy, 0), mesh), "[-,x]");
  EXPECT_EQ(ToString(OperandSharding(barrier.rule, strategy, 1), mesh), "[x]{partial: y}");
  EXPECT_EQ(ToString(ResultSharding(barrier.rule, strategy, 1), mesh), "[x]{partial: y}");
  EXPECT_EQ(EnumerateStrategies(LaneRule(barrier.rule, 1), mesh).size(), 8u);  // 3*3 less 6/(2*2)
}

OpRule RuleOfOpaque(Opcode opcode, const std::string& name,
                    const std::vector<std::vector<int64_t>>& operands,
                    const std::vector<std::vector<int64_t>>& results,
                    const hlo::HloInstructionProto& fields = {}) {
  return RuleOf([&](ComputationBuilder& b) {
           Instruction instruction{
               .opcode = opcode,
               .attributes = OpaqueAttributes{.name = name},
               .undecoded = std::make_shared<std::string>(fields.SerializeAsString())};
           for (const auto& dims : operands) {
             instruction.operands.push_back(
                 b.Parameter({kF32, dims}, fmt::format("p{}", instruction.operands.size())));
           }
           for (const auto& dims : results) instruction.results.push_back({kF32, dims});
           return b.Append(std::move(instruction));
         })
      .rule;
}

TEST(OpRule, MatricesAreSplitByTheirBatch) {
  const OpRule cholesky = RuleOfOpaque(Opcode::kOther, "cholesky", {{4, 6, 8, 8}}, {{4, 6, 8, 8}});
  EXPECT_TRUE(cholesky.supported);
  EXPECT_THAT(cholesky.operand_dims, ElementsAre(ElementsAre(0, 1, kWholeDim, kWholeDim)));
  hlo::HloInstructionProto left;
  left.mutable_triangular_solve_options()->set_left_side(true);
  const OpRule solve = RuleOfOpaque(Opcode::kOther, "triangular-solve",
                                    {{4, 6, 8, 8}, {4, 6, 8, 3}}, {{4, 6, 8, 3}}, left);
  EXPECT_THAT(solve.operand_dims,
              ElementsAre(ElementsAre(0, 1, -1, -1), ElementsAre(0, 1, kWholeDim, 2)));
  EXPECT_THAT(solve.result_dims, ElementsAre(ElementsAre(0, 1, kWholeDim, 2)));
  EXPECT_THAT(solve.linear_groups, ElementsAre(ElementsAre(1)));
  const OpRule from_right = RuleOfOpaque(Opcode::kOther, "triangular-solve",
                                         {{4, 6, 8, 8}, {4, 6, 3, 8}}, {{4, 6, 3, 8}});
  EXPECT_THAT(from_right.result_dims, ElementsAre(ElementsAre(0, 1, 2, kWholeDim)));
}

TEST(OpRule, FourierTransformKeepsWhatItTransformsWhole) {
  hlo::HloInstructionProto fields;
  fields.add_fft_length(8);
  fields.add_fft_length(16);
  const OpRule rule = RuleOfOpaque(Opcode::kOther, "fft", {{4, 6, 8, 16}}, {{4, 6, 8, 9}}, fields);
  EXPECT_THAT(rule.operand_dims, ElementsAre(ElementsAre(0, 1, -1, -1)));
  EXPECT_THAT(rule.result_dims, ElementsAre(ElementsAre(0, 1, -1, -1)));
  EXPECT_THAT(rule.linear_groups, ElementsAre(ElementsAre(0)));
}

TEST(OpRule, CallsOnMatricesAreSplitByTheirBatch) {
  const OpRule qr = RuleOfOpaque(Opcode::kCustomCall, "Qr", {{4, 8, 3}}, {{4, 8, 3}, {4, 3}});
  EXPECT_TRUE(qr.supported);
  EXPECT_THAT(qr.operand_dims, ElementsAre(ElementsAre(0, -1, -1)));
  EXPECT_THAT(qr.result_dims, ElementsAre(ElementsAre(0, -1, -1), ElementsAre(0, -1)));
  // Nothing is known of others, nor of what has not the batch.
  EXPECT_FALSE(RuleOfOpaque(Opcode::kCustomCall, "Lu", {{4, 8, 3}}, {{4, 8, 3}, {4, 3}}).supported);
  EXPECT_FALSE(RuleOfOpaque(Opcode::kOther, "Qr", {{4, 8, 3}}, {{4, 8, 3}, {4, 3}}).supported);
  EXPECT_THAT(RuleOfOpaque(Opcode::kCustomCall, "Qr", {{4, 8, 3}}, {{4, 8, 3}, {3}}).factors,
              IsEmpty());
}

// while (i < 3) { i = i + 1; x, y = f(x + y), x }
template <typename Function>
Case Loop(Function f) {
  return RuleOf([&](ComputationBuilder& b) {
    const Shape array{kF32, {4, 8}};
    ComputationBuilder body = b.module().AddComputation("body");
    const Value i = body.Parameter({kS32, {}}, "i");
    const Value x = body.Parameter(array, "x");
    const Value y = body.Parameter(array, "y");
    const Value next = f(body, body.Binary(Opcode::kAdd, x, y));
    body.SetResults({body.Binary(Opcode::kAdd, i, body.Scalar(kS32, 1)), next, x});
    ComputationBuilder condition = b.module().AddComputation("condition");
    const Value j = condition.Parameter({kS32, {}}, "i");
    condition.Parameter(array, "x");
    condition.Parameter(array, "y");
    condition.SetResults(
        {condition.Compare(CompareAttributes::Direction::kLt, j, condition.Scalar(kS32, 3))});
    Instruction loop;
    loop.opcode = Opcode::kWhile;
    loop.operands = {b.Scalar(kS32, 0), b.Parameter(array, "x"), b.Parameter(array, "y")};
    loop.called = {b.module().id(body), b.module().id(condition)};
    return b.Append(loop);
  });
}

TEST(OpRule, ElementwiseLoopSplitsAllDims) {
  const Case loop = Loop([](ComputationBuilder&, Value x) { return x; });
  EXPECT_TRUE(loop.rule.supported);
  EXPECT_THAT(loop.rule.operand_dims, ElementsAre(IsEmpty(), ElementsAre(0, 1), ElementsAre(0, 1)));
  EXPECT_THAT(loop.rule.result_dims, ElementsAre(IsEmpty(), ElementsAre(0, 1), ElementsAre(0, 1)));
}

// x * b + b, where b is a broadcast bias, with x's rows split over mesh axis x of `size` devices.
struct SlicedBias {
  CalledPlan plan;
  Sharding made;  // the broadcast bias
};
SlicedBias PlanSlicedBias(int size) {
  ModuleBuilder target("m");
  ComputationBuilder b = target.Entry();
  const Value bias = b.Parameter({kF32, {8}}, "bias");
  const Value wide = b.Reshape(b.Broadcast(bias, {2, 2, 8}, {2}), {4, 8});
  const Value x = b.Parameter({kF32, {4, 8}}, "x");
  b.SetResults({b.Binary(Opcode::kAdd, b.Binary(Opcode::kMultiply, x, wide), wide)});
  const Module module = *std::move(target).Finish();
  const Computation& computation = module.entry_computation();
  const std::vector<OpRule> rules = RulesOf(module, computation);
  const Mesh mesh({{"x", size}});
  const std::vector<Sharding> parameters = {Sharding::Replicated(1), *ParseSharding("[x,-]", mesh)};
  CalledPlan plan = PlanCalled(rules, computation, parameters, std::nullopt, mesh, kTrialPrices);
  const Sharding made = VersionSharding(computation, rules, plan, wide, 0);
  return {std::move(plan), made};
}

TEST(PlanCalled, BroadcastsAreMadeInTheSlicesThatAreRead) {
  const SlicedBias two = PlanSlicedBias(2);
  EXPECT_THAT(two.plan.reshards, IsEmpty());
  EXPECT_EQ(ToString(two.made, *Mesh::Parse("x=2")), "[x,-]");
}

// The reshape joins 2 by 2: into 4 parts it cannot be made.
TEST(PlanCalled, SlicesThatNoFactorMakesAreCutOffTheWhole) {
  const SlicedBias four = PlanSlicedBias(4);
  EXPECT_EQ(four.plan.reshards.size(), 1u);
  EXPECT_TRUE(four.made.is_replicated());
}

TEST(OpRule, LoopThatSumsOverADimCommunicatesInside) {
  const Case loop = Loop([](ComputationBuilder& body, Value x) {
    const Value rows = body.Reduce(x, body.Scalar(kF32, 0), {1}, Opcode::kAdd);
    return body.Broadcast(rows, {4, 8}, {0});
  });
  EXPECT_THAT(loop.rule.operand_dims, ElementsAre(IsEmpty(), ElementsAre(0, 1), ElementsAre(0, 1)));
  EXPECT_EQ(loop.rule.factors[0].local_form, LocalForm::kPlain);
  EXPECT_EQ(loop.rule.factors[1].local_form, LocalForm::kCollectivesInside);

  const Mesh mesh = *Mesh::Parse("x=2");
  const Strategy strategy{{{AxisUse::Kind::kFactor, 1}}};
  const Computation& entry = loop.module.entry_computation();
  const std::vector<CalledPlan> called =
      PlanCalledBy(loop.module, entry, loop.id, loop.rule, strategy, mesh, kTrialPrices);
  const auto collectives =
      CollectivesOf(loop.module, entry, loop.id, loop.rule, strategy, called, mesh,
                    [](const Computation&, InstructionId) { return 3.0; });
  ASSERT_EQ(collectives.size(), 1u);
  EXPECT_EQ(collectives[0].work.kind, ReshardKind::kAllReduce);
  EXPECT_EQ(collectives[0].work.local_bytes, 16);
  EXPECT_EQ(collectives[0].times, 3);
}

// while (i < 3) { i = i + 1; sum = sum + transpose(x) x; x = 2 x }, as a loop that accumulates a
// gradient.
TEST(OpRule, SumsThatALoopAccumulatesStayOwed) {
  const Case loop = RuleOf([&](ComputationBuilder& b) {
    const Shape array{kF32, {8, 4}}, square{kF32, {4, 4}}, count{kS32, {}};
    ComputationBuilder body = b.module().AddComputation("body");
    const Value i = body.Parameter(count, "i");
    const Value sum = body.Parameter(square, "sum");
    const Value x = body.Parameter(array, "x");
    body.SetResults({body.Binary(Opcode::kAdd, i, body.Scalar(kS32, 1)),
                     body.Binary(Opcode::kAdd, sum, body.Dot(x, x, {{0}, {0}, {}, {}})),
                     body.Binary(Opcode::kAdd, x, x)});
    ComputationBuilder condition = b.module().AddComputation("condition");
    const Value j = condition.Parameter(count, "i");
    condition.Parameter(square, "sum");
    condition.Parameter(array, "x");
    condition.SetResults(
        {condition.Compare(CompareAttributes::Direction::kLt, j, condition.Scalar(kS32, 3))});
    Instruction loop;
    loop.opcode = Opcode::kWhile;
    loop.operands = {b.Scalar(kS32, 0), b.Broadcast(b.Scalar(kF32, 0), {4, 4}, {}),
                     b.Parameter(array, "x")};
    loop.called = {b.module().id(body), b.module().id(condition)};
    return b.Append(loop);
  });
  const auto rows = std::find_if(loop.rule.factors.begin(), loop.rule.factors.end(),
                                 [](const Factor& factor) { return factor.size == 8; });
  ASSERT_NE(rows, loop.rule.factors.end());
  EXPECT_EQ(rows->local_form, LocalForm::kPlain);
  EXPECT_THAT(rows->partial_operands, ElementsAre(1));
  EXPECT_THAT(rows->partial_results, ElementsAre(1));
  const int factor = static_cast<int>(rows - loop.rule.factors.begin());
  const Strategy strategy{{{AxisUse::Kind::kFactor, factor}}};
  const Mesh mesh = *Mesh::Parse("x=2");
  EXPECT_EQ(ToString(OperandSharding(loop.rule, strategy, 1), mesh), "[-,-]{partial: x}");
  EXPECT_EQ(ToString(ResultSharding(loop.rule, strategy, 1), mesh), "[-,-]{partial: x}");
  EXPECT_EQ(ToString(ResultSharding(loop.rule, strategy, 2), mesh), "[x,-]");
}

TEST(OpRule, LoopAroundAnOperationWithoutRuleRunsItWhole) {
  const Case loop = Loop([](ComputationBuilder& body, Value x) {
    Instruction call;
    call.opcode = Opcode::kCustomCall;
    call.operands = {x};
    call.results = {body.shape(x)};
    call.attributes = OpaqueAttributes{"something"};
    return body.Append(call);
  });
  EXPECT_TRUE(loop.rule.supported);
  for (const Factor& factor : loop.rule.factors) {
    EXPECT_EQ(factor.local_form, LocalForm::kCollectivesInside);
  }
}

TEST(OpRule, ConditionalSplitsWhatItsBranchesSplit) {
  const Case conditional = RuleOf([&](ComputationBuilder& b) {
    const Shape array{kF32, {8, 4}};
    ComputationBuilder twice = b.module().AddComputation("twice");
    const Value x = twice.Parameter(array, "x");
    twice.SetResults({twice.Binary(Opcode::kAdd, x, x)});
    ComputationBuilder reversed = b.module().AddComputation("negated");
    reversed.SetResults({reversed.Unary(Opcode::kNegate, reversed.Parameter(array, "x"))});
    Instruction instruction;
    instruction.opcode = Opcode::kConditional;
    instruction.operands = {b.Parameter({kPred, {}}, "p"), b.Parameter(array, "x"),
                            b.Parameter(array, "y")};
    instruction.called = {b.module().id(twice), b.module().id(reversed)};
    return b.Append(instruction);
  });
  EXPECT_THAT(conditional.rule.operand_dims,
              ElementsAre(IsEmpty(), ElementsAre(0, 1), ElementsAre(0, 1)));
  EXPECT_THAT(conditional.rule.result_dims, ElementsAre(ElementsAre(0, 1)));
  EXPECT_EQ(conditional.rule.factors[0].local_form, LocalForm::kPlain);
}

TEST(OpRule, ArgmaxGathersAndReducesThePartsOnceMore) {
  const Case argmax = RuleOf([&](ComputationBuilder& b) {
    ComputationBuilder reducer = b.module().AddComputation("argmax");
    const Value x = reducer.Parameter({kF32, {}}, "x"), i = reducer.Parameter({kS32, {}}, "i");
    const Value y = reducer.Parameter({kF32, {}}, "y"), j = reducer.Parameter({kS32, {}}, "j");
    const Value larger = reducer.Compare(CompareAttributes::Direction::kGt, x, y);
    reducer.SetResults({reducer.Select(larger, x, y), reducer.Select(larger, i, j)});
    Instruction reduce;
    reduce.opcode = Opcode::kReduce;
    reduce.operands = {b.Parameter({kF32, {8, 4}}, "x"), b.Iota({kS32, {8, 4}}, 0),
                       b.Scalar(kF32, -1e30), b.Scalar(kS32, 0)};
    reduce.attributes = DimensionsAttributes{{0}};
    reduce.called = {b.module().id(reducer)};
    return b.Append(reduce);
  });
  EXPECT_EQ(argmax.rule.factors[0].kind, FactorKind::kCombine);
  EXPECT_EQ(argmax.rule.factors[0].local_form, LocalForm::kGatherAndReduce);
  EXPECT_THAT(argmax.rule.operand_dims[1], ElementsAre(0, 1));
  EXPECT_THAT(argmax.rule.result_dims, ElementsAre(ElementsAre(1), ElementsAre(1)));
}

TEST(OpRule, IotaAndConstantsAreFreeAndSoIsWhatFollows) {
  ModuleBuilder builder("m");
  ComputationBuilder b = builder.Entry();
  const Value x = b.Parameter({kS32, {4, 4}}, "x");
  const Value key = b.Parameter({kS32, {4, 4}}, "key");
  const Value rows = b.Iota({kS32, {4, 4}}, 0);
  const Value mask = b.Compare(CompareAttributes::Direction::kGe, rows, b.Iota({kS32, {4, 4}}, 1));
  const Value masked = b.Select(mask, x, b.FullLike(x, 0));
  const Value bits = b.Binary(Opcode::kXor, key, rows);
  b.SetResults({masked, bits});
  const Module module = *std::move(builder).Finish();
  const Computation& entry = module.entry_computation();
  const std::vector<bool> is_free = FreeToProduce(module, entry);
  EXPECT_TRUE(is_free[mask.instruction]);
  EXPECT_FALSE(is_free[masked.instruction]);
  EXPECT_FALSE(is_free[bits.instruction]);
  const std::vector<int> keys = {1};
  EXPECT_TRUE(FreeToProduce(module, entry, keys)[bits.instruction]);
}

TEST(OpRule, ConstantsOfDifferentElementsAreSliced) {
  const OpRule splat =
      RuleOf([](ComputationBuilder& b) { return b.Constant(FilledLiteral({kF32, {4}}, 3)); }).rule;
  EXPECT_EQ(splat.factors[0].local_form, LocalForm::kPlain);
  Literal literal = FilledLiteral({ElementType::kU8, {4}}, 3);
  literal.bytes = std::make_shared<const std::string>("\3\3\3\4");
  const OpRule mixed = RuleOf([&](ComputationBuilder& b) { return b.Constant(literal); }).rule;
  EXPECT_EQ(mixed.factors[0].local_form, LocalForm::kOwnSlice);
}

TEST(OpRule, KeysAgreeExactlyForEqualRulesAndShapes) {
  const auto key = [](Opcode opcode, int64_t rows) {
    const Case result = RuleOf([&](ComputationBuilder& b) {
      const Value x = b.Parameter({kF32, {rows, 8}}, "x");
      return b.Binary(opcode, x, b.Parameter({kF32, {rows, 8}}, "y"));
    });
    return RuleKey(result.rule, result.module.entry_computation(), result.id);
  };
  EXPECT_EQ(key(Opcode::kAdd, 4), key(Opcode::kSubtract, 4));
  EXPECT_NE(key(Opcode::kAdd, 4), key(Opcode::kAdd, 8));
  EXPECT_NE(key(Opcode::kAdd, 4), key(Opcode::kMultiply, 4));
}

// [batch, spatial, features] with kernels [spatial, inputs, outputs].
Case ConvolutionCase(const Shape& input, const Shape& kernel, const WindowDim& window,
                     int64_t feature_groups = 1, int64_t batch_groups = 1) {
  return RuleOf([&](ComputationBuilder& b) {
    const Value x = b.Parameter(input, "x");
    return b.Convolution(x, b.Parameter(kernel, "w"),
                         {.window = {window},
                          .input_batch = 0,
                          .input_feature = 2,
                          .kernel_input_feature = 1,
                          .kernel_output_feature = 2,
                          .output_batch = 0,
                          .output_feature = 2,
                          .input_spatial = {1},
                          .kernel_spatial = {0},
                          .output_spatial = {1},
                          .feature_group_count = feature_groups,
                          .batch_group_count = batch_groups});
  });
}

TEST(OpRule, ConvolutionSplitsBatchFeaturesAndContraction) {
  const WindowDim same{.size = 3, .padding_low = 1, .padding_high = 1};
  const Case same_size = ConvolutionCase({kF32, {8, 16, 4}}, {kF32, {3, 4, 6}}, same);
  EXPECT_THAT(FactorNames(same_size.rule), ElementsAre("batch", "feature", "contraction"));
  EXPECT_THAT(same_size.rule.operand_dims,
              ElementsAre(ElementsAre(0, kWholeDim, 2), ElementsAre(kWholeDim, 2, 1)));
  EXPECT_THAT(same_size.rule.result_dims, ElementsAre(ElementsAre(0, kWholeDim, 1)));
  EXPECT_EQ(same_size.rule.factors[2].kind, FactorKind::kSum);
  EXPECT_THAT(same_size.rule.linear_groups, ElementsAre(ElementsAre(0), ElementsAre(1)));
}

TEST(OpRule, ConvolutionSplitsSpatialDimensionsThatDoNotOverlap) {
  const Case one = ConvolutionCase({kF32, {8, 16, 4}}, {kF32, {1, 4, 6}}, {});
  EXPECT_THAT(one.rule.operand_dims[0], ElementsAre(0, 3, 2));
  EXPECT_THAT(one.rule.result_dims[0], ElementsAre(0, 3, 1));
  // The gradient by a 1x1 kernel sums over the spatial dimension.
  const Case gradient = ConvolutionCase({kF32, {8, 16, 4}}, {kF32, {16, 4, 6}}, {.size = 16});
  EXPECT_THAT(gradient.rule.operand_dims, ElementsAre(ElementsAre(0, 3, 2), ElementsAre(3, 2, 1)));
  EXPECT_EQ(gradient.rule.factors[3].kind, FactorKind::kSum);
}

TEST(OpRule, ConvolutionInGroupsSplitsTheGroups) {
  const Case features = ConvolutionCase({kF32, {8, 16, 4}}, {kF32, {3, 1, 8}}, {.size = 3}, 4);
  EXPECT_THAT(FactorNames(features.rule), ElementsAre("batch", "group"));
  EXPECT_EQ(features.rule.factors[1].size, 4);
  EXPECT_THAT(features.rule.operand_dims,
              ElementsAre(ElementsAre(0, kWholeDim, 1), ElementsAre(kWholeDim, kWholeDim, 1)));
  const Case batches = ConvolutionCase({kF32, {8, 16, 4}}, {kF32, {3, 4, 8}}, {.size = 3}, 1, 4);
  EXPECT_THAT(FactorNames(batches.rule), ElementsAre("group", "contraction"));
  EXPECT_THAT(batches.rule.operand_dims,
              ElementsAre(ElementsAre(0, kWholeDim, 1), ElementsAre(kWholeDim, 1, 0)));
  EXPECT_THAT(batches.rule.result_dims, ElementsAre(ElementsAre(kWholeDim, kWholeDim, 0)));
}

TEST(OpRule, ProductsOfNarrowIntegersAreNotLinear) {
  const Case dot = RuleOf([](ComputationBuilder& b) {
    const Value x = b.Parameter({ElementType::kS8, {8, 16}}, "x");
    return b.Dot(x, b.Parameter({ElementType::kS8, {16, 6}}, "y"), {{1}, {0}, {}, {}}, kS32);
  });
  EXPECT_THAT(dot.rule.linear_groups, IsEmpty());
}

TEST(OpRule, ReduceWindowSplitsWhatDoesNotOverlap) {
  const Case pool = RuleOf([](ComputationBuilder& b) {
    return b.ReduceWindow(b.Parameter({kF32, {8, 16, 12, 6}}, "x"), b.Scalar(kF32, 0),
                          {{},
                           {.size = 2, .stride = 2},
                           {.size = 12},
                           {.size = 3, .padding_low = 1, .padding_high = 1}},
                          Opcode::kAdd);
  });
  EXPECT_THAT(pool.rule.operand_dims[0], ElementsAre(0, 1, 2, kWholeDim));
  EXPECT_THAT(pool.rule.result_dims[0], ElementsAre(0, 1, kWholeDim, kWholeDim));
  EXPECT_EQ(pool.rule.factors[1].size, 8);
  EXPECT_EQ(pool.rule.factors[2].kind, FactorKind::kSum);
  EXPECT_EQ(pool.rule.factors[2].local_form, LocalForm::kInitOnFirst);
  EXPECT_THAT(pool.rule.linear_groups, ElementsAre(ElementsAre(0)));
}

TEST(OpRule, SelectAndScatterIsLinearInItsSource) {
  const Case scatter = RuleOf([](ComputationBuilder& b) {
    const Value x = b.Parameter({kF32, {8, 16}}, "x");
    return b.SelectAndScatterAdd(x, b.Parameter({kF32, {8, 8}}, "g"), b.Scalar(kF32, 0),
                                 {{}, {.size = 2, .stride = 2}}, CompareAttributes::Direction::kGe);
  });
  EXPECT_THAT(scatter.rule.operand_dims,
              ElementsAre(ElementsAre(0, 1), ElementsAre(0, 1), IsEmpty()));
  EXPECT_THAT(scatter.rule.linear_groups, ElementsAre(ElementsAre(1)));
}

TEST(OpRule, BatchNormSplitsFeatures) {
  const auto norm = [](Opcode opcode, int num_operands) {
    return RuleOf([&](ComputationBuilder& b) {
      Instruction instruction{.opcode = opcode, .attributes = BatchNormAttributes{0.001F, 1}};
      for (int i = 0; i < num_operands; ++i) {
        const bool is_vector = i != 0 && !(opcode == Opcode::kBatchNormGrad && i == 4);
        const std::vector<int64_t> dims =
            is_vector ? std::vector<int64_t>{6} : std::vector<int64_t>{8, 6};
        instruction.operands.push_back(b.Parameter({kF32, dims}, "p"));
      }
      return b.Append(std::move(instruction));
    });
  };
  const OpRule training = norm(Opcode::kBatchNormTraining, 3).rule;
  EXPECT_THAT(training.operand_dims[0], ElementsAre(kWholeDim, 0));
  EXPECT_THAT(training.result_dims[2], ElementsAre(0));
  EXPECT_THAT(training.linear_groups, IsEmpty());
  const OpRule inference = norm(Opcode::kBatchNormInference, 5).rule;
  EXPECT_THAT(inference.operand_dims[0], ElementsAre(1, 0));
  EXPECT_THAT(inference.linear_groups, ElementsAre(ElementsAre(0, 2, 3), ElementsAre(1, 2)));
  EXPECT_THAT(norm(Opcode::kBatchNormGrad, 5).rule.linear_groups, ElementsAre(ElementsAre(4)));
}

}  // namespace
}  // namespace minka
