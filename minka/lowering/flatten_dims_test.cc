#include "minka/lowering/flatten_dims.h"

#include <vector>

#include "gtest/gtest.h"
#include "minka/ir/builder.h"
#include "minka/ir/verifier.h"

namespace minka {
namespace {

using Dims = std::vector<int64_t>;

// A program of one reduction, flattened.
Module Flattened(const Dims& dims, const Dims& reduced) {
  ModuleBuilder module("m");
  ComputationBuilder b = module.Entry();
  const Value x = b.Parameter({ElementType::kF32, dims}, "x");
  b.SetResults({b.Reduce(x, b.Scalar(ElementType::kF32, 0), reduced, Opcode::kAdd)});
  Module flattened = FlattenDims(*std::move(module).Finish(), Departures::Of(Platform::kCpu));
  EXPECT_TRUE(Verify(flattened).ok()) << Verify(flattened);
  return flattened;
}

TEST(FlattenDims, OneDimensionInsteadOfSeveral) {
  const Module module = Flattened({4, 3, 2, 6}, {1, 0, 2});
  const Computation& entry = module.entry_computation();
  ASSERT_EQ(entry.num_instructions(), 5);
  EXPECT_EQ(entry.instructions[2].shape().dims, (Dims{24, 2, 3}));
  EXPECT_EQ(entry.instructions[3].As<DimensionsAttributes>().dims, Dims{0});
  EXPECT_EQ(entry.shape(entry.results[0]).dims, Dims{6});
}

TEST(FlattenDims, DimensionsAroundStay) {
  const Module module = Flattened({5, 3, 2, 4, 6}, {1, 2});
  const Computation& entry = module.entry_computation();
  ASSERT_EQ(entry.num_instructions(), 5);
  EXPECT_EQ(entry.instructions[2].shape().dims, (Dims{5, 6, 4, 2, 3}));
  EXPECT_EQ(entry.instructions[3].As<DimensionsAttributes>().dims, Dims{1});
  EXPECT_EQ(entry.shape(entry.results[0]).dims, (Dims{5, 4, 6}));
}

TEST(FlattenDims, LeavesOthersAlone) {
  const struct {
    const char* what;
    Dims dims, reduced;
  } cases[] = {{"one dimension", {4, 6}, {0}},
               {"the last dimensions", {4, 3, 6}, {1, 2}},
               {"dimensions apart", {4, 3, 2, 6}, {0, 2}},
               {"an odd last dimension", {4, 3, 5}, {0, 1}},
               {"nothing to reduce", {0, 3, 6}, {0, 1}}};
  for (const auto& c : cases) {
    EXPECT_EQ(Flattened(c.dims, c.reduced).entry_computation().num_instructions(), 3) << c.what;
  }
}

Module FlattenedDot(const Dims& lhs, const Dims& rhs, const DotAttributes& dot) {
  ModuleBuilder module("m");
  ComputationBuilder b = module.Entry();
  const Value x = b.Parameter({ElementType::kF32, lhs}, "x");
  const Value y = b.Parameter({ElementType::kF32, rhs}, "y");
  b.SetResults({b.Dot(x, y, dot)});
  Module flattened = FlattenDims(*std::move(module).Finish(), Departures::Of(Platform::kCpu));
  EXPECT_TRUE(Verify(flattened).ok()) << Verify(flattened);
  return flattened;
}

TEST(FlattenDims, WeightGradientsReadMatrices) {
  const Module module =
      FlattenedDot({4, 3, 6}, {4, 3, 2, 5}, {.lhs_contracting = {0, 1}, .rhs_contracting = {0, 1}});
  const Computation& entry = module.entry_computation();
  ASSERT_EQ(entry.num_instructions(), 6);
  EXPECT_EQ(entry.instructions[2].shape().dims, (Dims{12, 6}));
  EXPECT_EQ(entry.instructions[3].shape().dims, (Dims{12, 10}));
  EXPECT_EQ(entry.instructions[4].shape().dims, (Dims{6, 10}));
  EXPECT_EQ(entry.shape(entry.results[0]).dims, (Dims{6, 2, 5}));
}

TEST(FlattenDims, BatchesOfMatricesStayBatches) {
  const Module module = FlattenedDot(
      {7, 4, 3, 6}, {7, 5, 6},
      {.lhs_contracting = {3}, .rhs_contracting = {2}, .lhs_batch = {0}, .rhs_batch = {0}});
  const Computation& entry = module.entry_computation();
  ASSERT_EQ(entry.num_instructions(), 5);
  EXPECT_EQ(entry.instructions[2].shape().dims, (Dims{7, 12, 6}));
  EXPECT_EQ(entry.instructions[3].As<DotAttributes>().rhs_contracting, Dims{2});
  EXPECT_EQ(entry.shape(entry.results[0]).dims, (Dims{7, 4, 3, 5}));
}

TEST(FlattenDims, FewRowsTimesColumnsAreExchanged) {
  const Module module =
      FlattenedDot({2, 3, 16}, {40, 16}, {.lhs_contracting = {2}, .rhs_contracting = {1}});
  const Computation& entry = module.entry_computation();
  ASSERT_EQ(entry.num_instructions(), 7);
  const Instruction& dot = entry.instructions[3];
  EXPECT_EQ(dot.operands[0], (Value{1, 0}));
  EXPECT_EQ(dot.shape().dims, (Dims{40, 6}));
  EXPECT_EQ(entry.instructions[4].opcode, Opcode::kOptBarrier);
  EXPECT_EQ(entry.instructions[5].shape().dims, (Dims{6, 40}));
  EXPECT_EQ(entry.shape(entry.results[0]).dims, (Dims{2, 3, 40}));
}

TEST(FlattenDims, LeavesMatricesAndWhatIsNoneAlone) {
  EXPECT_EQ(FlattenedDot({4, 6}, {6, 5}, {.lhs_contracting = {1}, .rhs_contracting = {0}})
                .entry_computation()
                .num_instructions(),
            3);
  EXPECT_EQ(
      FlattenedDot({4, 3, 6}, {4, 2, 6, 5}, {.lhs_contracting = {0, 2}, .rhs_contracting = {0, 2}})
          .entry_computation()
          .num_instructions(),
      3);
}

}  // namespace
}  // namespace minka
