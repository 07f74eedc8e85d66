#include "minka/solver/improve/team.h"

#include <gtest/gtest.h>

#include "minka/solver/core_search.h"
#include "minka/solver/model/random_problem.h"
#include "minka/solver/reduce/reduce.h"
#include "minka/solver/solve.h"

namespace minka {
namespace {

bool Never() { return false; }

TEST(TeamTest, AnswersHoldAndRecordsAddUp) {
  Random random(41);
  for (int i = 0; i < 40; ++i) {
    const SolverProblem problem = MakeRandomProblem(
        {.max_nodes = 40, .max_choices = 6, .max_cost = 1000, .with_limit = i % 2 == 0}, random);
    const Reduction reduction = Reduce(problem);
    if (reduction.core.infeasible || reduction.core.num_nodes() == 0) continue;
    const CoreGraph graph(reduction.core);
    MessagePassing messages(graph);
    for (int sweep = 0; sweep < 10; ++sweep) messages.Sweep();
    Team team(graph, /*seed=*/i, /*left_out=*/{});
    const Known known = {.messages = messages,
                         .prices = messages.prices(),
                         .lower_bound = messages.Certify(),
                         .may_eliminate = true};
    for (int round = 0; round < 3; ++round) team.Run(known, 1'000'000, Never);
    if (!team.best()) continue;
    EXPECT_EQ(CoreCost(reduction.core, team.best()->choice), team.best()->cost) << i;
    EXPECT_TRUE(FitsLimit(reduction.core, team.best()->choice)) << i;
    int64_t work = 0, num_gains = 0;
    for (int way = 0; way < kNumWays; ++way) {
      work += team.records()[static_cast<Way>(way)].work;
      num_gains += team.records()[static_cast<Way>(way)].num_gains;
    }
    EXPECT_LE(work, team.work()) << i;
    EXPECT_GT(num_gains, 0) << i;
  }
}

// Whatever is left out, what is said holds; ways that are left out do nothing.
TEST(TeamTest, EveryWayCanBeLeftOut) {
  Random random(43);
  for (int i = 0; i < 3 * kNumWays; ++i) {
    const SolverProblem problem = MakeRandomProblem(
        {.max_nodes = 60, .max_choices = 8, .max_cost = 1000, .with_limit = i % 2 == 0}, random);
    const auto left_out = static_cast<Way>(i % kNumWays);
    WaySet ways;
    ways.set(static_cast<size_t>(left_out));
    const SolveResult all = *Solve(problem, {.work_limit = 50'000'000});
    const SolveResult without = *Solve(problem, {.work_limit = 50'000'000, .left_out = ways});
    EXPECT_EQ(without.ways[left_out].num_runs, 0) << WayName(left_out);
    if (all.choice.empty() || without.choice.empty()) continue;
    EXPECT_LE(all.lower_bound, without.cost) << WayName(left_out);
    EXPECT_LE(without.lower_bound, all.cost) << WayName(left_out);
  }
}

}  // namespace
}  // namespace minka
