#include "minka/sharding/supported_ops.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace minka {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(SupportedOperations, RowsShowDimensionsPartialOperandsAndRemarks) {
  const std::string text = SupportedOperationsMarkdown();
  EXPECT_THAT(text,
              HasSubstr("| `dot` | `[batch,row,contraction] [batch,contraction,column] -> "
                        "[batch,row,column]` | 0, or 1 | contraction: leaves a sum owed |\n"));
  EXPECT_THAT(text, HasSubstr("| `add`, `complex`, `subtract` |"));
  EXPECT_THAT(text,
              HasSubstr("| `slice`, `reverse` | `[dim 0,whole] -> [dim 0,whole]` | 0 |  |\n"));
  EXPECT_THAT(text, HasSubstr("indices shifted and masked"));
}

TEST(SupportedOperations, OperationsWithoutRuleAreNamed) {
  const std::string text = SupportedOperationsMarkdown();
  const std::string without = text.substr(text.find("Without a rule"));
  EXPECT_THAT(without, HasSubstr("`custom-call`"));
  EXPECT_THAT(without, Not(HasSubstr("`dot`")));
}

}  // namespace
}  // namespace minka
