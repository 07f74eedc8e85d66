#include "minka/lowering/spmd.h"

#include <map>
#include <set>
#include <tuple>

#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/base/status.h"
#include "minka/ir/builder.h"
#include "minka/ir/hlo_proto.h"
#include "minka/ir/verifier.h"
#include "minka/lowering/join_barriers.h"
#include "tests/support/random_modules.h"
#include "tests/support/random_plan.h"

namespace minka {
namespace {

using ::testing::ElementsAre;

using ElementType::kF32;
constexpr AxisUse kIdle = {};
constexpr AxisUse Factor(int index) { return {AxisUse::Kind::kFactor, index}; }
constexpr AxisUse Linear(int index) { return {AxisUse::Kind::kLinear, index}; }

Mesh DataModel() { return *Mesh::Parse("data=2,model=4"); }

const Instruction* Find(const Module& module, Opcode opcode) {
  for (const Instruction& instruction : module.entry_computation().instructions) {
    if (instruction.opcode == opcode) return &instruction;
  }
  return nullptr;
}

int Count(const Module& module, Opcode opcode) {
  int count = 0;
  for (const Instruction& instruction : module.entry_computation().instructions) {
    count += instruction.opcode == opcode;
  }
  return count;
}

Module Lowered(const Module& module, const Plan& plan, Platform platform = Platform::kCpu) {
  EXPECT_TRUE(CheckPlan(plan, module).ok()) << CheckPlan(plan, module);
  absl::StatusOr<SpmdProgram> program = LowerSpmd(module, plan.stage, platform);
  EXPECT_TRUE(program.ok()) << program.status();
  if (!program.ok()) return module;
  EXPECT_TRUE(Verify(program->module).ok()) << Verify(program->module);
  return program->module;
}

struct CollectiveKey {
  std::string kind;
  ElementType type;
  int64_t bytes;
  auto operator<=>(const CollectiveKey&) const = default;
};

// Maxima of floats are reduced as integers, which a selection has put what is no number among.
ElementType ReducedType(const Computation& computation, const Instruction& collective) {
  const Instruction& made_by = computation.instruction(collective.operands[0]);
  const bool may_be_floats = collective.opcode == Opcode::kAllReduce &&
                             collective.shape().type == ElementType::kS32 &&
                             made_by.opcode == Opcode::kSelect;
  if (!may_be_floats) return collective.shape().type;
  const Opcode selected = computation.instruction(made_by.operands[2]).opcode;
  return selected == Opcode::kXor ? kF32 : ElementType::kS32;
}

std::map<CollectiveKey, int> WrittenCollectives(const Module& local) {
  std::map<CollectiveKey, int> written;
  for (const Computation& computation : local.computations) {
    for (const Instruction& instruction : computation.instructions) {
      if (Family(instruction.opcode) != OpFamily::kCollective ||
          instruction.opcode == Opcode::kReplicaId) {
        continue;
      }
      int64_t bytes = 0;
      for (size_t i = 0; i < instruction.operands.size(); ++i) {
        bytes += instruction.opcode == Opcode::kAllGather
                     ? instruction.results[i].num_bytes()
                     : computation.shape(instruction.operands[i]).num_bytes();
      }
      ++written[{std::string(OpcodeName(instruction.opcode)), ReducedType(computation, instruction),
                 bytes}];
    }
  }
  return written;
}

void PrintTo(const CollectiveKey& key, std::ostream* out) {
  *out << key.kind << ' ' << TypeName(key.type) << ' ' << key.bytes;
}

TEST(LowerSpmd, CompletesASplitContractionOverItsAxis) {
  ModuleBuilder target("dot");
  ComputationBuilder b = target.Entry();
  const Value x = b.Parameter({kF32, {8, 16}}, "x");
  const Value w = b.Parameter({kF32, {16, 32}}, "w");
  b.SetResults({b.Dot(x, w, {.lhs_contracting = {1}, .rhs_contracting = {0}})});
  const Module module = *std::move(target).Finish();
  const Module local = Lowered(
      module,
      PlanOfStrategies(module, DataModel(),
                       {{{Factor(0), Factor(1)}}, {{kIdle, Factor(0)}}, {{Factor(0), Factor(2)}}}));
  const Computation& entry = local.entry_computation();
  EXPECT_EQ(ToString(entry.instructions[entry.parameters[0]].shape()), "f32[4,4]");
  EXPECT_EQ(ToString(entry.instructions[entry.parameters[1]].shape()), "f32[4,32]");
  EXPECT_EQ(ToString(Find(local, Opcode::kDot)->shape()), "f32[4,32]");
  const Instruction* all_reduce = Find(local, Opcode::kAllReduce);
  ASSERT_NE(all_reduce, nullptr);
  EXPECT_THAT(all_reduce->As<CollectiveAttributes>().groups,
              ElementsAre(ElementsAre(0, 1, 2, 3), ElementsAre(4, 5, 6, 7)));
  EXPECT_EQ(Count(local, Opcode::kReplicaId), 0) << "nothing depends on the device's place";
}

TEST(LowerSpmd, MovesAndSumsOverSeveralAxesInOneGroup) {
  ModuleBuilder target("two_axes");
  ComputationBuilder b = target.Entry();
  const Value x = b.Parameter({kF32, {8, 16}}, "x");
  const Value moved = b.Unary(Opcode::kNegate, x);
  const Value product = b.Dot(moved, moved, {.lhs_contracting = {1}, .rhs_contracting = {1}});
  b.SetResults({b.Unary(Opcode::kNegate, product)});
  const Module module = *std::move(target).Finish();
  Plan plan = PlanOfStrategies(module, DataModel(),
                               {{{Factor(0), Factor(0)}},
                                {{Factor(1), Factor(1)}},
                                {{Factor(2), Factor(2)}},
                                {{Factor(1), Factor(1)}}});
  const ReshardPrice bytes_alone = [](const StepWork& work) {
    const bool counts_twice = work.kind == ReshardKind::kAllReduce;
    return static_cast<double>(counts_twice ? 2 * work.local_bytes : work.local_bytes);
  };
  for (Reshard& reshard : plan.stage.reshards) {
    reshard.steps = CheapestReshard(module.entry_computation().shape(reshard.value), reshard.from,
                                    reshard.to, DataModel(), bytes_alone)
                        .steps;
  }
  const Module local = Lowered(module, plan);
  EXPECT_EQ(WrittenCollectives(local), (std::map<CollectiveKey, int>{
                                           {{"all-to-all", kF32, 64}, 1},
                                           {{"reduce-scatter", kF32, 256}, 1},
                                       }));
  for (const Opcode opcode : {Opcode::kAllToAll, Opcode::kReduceScatter}) {
    EXPECT_THAT(Find(local, opcode)->As<CollectiveAttributes>().groups,
                ElementsAre(ElementsAre(0, 1, 2, 3, 4, 5, 6, 7)));
  }
}

TEST(LowerSpmd, KeepsNamesAndAliases) {
  ModuleBuilder target("state");
  ComputationBuilder b = target.Entry();
  b.SetOpName("update/negate");
  const Value x = b.Parameter({kF32, {8}}, "weights");
  b.SetResults({b.Unary(Opcode::kNegate, x)});
  target.AddAlias({0, 0});
  const Module module = *std::move(target).Finish();
  const Module local = Lowered(
      module, PlanOfStrategies(module, DataModel(), {{{kIdle, Factor(0)}}, {{kIdle, Factor(0)}}}));
  EXPECT_THAT(local.aliases, ElementsAre(Alias{0, 0}));
  EXPECT_EQ(local.entry_computation().instructions[0].name, "weights");
  EXPECT_EQ(Find(local, Opcode::kNegate)->op_name, "update/negate");
}

TEST(LowerSpmd, NotesBarriersThatStayApart) {
  ModuleBuilder target("circle");
  ComputationBuilder b = target.Entry();
  const auto lane = [&](Value x) {
    return b.Append({.opcode = Opcode::kOptBarrier,
                     .operands = {x},
                     .results = {b.shape(x)},
                     .frontend_attributes = {{kBarrierAttribute, "remat 3"}}});
  };
  b.SetResults({lane(b.Unary(Opcode::kNegate, lane(b.Parameter({kF32, {8}}, "x"))))});
  const Module module = *std::move(target).Finish();
  const Plan plan = PlanOfStrategies(module, DataModel(), WholeStrategies(module, DataModel()));
  const absl::StatusOr<SpmdProgram> program = LowerSpmd(module, plan.stage, Platform::kCpu);
  ASSERT_TRUE(program.ok()) << program.status();
  EXPECT_THAT(program->notes, ElementsAre(::testing::HasSubstr("barrier \"remat 3\", 1 of 2")));
}

TEST(LowerSpmd, SpreadsScalarBoundsOfClamp) {
  ModuleBuilder target("clamp");
  ComputationBuilder b = target.Entry();
  const Value x = b.Parameter({kF32, {8}}, "x");
  b.SetResults({b.Clamp(b.Scalar(kF32, 0), x, b.Scalar(kF32, 1))});
  const Module module = *std::move(target).Finish();
  std::vector<Strategy> strategies = WholeStrategies(module, DataModel());
  strategies[0].axes[0] = strategies[3].axes[0] = Factor(0);
  const Module local = Lowered(module, PlanOfStrategies(module, DataModel(), strategies));
  const Computation& entry = local.entry_computation();
  EXPECT_EQ(ToString(entry.shape(Find(local, Opcode::kClamp)->operands[0])), "f32[4]");
}

// XLA takes inits for neutral: it may drop them or count them several times.
TEST(LowerSpmd, AppliesAnInitThatIsNotNeutralByItself) {
  ModuleBuilder target("reductions");
  ComputationBuilder b = target.Entry();
  const Value x = b.Parameter({kF32, {4, 8}}, "x");
  const Value init = b.Parameter({kF32, {}}, "init");
  b.SetResults({b.Reduce(x, init, {0}, Opcode::kMinimum),
                b.Reduce(x, b.Scalar(kF32, 0), {0}, Opcode::kAdd)});
  const Module module = *std::move(target).Finish();
  const Module local =
      Lowered(module, PlanOfStrategies(module, DataModel(), WholeStrategies(module, DataModel())));
  EXPECT_EQ(Count(local, Opcode::kMinimum), 1);
  EXPECT_EQ(Count(local, Opcode::kAdd), 0) << "zero is neutral";
}

// XLA adds the starts of nested slices without clamping the inner ones.
TEST(LowerSpmd, ClampsStartsThatMayLieOutside) {
  ModuleBuilder target("slices");
  ComputationBuilder b = target.Entry();
  const Value x = b.Parameter({kF32, {8}}, "x");
  const Value start = b.Parameter({ElementType::kS32, {}}, "start");
  const Value inside = b.Scalar(ElementType::kS32, 4);
  const Value unknown[] = {start}, known[] = {inside};
  b.SetResults({b.DynamicSlice(x, unknown, {4}), b.DynamicSlice(x, known, {4})});
  const Module module = *std::move(target).Finish();
  const Module local =
      Lowered(module, PlanOfStrategies(module, DataModel(), WholeStrategies(module, DataModel())));
  EXPECT_EQ(Count(local, Opcode::kMinimum), 1);
  EXPECT_EQ(Count(local, Opcode::kMaximum), 1);
}

// XLA's bounds of such starts wrap.
TEST(LowerSpmd, WidensNarrowStartsOfSlices) {
  ModuleBuilder target("narrow");
  ComputationBuilder b = target.Entry();
  const Value x = b.Parameter({kF32, {320, 8}}, "x");
  const Value start = b.Parameter({ElementType::kU8, {}}, "start");
  const Value starts[] = {start, b.Scalar(ElementType::kU8, 0)};
  b.SetResults({b.DynamicSlice(x, starts, {60, 8})});
  const Module module = *std::move(target).Finish();
  const Module local =
      Lowered(module, PlanOfStrategies(module, DataModel(), WholeStrategies(module, DataModel())));
  const Instruction* const slice = Find(local, Opcode::kDynamicSlice);
  ASSERT_NE(slice, nullptr);
  EXPECT_EQ(ToString(local.entry_computation().shape(slice->operands[1])), "s32[]");
  EXPECT_EQ(ToString(local.entry_computation().shape(slice->operands[2])), "s32[]");
}

// docs/design/0004: a gather that looks up one index is a slice to XLA.
TEST(LowerSpmd, ClampsTheIndexOfAGatherThatBecomesASlice) {
  ModuleBuilder target("gathers");
  ComputationBuilder b = target.Entry();
  const Value table = b.Parameter({kF32, {8}}, "table");
  const GatherAttributes pairs{
      .offset_dims = {1}, .start_index_map = {0}, .slice_sizes = {2}, .index_vector_dim = 1};
  const Value few = b.Parameter({ElementType::kS32, {4}}, "few");
  const Value many = b.Parameter({ElementType::kS32, {8}}, "many");
  b.SetResults({b.Gather(table, few, pairs), b.Gather(table, many, pairs)});
  const Module module = *std::move(target).Finish();
  std::vector<Strategy> strategies = WholeStrategies(module, DataModel());
  for (const int id : {1, 2, 3, 4}) strategies[id].axes[1] = Factor(0);
  const Module local = Lowered(module, PlanOfStrategies(module, DataModel(), strategies));
  const Instruction* const one = Find(local, Opcode::kGather);
  ASSERT_NE(one, nullptr);
  EXPECT_EQ(ToString(one->shape()), "f32[1,2]");
  EXPECT_EQ(local.entry_computation().instruction(one->operands[1]).opcode, Opcode::kMinimum);
  EXPECT_EQ(Count(local, Opcode::kMinimum), 1) << "two indices make a loop";
}

// docs/design/0004: XLA would lose the factor.
TEST(LowerSpmd, KeepsAProductApartFromASliceOfOneElement) {
  ModuleBuilder target("scaled");
  ComputationBuilder b = target.Entry();
  const Value x = b.Parameter({ElementType::kS32, {8}}, "x");
  const Value factor = b.Parameter({ElementType::kS32, {8}}, "factor");
  const Value scaled = b.Binary(Opcode::kMultiply, x, factor);
  b.SetResults({b.Unary(Opcode::kNegate, scaled)});
  const Module module = *std::move(target).Finish();
  const Mesh mesh = *Mesh::Parse("8");
  const Module local = Lowered(
      module, PlanOfStrategies(module, mesh, {{{kIdle}}, {{kIdle}}, {{kIdle}}, {{Factor(0)}}}));
  const Instruction* const slice = Find(local, Opcode::kDynamicSlice);
  ASSERT_NE(slice, nullptr);
  EXPECT_EQ(local.entry_computation().instruction(slice->operands[0]).opcode, Opcode::kOptBarrier);
}

TEST(LowerSpmd, KeepsAConcatenationApartFromAnAllToAll) {
  ModuleBuilder target("joined");
  ComputationBuilder b = target.Entry();
  const Value x = b.Parameter({kF32, {16, 8}}, "x");
  const Value joined = b.Concatenate(std::vector<Value>{x, x}, 0);
  b.SetResults({b.Unary(Opcode::kNegate, joined)});
  const Module module = *std::move(target).Finish();
  const Mesh mesh = *Mesh::Parse("8");
  const Module local = Lowered(
      module, PlanOfStrategies(module, mesh, {{{Factor(1)}}, {{Factor(0)}}, {{Factor(0)}}}));
  const Instruction* exchange = Find(local, Opcode::kAllToAll);
  ASSERT_NE(exchange, nullptr);
  while (exchange->opcode != Opcode::kOptBarrier && exchange->opcode != Opcode::kConcatenate)
    exchange = &local.entry_computation().instruction(exchange->operands[0]);
  EXPECT_EQ(exchange->opcode, Opcode::kOptBarrier);
}

// On one device a program is what it was made of, but for what its compiler gets wrong or slow.
TEST(LowerSpmd, DepartsFromTheModuleByPlatform) {
  ModuleBuilder target("departures");
  ComputationBuilder b = target.Entry();
  const Value x = b.Parameter({kF32, {4, 6, 8}}, "x");
  const Value scalar = b.Parameter({kF32, {}}, "scalar");
  const Value start = b.Parameter({ElementType::kS32, {}}, "start");
  const Value image = b.Parameter({kF32, {2, 8, 8, 4}}, "image");
  const Value kernel = b.Parameter({kF32, {3, 3, 1, 4}}, "kernel");
  b.SetResults({b.Clamp(scalar, x, scalar), b.Reduce(x, scalar, {0, 1}, Opcode::kMaximum),
                b.DynamicSlice(x, {{start, start, start}}, {2, 2, 2}),
                b.Dot(x, x, {.lhs_contracting = {0, 1}, .rhs_contracting = {0, 1}}),
                b.Convolution(image, kernel,
                              {.window = {{.size = 3}, {.size = 3}},
                               .input_feature = 3,
                               .kernel_input_feature = 2,
                               .kernel_output_feature = 3,
                               .output_feature = 3,
                               .input_spatial = {1, 2},
                               .kernel_spatial = {0, 1},
                               .output_spatial = {1, 2},
                               .feature_group_count = 4})});
  const Module module = *std::move(target).Finish();
  const Mesh mesh = *Mesh::Parse("1");
  const Plan plan = PlanOfStrategies(module, mesh, WholeStrategies(module, mesh));
  const Module cpu = Lowered(module, plan, Platform::kCpu);
  const Module cuda = Lowered(module, plan, Platform::kCuda);
  const auto rank_of_operand = [](const Module& of, Opcode opcode) {
    return of.entry_computation().shape(Find(of, opcode)->operands[0]).rank();
  };
  for (const Module& of : {cpu, cuda}) {
    EXPECT_EQ(rank_of_operand(of, Opcode::kClamp), 3) << "a spread scalar";
    EXPECT_GT(Count(of, Opcode::kMinimum), 0) << "clamped starts";
    EXPECT_EQ(Count(of, Opcode::kMaximum), 4) << "three starts, and an init that is not neutral";
  }
  EXPECT_EQ(Count(cpu, Opcode::kConvolution), 0) << "depthwise";
  EXPECT_EQ(Count(cuda, Opcode::kConvolution), 1);
  EXPECT_EQ(rank_of_operand(cpu, Opcode::kDot), 2);
  EXPECT_EQ(rank_of_operand(cuda, Opcode::kDot), 3);
  EXPECT_EQ(Find(cpu, Opcode::kReduce)->As<DimensionsAttributes>().dims.size(), 1);
  EXPECT_EQ(Find(cuda, Opcode::kReduce)->As<DimensionsAttributes>().dims.size(), 2);
}

// Sum of x plus a non-zero init: the init must count on one device only.
TEST(LowerSpmd, CountsTheInitOfASplitSumOnce) {
  ModuleBuilder target("sum");
  ComputationBuilder b = target.Entry();
  const Value x = b.Parameter({kF32, {16}}, "x");
  const Value init = b.Parameter({kF32, {}}, "init");
  const Value zero = b.Scalar(kF32, 0);
  b.SetResults({b.Reduce(x, init, {0}, Opcode::kAdd), b.Reduce(x, zero, {0}, Opcode::kAdd)});
  const Module module = *std::move(target).Finish();
  const Module local = Lowered(module, PlanOfStrategies(module, DataModel(),
                                                        {{{kIdle, Factor(0)}},
                                                         {{kIdle, kIdle}},
                                                         {{kIdle, kIdle}},
                                                         {{kIdle, Factor(0)}},
                                                         {{kIdle, Factor(0)}}}));
  EXPECT_EQ(Count(local, Opcode::kSelect), 1) << "a zero needs no care";
}

// Sums of the columns of three matrices whose rows are split, in one group.
Module LoweredSumsOfColumns(const std::vector<int64_t>& columns) {
  ModuleBuilder target("gradients");
  ComputationBuilder b = target.Entry();
  std::vector<Value> matrices, sums;
  for (size_t i = 0; i < columns.size(); ++i) {
    matrices.push_back(b.Parameter({kF32, {16, columns[i]}}, fmt::format("x{}", i)));
  }
  const Value zero = b.Scalar(kF32, 0);
  for (const Value x : matrices) sums.push_back(b.Reduce(x, zero, {0}, Opcode::kAdd));
  b.SetResults(sums);
  const Module module = *std::move(target).Finish();
  const Strategy split = {{Factor(0), kIdle}};
  std::vector<Strategy> strategies(columns.size(), split);
  strategies.push_back({{kIdle, kIdle}});
  strategies.insert(strategies.end(), columns.size(), split);
  Plan plan = PlanOfStrategies(module, DataModel(), strategies);
  for (Reshard& reshard : plan.stage.reshards) reshard.combine_group = 3;
  return Lowered(module, plan);
}

TEST(LowerSpmd, WritesOneCollectivePerCombineGroup) {
  const Module local = LoweredSumsOfColumns({8, kMostPackedBytes, 4, 2 * kMostPackedBytes});
  ASSERT_EQ(Count(local, Opcode::kAllReduce), 1);
  // Those of few bytes are one operand.
  const std::vector<Shape>& results = Find(local, Opcode::kAllReduce)->results;
  ASSERT_EQ(results.size(), 3);
  EXPECT_EQ(results[0].dims, std::vector<int64_t>{kMostPackedBytes});
  EXPECT_EQ(results[1].dims, std::vector<int64_t>{2 * kMostPackedBytes});
  EXPECT_EQ(results[2].dims, std::vector<int64_t>{8 + 4});
}

TEST(LowerSpmd, PacksNothingForOneSmallOperand) {
  const Module local = LoweredSumsOfColumns({8, kMostPackedBytes});
  EXPECT_EQ(Count(local, Opcode::kConcatenate), 0);
  EXPECT_EQ(Find(local, Opcode::kAllReduce)->results.size(), 2);
}

TEST(LowerSpmd, PutsIsolatedCopiesBehindBarriers) {
  ModuleBuilder target("copies");
  ComputationBuilder b = target.Entry();
  const Value x = b.Parameter({kF32, {16}}, "x");
  const Value y = b.Unary(Opcode::kNegate, x);
  b.SetResults({y, b.Unary(Opcode::kAbs, x)});
  const Module module = *std::move(target).Finish();
  Plan plan = PlanOfStrategies(module, DataModel(),
                               {{{kIdle, Factor(0)}}, {{kIdle, kIdle}}, {{kIdle, kIdle}}});
  StagePlan& stage = plan.stage;
  ASSERT_EQ(stage.reshards.size(), 1);
  stage.reshards.push_back(stage.reshards[0]);
  stage.reshards[1].before = 2;
  stage.reshards[0].isolated = stage.reshards[1].isolated = true;
  stage.ops[2].operand_versions = {2};
  const Module local = Lowered(module, plan);
  EXPECT_EQ(Count(local, Opcode::kAllGather), 2);
  EXPECT_EQ(Count(local, Opcode::kOptBarrier), 2);
}

TEST(LowerSpmd, PutsFewRowsInOrderBehindGathers) {
  const auto count_for = [](int64_t num_rows, int dim) {
    ModuleBuilder target("rows");
    ComputationBuilder b = target.Entry();
    const Value x = b.Parameter({kF32, {num_rows, 16}}, "x");
    b.SetResults({b.Unary(Opcode::kNegate, x)});
    const Module module = *std::move(target).Finish();
    const Plan plan =
        PlanOfStrategies(module, DataModel(), {{{kIdle, Factor(dim)}}, {{kIdle, kIdle}}});
    const Module local = Lowered(module, plan);
    EXPECT_EQ(Count(local, Opcode::kAllGather), 1);
    EXPECT_EQ(Count(local, Opcode::kTranspose), Count(local, Opcode::kOptBarrier));
    return Count(local, Opcode::kOptBarrier);
  };
  EXPECT_EQ(count_for(8, 1), 1);
  EXPECT_EQ(count_for(8, 0), 0);
  EXPECT_EQ(count_for(1, 1), 0);
  EXPECT_EQ(count_for(64, 1), 0);
}

TEST(LowerSpmd, LeavesPartialOperandsOfLinearOperationsAlone) {
  ModuleBuilder target("linear");
  ComputationBuilder b = target.Entry();
  const Value x = b.Parameter({kF32, {16, 8}}, "x");
  const Value zero = b.Scalar(kF32, 0);
  const Value sum = b.Reduce(x, zero, {0}, Opcode::kAdd);
  b.SetResults({b.Unary(Opcode::kNegate, sum)});
  const Module module = *std::move(target).Finish();
  const Module local = Lowered(
      module,
      PlanOfStrategies(
          module, DataModel(),
          {{{Factor(0), kIdle}}, {{kIdle, kIdle}}, {{Factor(0), kIdle}}, {{Linear(0), kIdle}}}));
  const Computation& entry = local.entry_computation();
  EXPECT_EQ(entry.instruction(entry.results[0]).opcode, Opcode::kAllReduce);
  EXPECT_EQ(entry.instruction(entry.instruction(entry.results[0]).operands[0]).opcode,
            Opcode::kNegate);
}

TEST(LowerSpmd, RunsALoopOnLocalShapes) {
  ModuleBuilder target("loop");
  ComputationBuilder b = target.Entry();
  const Shape counter{ElementType::kS32, {}}, array{kF32, {16}};
  const Value x = b.Parameter(array, "x");
  ComputationBuilder body = target.AddComputation("body");
  const Value i = body.Parameter(counter, "i");
  const Value a = body.Parameter(array, "a");
  body.SetResults({body.Binary(Opcode::kAdd, i, body.Scalar(ElementType::kS32, 1)),
                   body.Binary(Opcode::kAdd, a, body.FullLike(a, 2))});
  ComputationBuilder condition = target.AddComputation("condition");
  const Value count = condition.Parameter(counter, "i");
  condition.Parameter(array, "a");
  condition.SetResults({condition.Compare(CompareAttributes::Direction::kLt, count,
                                          condition.Scalar(ElementType::kS32, 3))});
  const Value loop = b.Append({.opcode = Opcode::kWhile,
                               .operands = {b.Scalar(ElementType::kS32, 0), x},
                               .called = {target.id(body), target.id(condition)}});
  b.SetResults({{loop.instruction, 1}});
  const Module module = *std::move(target).Finish();
  const Module local = Lowered(
      module, PlanOfStrategies(module, DataModel(),
                               {{{kIdle, Factor(0)}}, {{kIdle, kIdle}}, {{kIdle, Factor(0)}}}));
  EXPECT_EQ(ToString(Find(local, Opcode::kWhile)->results[1]), "f32[4]");
}

// Whatever the inside of loops was planned by: what was planned runs, and a plan read back decides
// nothing anew.
TEST(LowerSpmd, PlansReadBackLowerToTheSameProgram) {
  const Mesh mesh = *Mesh::Parse("4x2");
  int num_unlike = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const Module module = MakeRandomProgram(seed).module;
    const std::string usual = HloText(Lowered(module, RandomPlan(module, mesh, seed)));
    const Plan plan = RandomPlan(module, mesh, seed, {.called_prices = {.per_byte = 0.01}});
    const std::string other = HloText(Lowered(module, plan));
    const absl::StatusOr<Plan> again = PlanFromJson(PlanToJson(plan, module), module);
    ASSERT_TRUE(again.ok()) << Message(again.status());
    EXPECT_EQ(HloText(Lowered(module, *again)), other) << "seed " << seed;
    num_unlike += usual != other;
  }
  EXPECT_GT(num_unlike, 0) << "the price of moving never matters";
}

// What the plan lists is what runs: kind, type and bytes of every collective.
TEST(LowerSpmd, WritesExactlyTheCollectivesOfRandomPlans) {
  std::set<ReshardKind> joint;  // over several axes as one group
  for (uint64_t seed = 0; seed < 150; ++seed) {
    const RandomProgram program = MakeRandomProgram(seed);
    const char* const meshes[] = {"2x2x2", "4x2", "8", "2x4"};
    const Plan plan = RandomPlan(program.module, *Mesh::Parse(meshes[seed % 4]), seed);
    const Module local = Lowered(program.module, plan);
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
    std::map<CollectiveKey, int> planned;
    for (const PlannedCollective& collective : ListCollectives(program.module, plan.stage)) {
      ++planned[{collective.kind, collective.type, collective.bytes}];
    }
    EXPECT_EQ(WrittenCollectives(local), planned) << "seed " << seed;
    for (const Reshard& reshard : plan.stage.reshards) {
      for (const ReshardStep& step : reshard.steps) {
        if (step.axes.size() > 1) joint.insert(step.kind);
      }
    }
  }
  EXPECT_EQ(joint.size(), 6u) << "some kind of step is never taken over several axes";
}

}  // namespace
}  // namespace minka
