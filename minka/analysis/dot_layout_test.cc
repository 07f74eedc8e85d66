#include "minka/analysis/dot_layout.h"

#include "gtest/gtest.h"

namespace minka {
namespace {

TEST(DotLayout, Matrices) {
  const DotLayout product = LayoutOf({.lhs_contracting = {1}, .rhs_contracting = {0}}, 2, 2);
  EXPECT_TRUE(product.lhs.is_matrix && product.rhs.is_matrix);
  EXPECT_TRUE(product.lhs.contracts_last);
  EXPECT_FALSE(product.rhs.contracts_last);
}

TEST(DotLayout, SeveralDimensionsSideBySideAreOne) {
  // [examples, positions, inputs] and [examples, positions, heads, outputs] to [inputs, heads,
  // ...].
  const DotLayout gradient = LayoutOf({.lhs_contracting = {1, 0}, .rhs_contracting = {1, 0}}, 3, 4);
  EXPECT_TRUE(gradient.lhs.is_matrix && gradient.rhs.is_matrix);
  EXPECT_FALSE(gradient.lhs.contracts_last || gradient.rhs.contracts_last);
}

TEST(DotLayout, DimensionsApartOrInAnotherOrderAreNone) {
  EXPECT_FALSE(
      LayoutOf({.lhs_contracting = {0, 2}, .rhs_contracting = {0, 1}}, 3, 3).lhs.is_matrix);
  EXPECT_FALSE(
      LayoutOf({.lhs_contracting = {0, 1}, .rhs_contracting = {1, 0}}, 3, 3).rhs.is_matrix);
  // Attention: the batch is examples and heads, with positions between them.
  const DotLayout scores = LayoutOf(
      {.lhs_contracting = {3}, .rhs_contracting = {3}, .lhs_batch = {0, 2}, .rhs_batch = {0, 2}}, 4,
      4);
  EXPECT_FALSE(scores.lhs.is_matrix || scores.rhs.is_matrix);
}

}  // namespace
}  // namespace minka
