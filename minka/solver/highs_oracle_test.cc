#include "minka/solver/highs_oracle.h"

#include <gtest/gtest.h>

#include "minka/base/status.h"
#include "minka/solver/model/evaluate.h"
#include "minka/solver/model/random_problem.h"
#include "minka/solver/solve.h"

namespace minka {
namespace {

TEST(HighsOracleTest, ThousandSmallProblemsAgreeExactly) {
  Random random(101);
  int feasible = 0;
  int infeasible = 0;
  for (int i = 0; i < 1000; ++i) {
    const SolverProblem problem =
        MakeRandomProblem({.max_nodes = 9, .max_choices = 5, .with_limit = i % 4 != 0}, random);
    const OracleAnswer oracle = SolveWithHighs(problem, 60);
    ASSERT_TRUE(oracle.finished) << "problem " << i;
    const SolveResult result = *Solve(problem);
    if (!oracle.cost) {
      ++infeasible;
      EXPECT_EQ(result.status, SolveStatus::kInfeasible) << "problem " << i;
      continue;
    }
    ++feasible;
    EXPECT_EQ(result.status, SolveStatus::kOptimal) << "problem " << i;
    EXPECT_EQ(result.cost, *oracle.cost) << "problem " << i;
    EXPECT_EQ(result.lower_bound, *oracle.cost) << "problem " << i;
    EXPECT_EQ(Evaluate(problem, result.choice)->cost, result.cost);
  }
  EXPECT_GT(feasible, 500);
  EXPECT_GT(infeasible, 100);
}

TEST(HighsOracleTest, MediumProblemsLieBetweenBoundAndCost) {
  Random random(103);
  int compared = 0;
  for (int i = 0; compared < 200 && i < 1000; ++i) {
    const SolverProblem problem = MakeRandomProblem(
        {.max_nodes = 30, .max_choices = 6, .max_cost = 1000, .with_limit = i % 2 == 0}, random);
    const OracleAnswer oracle = SolveWithHighs(problem, 20);
    if (!oracle.cost) continue;
    ++compared;
    const SolveResult result = *Solve(problem, {.work_limit = 3'000'000});
    EXPECT_LE(result.lower_bound, *oracle.cost) << "problem " << i;
    EXPECT_TRUE(result.choice.empty() || result.cost >= *oracle.cost) << "problem " << i;
  }
  EXPECT_EQ(compared, 200);
}

}  // namespace
}  // namespace minka
