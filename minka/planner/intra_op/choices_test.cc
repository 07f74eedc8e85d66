#include "minka/planner/intra_op/choices.h"

#include <set>

#include "gtest/gtest.h"
#include "minka/ir/builder.h"

namespace minka {
namespace {

using ElementType::kF32;

// Two batch dimensions, rows, columns and a contraction: eight things that an axis can do.
Step BatchedDotStep() {
  ModuleBuilder module("batched_dot");
  ComputationBuilder b = module.Entry();
  const Value x = b.Parameter({kF32, {8, 8, 16, 32}}, "x");
  const Value y = b.Parameter({kF32, {8, 8, 32, 16}}, "y");
  b.SetResults({b.Dot(
      x, y,
      {.lhs_contracting = {3}, .rhs_contracting = {2}, .lhs_batch = {0, 1}, .rhs_batch = {0, 1}})});
  return {.module = *std::move(module).Finish(),
          .parameters = {{.name = "x"}, {.name = "y"}},
          .results = {{.name = "product"}}};
}

ChoiceTables ChoicesOn(const Step& step, const char* mesh, bool forbid_replicated_dots) {
  return *EnumerateChoices(step, *Mesh::Parse(mesh), forbid_replicated_dots, {});
}

const OpChoices& OfDot(const ChoiceTables& tables) {
  return tables.op_choices[tables.of_instruction.back()];
}

TEST(EnumerateChoices, KeepsWhatTheMeshesOfJoinedAxesCanDo) {
  struct Case {
    const char* coarse;
    std::vector<int> axis_of;  // the coarse axis that x, y and z make up
  };
  const Step step = BatchedDotStep();
  for (const bool forbid : {false, true}) {
    const ChoiceTables fine = ChoicesOn(step, "2x2x2", forbid);
    const std::set<Strategy> kept(OfDot(fine).strategies.begin(), OfDot(fine).strategies.end());
    EXPECT_LT(kept.size(), 8u * 8 * 8);
    for (const Case& c : {Case{"8", {0, 0, 0}}, Case{"2x4", {0, 1, 1}}, Case{"4x2", {0, 0, 1}}}) {
      const ChoiceTables coarse = ChoicesOn(step, c.coarse, forbid);
      EXPECT_TRUE(coarse.cut.empty());
      for (const Strategy& joined : OfDot(coarse).strategies) {
        Strategy apart;
        for (const int axis : c.axis_of) apart.axes.push_back(joined.axes[axis]);
        EXPECT_TRUE(kept.contains(apart))
            << c.coarse << ": " << ToString(joined, OfDot(coarse).rule, *Mesh::Parse(c.coarse));
      }
    }
  }
}

// A plain dot does seven things along an axis: four sides split, two operands partial, or nothing.
TEST(EnumerateChoices, KeepsWhatAxesApartDoTogetherWhereTheyAreFew) {
  ModuleBuilder module("dot");
  ComputationBuilder b = module.Entry();
  const Value x = b.Parameter({kF32, {8, 16, 32}}, "x"), w = b.Parameter({kF32, {32, 16}}, "w");
  b.SetResults({b.Dot(x, w, {.lhs_contracting = {2}, .rhs_contracting = {0}})});
  const Step step = {.module = *std::move(module).Finish(),
                     .parameters = {{.name = "x"}, {.name = "w"}},
                     .results = {{.name = "product"}}};
  const ChoiceTables fine = ChoicesOn(step, "2x2x2", false);
  const std::set<Strategy> kept(OfDot(fine).strategies.begin(), OfDot(fine).strategies.end());
  EXPECT_FALSE(fine.cut.empty());
  const ChoiceTables coarse = ChoicesOn(step, "4x2", false);
  EXPECT_EQ(OfDot(coarse).strategies.size(), 7u * 7);
  for (const Strategy& joined : OfDot(coarse).strategies) {
    EXPECT_TRUE(kept.contains({{joined.axes[0], joined.axes[1], joined.axes[0]}}))
        << ToString(joined, OfDot(coarse).rule, *Mesh::Parse("4x2"));
  }
}

TEST(EnumerateChoices, CountsWhatItCutsByOpcode) {
  const ChoiceTables tables = ChoicesOn(BatchedDotStep(), "2x2x2", false);
  ASSERT_EQ(tables.cut.size(), 1u);
  const auto& [opcode, cut] = *tables.cut.begin();
  EXPECT_EQ(opcode, "dot");
  EXPECT_EQ(cut.num_choices, 8 * 8 * 8);
  EXPECT_EQ(cut.num_choices - cut.num_cut, static_cast<int64_t>(OfDot(tables).strategies.size()));
}

}  // namespace
}  // namespace minka
