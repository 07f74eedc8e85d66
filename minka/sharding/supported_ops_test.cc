#include "minka/sharding/supported_ops.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

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
  EXPECT_THAT(
      text, HasSubstr("| `slice`, `reverse`, `fft` | `[dim 0,whole] -> [dim 0,whole]` | 0 |  |\n"));
  EXPECT_THAT(text, HasSubstr("indices shifted and masked"));
}

TEST(SupportedOperations, TheDocumentIsUpToDate) {
  const std::filesystem::path testdata(MINKA_TESTDATA);
  std::ifstream file(testdata.parent_path().parent_path().parent_path() / "docs/operations.md");
  const std::string document{std::istreambuf_iterator<char>(file), {}};
  EXPECT_EQ(document, SupportedOperationsMarkdown())
      << "write it again: build/minka operations > docs/operations.md";
}

TEST(SupportedOperations, OperationsWithoutRuleAreNamed) {
  const std::string text = SupportedOperationsMarkdown();
  const std::string without = text.substr(text.find("Without a rule"));
  EXPECT_THAT(without, HasSubstr("`custom-call`"));
  EXPECT_THAT(without, Not(HasSubstr("`dot`")));
}

}  // namespace
}  // namespace minka
