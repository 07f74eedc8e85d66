#include "minka/analysis/fusion_groups.h"

#include <algorithm>
#include <filesystem>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/base/file.h"
#include "minka/base/status.h"
#include "minka/ir/builder.h"
#include "minka/ir/hlo_proto.h"
#include "minka/ir/simplify.h"

namespace minka {
namespace {

using ::testing::ElementsAre;

using ElementType::kF32;

class FusionGroupsTest : public testing::Test {
 protected:
  FusionPartition Partition(FusionRules rules = {}) {
    auto module = std::move(builder_).Finish();
    EXPECT_TRUE(module.ok()) << Message(module.status());
    module_ = *std::move(module);
    return PartitionIntoFusions(module_.entry_computation(), rules);
  }
  bool IsMaterialised(const FusionPartition& partition, Value value) const {
    return partition.IsMaterialised(UseTable(module_.entry_computation()), value);
  }

  ModuleBuilder builder_{"m"};
  ComputationBuilder b = builder_.Entry();
  Module module_;
};

TEST_F(FusionGroupsTest, ElementwiseChainsJoinTheirConsumer) {
  const Value x = b.Parameter({kF32, {8, 8}}, "x");
  const Value scaled = b.Binary(Opcode::kMultiply, x, b.FullLike(x, 2));  // constant, broadcast
  const Value tanh = b.Unary(Opcode::kTanh, scaled);
  b.SetResults({tanh});
  const FusionPartition partition = Partition();
  EXPECT_THAT(partition.group, ElementsAre(0, 1, 1, 1, 1));
  EXPECT_EQ(partition.num_groups, 2);
  EXPECT_FALSE(IsMaterialised(partition, scaled));
  EXPECT_TRUE(IsMaterialised(partition, tanh));
}

TEST_F(FusionGroupsTest, WhatAnotherProgramReadsIsWritten) {
  const Value x = b.Parameter({kF32, {8, 8}}, "x");
  const Value tanh = b.Unary(Opcode::kTanh, x);
  b.SetPart({.program = 1});
  const Value negated = b.Unary(Opcode::kNegate, tanh);
  b.SetPart({.loop = LoopRole::kBody, .program = 1});
  b.SetResults({b.Unary(Opcode::kSqrt, negated)});
  const FusionPartition together = Partition();
  EXPECT_THAT(together.group, ElementsAre(0, 1, 1, 1));
  const FusionPartition apart =
      PartitionIntoFusions(module_.entry_computation(), {.keeps_programs = true});
  EXPECT_THAT(apart.group, ElementsAre(0, 1, 2, 3));
  EXPECT_TRUE(IsMaterialised(apart, tanh));
  EXPECT_TRUE(IsMaterialised(apart, negated));
}

TEST_F(FusionGroupsTest, DotsStandAloneAndTheirInputsAreWritten) {
  const Value x = b.Parameter({kF32, {8, 8}}, "x");
  const Value tanh = b.Unary(Opcode::kTanh, x);
  const Value dot = b.Dot(tanh, x, {{1}, {0}});
  const Value out = b.Unary(Opcode::kNegate, dot);
  b.SetResults({out});
  const FusionPartition partition = Partition();
  EXPECT_THAT(partition.group, ElementsAre(0, 1, 2, 3));
  EXPECT_TRUE(IsMaterialised(partition, tanh));
  EXPECT_TRUE(IsMaterialised(partition, dot));
}

TEST_F(FusionGroupsTest, ReduceTakesInElementwiseButNotTransposes) {
  const Value x = b.Parameter({kF32, {8, 8}}, "x");                                   // 0
  const Value square = b.Binary(Opcode::kMultiply, x, x);                             // 1
  const Value zero = b.Scalar(kF32, 0);                                               // 2
  const Value sum = b.Reduce(square, zero, {1}, Opcode::kAdd);                        // 3
  const Value sum_moved = b.Reduce(b.Transpose(x, {1, 0}), zero, {1}, Opcode::kAdd);  // 4, 5
  b.SetResults({sum, sum_moved});
  const FusionPartition partition = Partition();
  EXPECT_THAT(partition.group, ElementsAre(0, 1, 1, 1, 2, 3));
  EXPECT_TRUE(partition.repeated[zero.instruction]);
}

// softmax: the exponential is read by the sum and the division, and is too expensive to repeat;
// the maximum's broadcast is repeated nowhere because all its reading is in one place.
TEST_F(FusionGroupsTest, ExpensiveSharedValuesAreWrittenCheapOnesRepeated) {
  const Value x = b.Parameter({kF32, {8, 64}}, "x");
  const Value exponential = b.Unary(Opcode::kExponential, x);
  const Value sum = b.Reduce(exponential, b.Scalar(kF32, 0), {1}, Opcode::kAdd);
  const Value wide = b.Broadcast(sum, {8, 64}, {0});
  const Value out = b.Binary(Opcode::kDivide, exponential, wide);
  const Value negated = b.Unary(Opcode::kNegate, x);  // cheap: repeated in both readers
  const Value first = b.Dot(b.Unary(Opcode::kTanh, negated), x, {{0}, {0}});
  const Value second = b.Dot(b.Unary(Opcode::kSine, negated), x, {{0}, {0}});
  b.SetResults({out, first, second});
  const FusionPartition partition = Partition();
  EXPECT_TRUE(IsMaterialised(partition, exponential));
  EXPECT_TRUE(IsMaterialised(partition, sum));  // read through a broadcast
  EXPECT_FALSE(IsMaterialised(partition, wide));
  EXPECT_EQ(partition.group[wide.instruction], partition.group[out.instruction]);
  EXPECT_TRUE(partition.repeated[negated.instruction]);
  EXPECT_FALSE(IsMaterialised(partition, negated));
}

TEST_F(FusionGroupsTest, ValuesWithOneReaderThatTakesNothingInAreWritten) {
  const Value x = b.Parameter({kF32, {8, 8}}, "x");
  const Value sum = b.Binary(Opcode::kAdd, x, x);
  b.SetResults({b.Dot(sum, x, {{0}, {0}}), b.Unary(Opcode::kTanh, sum)});
  const FusionPartition partition = Partition();
  EXPECT_TRUE(IsMaterialised(partition, sum));
  EXPECT_THAT(partition.group, ElementsAre(0, 1, 2, 3));
}

TEST_F(FusionGroupsTest, WhatSomeReadersDoNotTakeInIsRepeatedByTheOthersIfWanted) {
  const Value x = b.Parameter({kF32, {8, 8}}, "x");
  const Value y = b.Parameter({kF32, {8, 8}}, "y");
  const Value negated = b.Unary(Opcode::kNegate, x);  // reads as much as it writes
  const Value sum = b.Binary(Opcode::kAdd, x, y);     // reads twice as much
  const Value root = b.Unary(Opcode::kTanh, x);       // expensive
  const Value dot = b.Dot(negated, b.Dot(sum, root, {{1}, {0}}), {{1}, {0}});
  b.SetResults({b.Binary(Opcode::kAdd, b.Binary(Opcode::kMultiply, dot, negated),
                         b.Binary(Opcode::kMultiply, sum, root))});
  const FusionPartition wanted = Partition({.repeats_for_some = true});
  for (const Value value : {negated, sum, root}) {
    EXPECT_FALSE(wanted.repeated[value.instruction]);
    EXPECT_EQ(wanted.also_repeated[value.instruction], value == negated);
  }
  EXPECT_EQ(
      std::ranges::count(PartitionIntoFusions(module_.entry_computation()).also_repeated, true), 0);
}

TEST_F(FusionGroupsTest, AReshapeInFrontOfADotIsAViewOfItsOperand) {
  const Value x = b.Parameter({kF32, {4, 2, 8}}, "x");
  const Value tanh = b.Unary(Opcode::kTanh, x);
  const Value flat = b.Reshape(tanh, {8, 8});
  const Value dot = b.Dot(flat, flat, {{1}, {0}});
  const Value view = b.Reshape(dot, {64});
  const Value result = b.Dot(view, view, {{0}, {0}});
  b.SetResults({result});
  const FusionPartition partition = Partition();
  EXPECT_THAT(partition.group, ElementsAre(0, 1, 1, 2, 2, 3));
}

TEST_F(FusionGroupsTest, ResultsDoNotVanishIntoTheirReaders) {
  const Value x = b.Parameter({kF32, {8}}, "x");
  const Value a = b.Unary(Opcode::kNegate, x);
  b.SetResults({a, b.Unary(Opcode::kTanh, a)});
  const FusionPartition partition = Partition();
  EXPECT_THAT(partition.group, ElementsAre(0, 1, 2));
  EXPECT_TRUE(IsMaterialised(partition, a));
}

struct Reference {
  std::string module;
  int num_fusions;  // in the entry computation of XLA:CPU's optimised module (jaxlib 0.8.1)
};

// Groups that compute something, other than dots, gathers, scatters, loops and barriers alone.
int NumFusions(const Computation& computation) {
  const FusionPartition partition = PartitionIntoFusions(computation);
  std::vector<int> is_fusion(partition.num_groups);  // 0: only views and repeated values
  for (InstructionId id = 0; id < computation.num_instructions(); ++id) {
    const Instruction& instruction = computation.instructions[id];
    if (partition.repeated[id] || instruction.opcode == Opcode::kReshape) continue;
    int& kind = is_fusion[partition.group[id]];
    const bool joins =
        IsElementwise(instruction.opcode) || instruction.opcode == Opcode::kReduce ||
        (Family(instruction.opcode) == OpFamily::kData && instruction.opcode != Opcode::kGather &&
         instruction.opcode != Opcode::kScatter);
    kind = kind == -1 || !joins ? -1 : 1;
  }
  return static_cast<int>(std::ranges::count(is_fusion, 1));
}

TEST(FusionGroupsReference, NumbersOfFusionsAreNearThoseOfXla) {
  const std::filesystem::path root =
      std::filesystem::path(MINKA_TESTDATA).parent_path().parent_path().parent_path();
  const std::filesystem::path modules = root / "tests" / "testdata" / "jax";
  for (const Reference& reference : std::vector<Reference>{{"small_mlp_sgd", 12},
                                                           {"small_mlp_adam_remat", 39},
                                                           {"mlp_batch32_hidden256", 56},
                                                           {"bert_layers_batch8_hidden128", 236},
                                                           {"bert_mlm_batch32_hidden16", 289},
                                                           {"small_gpt_adamw", 299}}) {
    auto bytes = ReadFile((modules / (reference.module + ".pb")).string());
    ASSERT_TRUE(bytes.ok()) << Message(bytes.status());
    auto module = ImportHlo(*bytes);
    ASSERT_TRUE(module.ok()) << Message(module.status());
    const Module simplified =
        EliminateDeadCode(EliminateCommonSubexpressions(InlineCalls(*module)));
    const int num_fusions = NumFusions(simplified.entry_computation());
    EXPECT_NEAR(num_fusions, reference.num_fusions, 0.12 * reference.num_fusions)
        << reference.module;
  }
}

}  // namespace
}  // namespace minka
