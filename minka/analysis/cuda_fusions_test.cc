#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/analysis/fusion_groups.h"
#include "minka/base/status.h"
#include "minka/ir/builder.h"

namespace minka {
namespace {

using ElementType::kF32, ElementType::kBF16;

class CudaFusionsTest : public testing::Test {
 protected:
  FusionPartition Partition() {
    auto module = std::move(builder_).Finish();
    EXPECT_TRUE(module.ok()) << Message(module.status());
    module_ = *std::move(module);
    return PartitionIntoFusions(module_.entry_computation(), {.platform = Platform::kCuda});
  }
  bool IsMaterialised(const FusionPartition& partition, Value value) const {
    return partition.IsMaterialised(UseTable(module_.entry_computation()), value);
  }

  ModuleBuilder builder_{"m"};
  ComputationBuilder b = builder_.Entry();
  Module module_;
};

TEST_F(CudaFusionsTest, AnExpensiveOperationOfTwoDotsOperandsIsWrittenAndOfTwoKernelsRepeated) {
  const Value x = b.Parameter({kF32, {64, 64}}, "x");
  const Value tanh = b.Unary(Opcode::kTanh, x);
  const Value exp = b.Unary(Opcode::kExponential, x);
  const DotAttributes dot = {.lhs_contracting = {1}, .rhs_contracting = {0}};
  b.SetResults({b.Dot(tanh, x, dot), b.Dot(x, tanh, dot), b.Unary(Opcode::kNegate, exp),
                b.Reduce(exp, b.Scalar(kF32, 0), {0}, Opcode::kAdd)});
  const FusionPartition partition = Partition();
  EXPECT_TRUE(IsMaterialised(partition, tanh));
  EXPECT_FALSE(IsMaterialised(partition, exp));
  EXPECT_TRUE(partition.repeated[exp.instruction]);
  EXPECT_EQ(partition.copies[exp.instruction].size(), 2);
}

// A sum of three arrays read by four kernels: 4 x 3 arrays read again, or 3 + 1 + 4.
TEST_F(CudaFusionsTest, WhatReadsMuchIsWrittenByTheKernelOfAReader) {
  const Value x = b.Parameter({kF32, {64, 64}}, "x");
  const Value y = b.Parameter({kF32, {64, 64}}, "y");
  const Value z = b.Parameter({kF32, {64, 64}}, "z");
  const Value sum = b.Select(b.Compare(CompareAttributes::Direction::kGt, z, y), x, y);
  std::vector<Value> results;
  for (const int64_t dim : {0, 1}) {
    results.push_back(b.Reduce(sum, b.Scalar(kF32, 0), {dim}, Opcode::kAdd));
  }
  results.push_back(b.Unary(Opcode::kNegate, sum));
  results.push_back(b.Unary(Opcode::kTanh, b.Transpose(sum, {1, 0})));
  b.SetResults(results);
  const FusionPartition partition = Partition();
  EXPECT_TRUE(IsMaterialised(partition, sum));
  EXPECT_FALSE(partition.repeated[sum.instruction]);
  EXPECT_NE(partition.group[sum.instruction], partition.group[x.instruction]);
  EXPECT_THAT(
      (std::vector{partition.group[results[0].instruction], partition.group[results[1].instruction],
                   partition.group[results[2].instruction],
                   partition.group[results[3].instruction]}),
      testing::Contains(partition.group[sum.instruction]));
}

// As an optimizer writes moments and weights.
TEST_F(CudaFusionsTest, AKernelHasSeveralResults) {
  const Value moment = b.Parameter({kF32, {64, 64}}, "moment");
  const Value gradient = b.Parameter({kF32, {64, 64}}, "gradient");
  const Value weight = b.Parameter({kF32, {64, 64}}, "weight");
  const Value new_moment = b.Binary(Opcode::kAdd, moment, gradient);
  const Value new_weight = b.Binary(Opcode::kSubtract, weight, new_moment);
  b.SetResults({new_moment, new_weight});
  const FusionPartition partition = Partition();
  EXPECT_EQ(partition.group[new_moment.instruction], partition.group[new_weight.instruction]);
  EXPECT_TRUE(IsMaterialised(partition, new_moment));
}

TEST_F(CudaFusionsTest, NormalisedRowsAreOneKernelAndLongRowsSeveral) {
  for (const int64_t columns : {1024, 51200}) {
    ModuleBuilder builder("softmax");
    ComputationBuilder entry = builder.Entry();
    const Value x = entry.Parameter({kBF16, {64, columns}}, "x");
    const Value wide = entry.Convert(x, kF32);
    const Value most = entry.Reduce(wide, entry.Scalar(kF32, 0), {1}, Opcode::kMaximum);
    const Value exp = entry.Unary(
        Opcode::kExponential,
        entry.Binary(Opcode::kSubtract, wide, entry.Broadcast(most, {64, columns}, {0})));
    const Value sum = entry.Reduce(exp, entry.Scalar(kF32, 0), {1}, Opcode::kAdd);
    const Value softmax = entry.Convert(
        entry.Binary(Opcode::kDivide, exp, entry.Broadcast(sum, {64, columns}, {0})), kBF16);
    entry.SetResults({softmax});
    const Module module = *std::move(builder).Finish();
    const FusionPartition partition =
        PartitionIntoFusions(module.entry_computation(), {.platform = Platform::kCuda});
    const bool is_one = partition.group[most.instruction] == partition.group[softmax.instruction] &&
                        partition.group[sum.instruction] == partition.group[softmax.instruction];
    EXPECT_EQ(is_one, columns == 1024);
    EXPECT_FALSE(partition.IsMaterialised(UseTable(module.entry_computation()), exp));
  }
}

TEST_F(CudaFusionsTest, ReductionsOfOneValueAreOneKernel) {
  const Value x = b.Parameter({kF32, {64, 64}}, "x");
  const Value sum = b.Reduce(x, b.Scalar(kF32, 0), {0}, Opcode::kAdd);
  const Value most = b.Reduce(x, b.Scalar(kF32, 0), {0}, Opcode::kMaximum);
  const Value of_rows = b.Reduce(x, b.Scalar(kF32, 0), {1}, Opcode::kAdd);
  b.SetResults({sum, most, of_rows});
  const FusionPartition partition = Partition();
  EXPECT_EQ(partition.group[sum.instruction], partition.group[most.instruction]);
  EXPECT_NE(partition.group[sum.instruction], partition.group[of_rows.instruction]);
}

TEST_F(CudaFusionsTest, ProgramsShareNoKernel) {
  const Value x = b.Parameter({kF32, {8, 8}}, "x");
  const Value tanh = b.Unary(Opcode::kTanh, x);
  b.SetPart({.program = 1});
  b.SetResults({b.Unary(Opcode::kNegate, tanh)});
  Partition();
  const FusionPartition apart = PartitionIntoFusions(
      module_.entry_computation(), {.platform = Platform::kCuda, .keeps_programs = true});
  EXPECT_TRUE(IsMaterialised(apart, tanh));
}

}  // namespace
}  // namespace minka
