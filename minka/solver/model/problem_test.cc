#include "minka/solver/model/problem.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "minka/base/status.h"

namespace minka {
namespace {

SolverProblem Pair() {
  SolverProblem problem;
  problem.AddNode(std::vector<int64_t>{1, 2}, "kernel");
  problem.AddNode(std::vector<int64_t>{1, 2, 3});
  return problem;
}

TEST(ProblemTest, EqualContentIsStoredOnce) {
  SolverProblem problem;
  const std::vector<int64_t> cells = {1, 2, 3, 4, 5, 6};
  EXPECT_EQ(problem.AddTable(2, 3, cells), problem.AddTable(2, 3, cells));
  EXPECT_NE(problem.AddTable(2, 3, cells), problem.AddTable(3, 2, cells));
  EXPECT_EQ(problem.AddUsageRow(cells), problem.AddUsageRow(cells));
  EXPECT_EQ(problem.table(1).at(2, 1), 6);
}

TEST(ProblemTest, CostsAreAddedToOneNodeAlone) {
  SolverProblem problem;
  problem.AddNode(std::vector<int64_t>{1, kForbidden, 3});
  problem.AddNode(std::vector<int64_t>{1, kForbidden, 3});
  problem.AddCosts(1, std::vector<int64_t>{10, 10, kForbidden});
  EXPECT_THAT(problem.costs(0), testing::ElementsAre(1, kForbidden, 3));
  EXPECT_THAT(problem.costs(1), testing::ElementsAre(11, kForbidden, kForbidden));
}

TEST(ProblemTest, EveryUnsoundPartIsNamed) {
  const std::vector<int64_t> two = {0, 0};
  const std::vector<int64_t> six(6, 0);
  {
    SolverProblem problem = Pair();
    problem.AddEdge({0, 5, problem.AddTable(2, 3, six)});
    EXPECT_EQ(Message(problem.Check()), "edge 0 joins node 5, but there are 2 nodes");
  }
  {
    SolverProblem problem = Pair();
    problem.AddEdge({0, 0, problem.AddTable(2, 3, six)});
    EXPECT_EQ(Message(problem.Check()), "edge 0 joins kernel to itself");
  }
  {
    SolverProblem problem = Pair();
    problem.AddEdge({1, 0, problem.AddTable(2, 3, six)});
    EXPECT_EQ(Message(problem.Check()),
              "edge 0's table is 2 x 3, but node 1 has 3 choices and kernel has 2");
  }
  {
    SolverProblem problem = Pair();
    problem.AddTable(2, 2, six);
    EXPECT_EQ(Message(problem.Check()), "table 0 has 6 cells, not 2 x 2");
  }
  {
    SolverProblem problem = Pair();
    problem.AddUsage(1, {0, 1}, problem.AddUsageRow(two));
    EXPECT_EQ(Message(problem.Check()), "a usage of node 1 has 2 entries for 3 choices");
  }
  {
    SolverProblem problem;
    problem.AddNode(std::vector<int64_t>{-1});
    EXPECT_EQ(Message(problem.Check()), "node 0 has a negative cost");
  }
  {
    SolverProblem problem;
    problem.AddNode(std::vector<int64_t>{});
    EXPECT_EQ(Message(problem.Check()), "node 0 has no choices");
  }
  {
    SolverProblem problem = Pair();
    problem.SetMultiplicity(0, 0);
    EXPECT_EQ(Message(problem.Check()), "kernel has multiplicity 0; it must be at least 1");
  }
  {
    SolverProblem problem;
    problem.AddNode(std::vector<int64_t>{int64_t{1} << 62});
    EXPECT_EQ(Message(problem.Check()),
              "costs are too large: their largest sum does not fit 58 bits; use a coarser unit");
  }
}

}  // namespace
}  // namespace minka
