#include <cstdlib>
#include <filesystem>

#include "benchmarks/support/run_apart.h"
#include "benchmarks/support/table.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/base/file.h"
#include "minka/base/status.h"

namespace minka {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::vector<Criterion> kCriteria = {
    {.field = "ratio", .relative = 0.1},
    {.field = "bound", .relative = 0.1, .absolute = 1, .is_better_large = true}};

// A row "a" with these numbers.
Rows OneRow(double ratio, double bound) {
  return Rows::array({{{"name", "a"}, {"ratio", ratio}, {"bound", bound}}});
}

TEST(WorseNumbersTest, WithinTheToleranceNothingIsReported) {
  EXPECT_THAT(WorseNumbers(OneRow(1.09, 8.1), OneRow(1, 10), kCriteria), IsEmpty());
  EXPECT_THAT(WorseNumbers(OneRow(0.1, 100), OneRow(1, 10), kCriteria), IsEmpty());
}

TEST(WorseNumbersTest, EachWorseNumberIsNamedWithBothValues) {
  EXPECT_THAT(WorseNumbers(OneRow(1.2, 7.5), OneRow(1, 10), kCriteria),
              ElementsAre("a: ratio 1.2, committed 1", "a: bound 7.5, committed 10"));
}

TEST(WorseNumbersTest, ANumberThatIsGoneIsWorse) {
  const Rows rows = Rows::array({{{"name", "a"}, {"ratio", nullptr}}});
  EXPECT_THAT(WorseNumbers(rows, OneRow(1, 10), kCriteria),
              ElementsAre("a: no ratio, committed 1"));
}

TEST(WorseNumbersTest, WhatOneSideLacksIsNotCompared) {
  const Rows rows = Rows::array({{{"name", "b"}, {"ratio", 9}}, {{"name", "a"}, {"bound", 0}}});
  const Rows committed = Rows::array({{{"name", "a"}, {"ratio", 1}}});
  EXPECT_THAT(WorseNumbers(rows, committed, kCriteria), IsEmpty());
}

TEST(MergeRowsTest, RowsAreReplacedByNameAndNewOnesComeLast) {
  const Rows committed = Rows::array({{{"name", "a"}, {"x", 1}}, {{"name", "b"}, {"x", 2}}});
  const Rows rows = Rows::array({{{"name", "c"}, {"x", 3}}, {{"name", "a"}, {"x", 4}}});
  EXPECT_EQ(MergeRows(committed, rows).dump(),
            R"([{"name":"a","x":4},{"name":"b","x":2},{"name":"c","x":3}])");
}

class MakeTableTest : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(options_.folder); }
  void TearDown() override { std::filesystem::remove_all(options_.folder); }

  static Benchmark Measuring(const Rows& rows, absl::Status status = absl::OkStatus()) {
    return {.criteria = kCriteria,
            .measure =
                [rows, status](const auto& add) {
                  for (const Rows& row : rows) add(row);
                  return status;
                },
            .page = [](const Rows& all) { return std::to_string(all.size()) + " rows\n"; }};
  }

  TableOptions options_{.folder = ::testing::TempDir() +
                                  ::testing::UnitTest::GetInstance()->current_test_info()->name()};
};

TEST_F(MakeTableTest, WhatIsWorseThanTheCommittedTableFails) {
  options_.update = true;
  ASSERT_TRUE(MakeTable(Measuring(OneRow(1, 10)), options_).ok());
  options_.update = false;
  EXPECT_TRUE(MakeTable(Measuring(OneRow(2, 10)), options_).ok());  // not asked to compare
  options_.compare = true;
  EXPECT_TRUE(MakeTable(Measuring(OneRow(1, 10)), options_).ok());
  EXPECT_EQ(Message(MakeTable(Measuring(OneRow(2, 10)), options_)),
            "worse than " + options_.folder + "/results.json:\n  a: ratio 2, committed 1");
}

TEST_F(MakeTableTest, UpdateKeepsWhatWasNotMeasuredAndSaysTheTolerances) {
  options_.update = true;
  ASSERT_TRUE(MakeTable(Measuring(OneRow(1, 10)), options_).ok());
  const Rows other = Rows::array({{{"name", "b"}, {"ratio", 2}}});
  EXPECT_EQ(Message(MakeTable(Measuring(other, InternalError("c died")), options_)), "c died");
  const auto text = ReadFile(options_.folder + "/results.json");
  ASSERT_TRUE(text.ok());
  EXPECT_EQ(*text,
            "{\"worse_if\": [\"ratio larger by more than 10 %\", "
            "\"bound smaller by more than 10 % and 1\"],\n"
            "\"rows\": [\n"
            " {\"name\":\"a\",\"ratio\":1.0,\"bound\":10.0},\n"
            " {\"name\":\"b\",\"ratio\":2}\n"
            "]}\n");
  const auto page = ReadFile(options_.folder + "/results.md");
  ASSERT_TRUE(page.ok());
  EXPECT_EQ(*page, "2 rows\n");
}

TEST_F(MakeTableTest, RowsOfAFileAreComparedWithoutMeasuring) {
  options_.update = true;
  ASSERT_TRUE(MakeTable(Measuring(OneRow(1, 10)), options_).ok());
  options_ = {.folder = options_.folder, .json = options_.folder + "/new.json"};
  ASSERT_TRUE(MakeTable(Measuring(OneRow(3, 10)), options_).ok());
  options_ = {.folder = options_.folder, .rows = options_.json, .compare = true};
  EXPECT_THAT(Message(MakeTable(Measuring(OneRow(1, 10)), options_)),
              HasSubstr("ratio 3, committed 1"));
}

TEST(RunApartTest, GivesWhatTheOtherProcessReturns) {
  const std::string large(1 << 20, 'x');  // more than a pipe holds
  const auto result =
      RunApart("a", [&]() -> absl::StatusOr<Rows> { return Rows{{"text", large}}; });
  ASSERT_TRUE(result.ok());
  EXPECT_EQ((*result)["text"], large);
}

TEST(RunApartTest, ErrorsAndDeathsAreNamed) {
  const auto error =
      RunApart("a", []() -> absl::StatusOr<Rows> { return NotFound("no {}", "module"); });
  EXPECT_EQ(Message(error.status()), "a: no module");
  const auto death = RunApart("a", []() -> absl::StatusOr<Rows> { std::_Exit(3); });
  EXPECT_EQ(Message(death.status()), "a: the process died");
}

}  // namespace
}  // namespace minka
