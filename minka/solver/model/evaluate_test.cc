#include "minka/solver/model/evaluate.h"

#include <gtest/gtest.h>

#include "minka/base/status.h"

namespace minka {
namespace {

// The contest's example: five nodes, optimum 445 under a limit of 50 bytes.
SolverProblem Example() {
  SolverProblem problem;
  const std::vector<std::vector<int64_t>> costs = {{15}, {55, 65}, {25, 45, 35}, {85, 75}, {95}};
  const std::vector<std::vector<int64_t>> bytes = {{10}, {25, 25}, {15, 20, 15}, {10, 10}, {15}};
  const std::vector<TimeInterval> intervals = {
      {30, 70}, {40, 70}, {50, 120}, {110, 140}, {110, 150}};
  for (int n = 0; n < 5; ++n) {
    problem.AddNode(costs[n]);
    problem.AddUsage(n, intervals[n], problem.AddUsageRow(bytes[n]));
  }
  const std::vector<std::vector<int64_t>> cells = {
      {30, 40}, {50, 10, 40}, {90, 10, 20, 80}, {60, 20, 30}, {70, 60}};
  const std::vector<std::pair<int, int>> ends = {{0, 1}, {0, 2}, {1, 3}, {2, 4}, {3, 4}};
  for (int e = 0; e < 5; ++e) {
    const auto [a, b] = ends[e];
    const TableId table =
        problem.AddTable(problem.num_choices(a), problem.num_choices(b), cells[e]);
    problem.AddEdge({a, b, table});
  }
  problem.set_usage_limit(50);
  return problem;
}

TEST(EvaluateTest, ContestExampleHasItsPublishedCosts) {
  const SolverProblem problem = Example();
  ASSERT_TRUE(problem.Check().ok());
  EXPECT_EQ(Evaluate(problem, std::vector<int32_t>{0, 0, 2, 1, 0})->cost, 445);
  EXPECT_EQ(Evaluate(problem, std::vector<int32_t>{0, 1, 2, 0, 0})->cost, 495);
  const Evaluation over = *Evaluate(problem, std::vector<int32_t>{0, 0, 1, 1, 0});
  EXPECT_EQ(over.cost, 415);
  EXPECT_EQ(over.peak_usage_bytes, 55);
  EXPECT_EQ(over.peak_time, 50);
  EXPECT_FALSE(over.within_limit);
}

TEST(EvaluateTest, WrongLengthAndIndexAreNamed) {
  const SolverProblem problem = Example();
  EXPECT_EQ(Message(Evaluate(problem, std::vector<int32_t>{0, 0}).status()),
            "the solution has 2 entries for 5 nodes");
  EXPECT_EQ(Message(Evaluate(problem, std::vector<int32_t>{0, 0, 3, 1, 0}).status()),
            "the solution gives node 2 choice 3, but it has 3 choices");
}

TEST(EvaluateTest, ForbiddenEntriesAreCountedApartAndMultiplicityScalesCost) {
  SolverProblem problem;
  problem.AddNode(std::vector<int64_t>{3, kForbidden});
  problem.AddNode(std::vector<int64_t>{1, 2});
  problem.SetMultiplicity(0, 10);
  // Transposed: rows are node 1's choices.
  const TableId table = problem.AddTable(2, 2, std::vector<int64_t>{5, 6, kForbidden, 7});
  problem.AddEdge({.a = 0, .b = 1, .table = table, .transposed = true, .multiplicity = 2});
  ASSERT_TRUE(problem.Check().ok());
  EXPECT_EQ(Evaluate(problem, std::vector<int32_t>{0, 0})->cost, 30 + 1 + 2 * 5);
  const Evaluation forbidden = *Evaluate(problem, std::vector<int32_t>{0, 1});
  EXPECT_EQ(forbidden.num_forbidden, 1);
  EXPECT_EQ(forbidden.cost, 32);
  EXPECT_EQ(Evaluate(problem, std::vector<int32_t>{1, 1})->num_forbidden, 1);
}

TEST(EvaluateTest, IntervalsAreHalfOpenAndEmptyOnesUseNothing) {
  SolverProblem problem;
  problem.AddNode(std::vector<int64_t>{0});
  const RowId row = problem.AddUsageRow(std::vector<int64_t>{8});
  problem.AddUsage(0, {0, 2}, row);
  problem.AddUsage(0, {2, 3}, row);
  problem.AddUsage(0, {7, 7}, row);
  problem.AddUsage(0, {9, 4}, row);
  problem.set_usage_limit(8);
  EXPECT_EQ(Evaluate(problem, std::vector<int32_t>{0})->peak_usage_bytes, 8);
  EXPECT_TRUE(Evaluate(problem, std::vector<int32_t>{0})->feasible());
}

}  // namespace
}  // namespace minka
