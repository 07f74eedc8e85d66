#include "minka/lowering/stack_rows.h"

#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace minka {
namespace {

using ::testing::ElementsAre;

Literal Bytes(std::vector<int64_t> dims, std::string bytes) {
  return {{ElementType::kS8, std::move(dims)},
          std::make_shared<const std::string>(std::move(bytes))};
}

TEST(RowsOf, PutTogetherAreTheArray) {
  const Literal whole = Bytes({3, 2}, "abcdef");
  const std::vector<Literal> rows = RowsOf(whole);
  ASSERT_EQ(rows.size(), 3);
  EXPECT_EQ(rows[1].shape, (Shape{ElementType::kS8, {1, 2}}));
  EXPECT_EQ(*rows[1].bytes, "cd");
  EXPECT_EQ(Stacked(rows).shape, whole.shape);
  EXPECT_EQ(*Stacked(rows).bytes, *whole.bytes);
}

TEST(RowsOf, AVectorHasRowsOfOneElement) {
  const std::vector<Literal> rows = RowsOf(Bytes({2}, "ab"));
  ASSERT_EQ(rows.size(), 2);
  EXPECT_EQ(rows[1].shape, (Shape{ElementType::kS8, {1}}));
  EXPECT_EQ(*rows[1].bytes, "b");
}

TEST(InRows, SplitsWhatHasRowsAndPutTogetherIsTheOtherWay) {
  const RowNumbers rows = {{0}, {1, 2}, {3}};
  const std::vector<Literal> values = {Bytes({2}, "ab"), Bytes({2, 1}, "cd"), Bytes({}, "e")};
  const std::vector<Literal> in_rows = InRows(values, rows);
  ASSERT_EQ(in_rows.size(), 4);
  EXPECT_EQ(*in_rows[0].bytes, "ab");
  EXPECT_EQ(*in_rows[2].bytes, "d");
  EXPECT_EQ(in_rows[2].shape, (Shape{ElementType::kS8, {1, 1}}));
  const std::vector<Literal> together = PutTogether(in_rows, rows);
  ASSERT_EQ(together.size(), values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(together[i].shape, values[i].shape);
    EXPECT_EQ(*together[i].bytes, *values[i].bytes);
  }
}

TEST(InRows, WhatHasNoBytesHasRowsWithoutBytes) {
  const std::vector<Literal> in_rows = InRows({Literal(), Bytes({}, "a")}, {{0, 1, 2}, {3}});
  ASSERT_EQ(in_rows.size(), 4);
  EXPECT_FALSE(in_rows[2].bytes);
  EXPECT_TRUE(in_rows[3].bytes);
}

TEST(WholeRows, EveryParameterAndResultIsOne) {
  const StepRows rows = WholeRows({.parameters = {{}, {}}, .results = {{}}});
  EXPECT_THAT(rows.parameters, ElementsAre(ElementsAre(0), ElementsAre(1)));
  EXPECT_THAT(rows.results, ElementsAre(ElementsAre(0)));
}

}  // namespace
}  // namespace minka
