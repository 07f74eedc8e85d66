#include "minka/solver/reduce/repeated_layers.h"

#include <gtest/gtest.h>

#include "minka/solver/bound/lift.h"
#include "minka/solver/model/evaluate.h"
#include "minka/solver/model/random.h"
#include "minka/solver/model/random_problem.h"
#include "minka/solver/solve.h"

namespace minka {
namespace {

std::vector<int64_t> RandomCosts(int32_t count, Random& random) {
  std::vector<int64_t> costs;
  for (int32_t i = 0; i < count; ++i) costs.push_back(random.Below(1000));
  return costs;
}

// entry - layer - ... - layer - exit. A layer: four nodes, all joined, the first two also to the
// last two of the layer before.
SolverProblem Layered(int32_t num_layers, int32_t num_choices) {
  Random random(3);
  SolverProblem problem;
  // Equal choices go together well, so that the bound is nearly tight.
  const auto table = [&] {
    std::vector<int64_t> cells = RandomCosts(num_choices * num_choices, random);
    for (int32_t i = 0; i < num_choices; ++i) cells[i * num_choices + i] = 0;
    return problem.AddTable(num_choices, num_choices, cells);
  };
  std::vector<std::vector<int64_t>> costs;
  for (int i = 0; i < 4; ++i) costs.push_back(RandomCosts(num_choices, random));
  std::vector<TableId> inside;
  for (int i = 0; i < 6; ++i) inside.push_back(table());
  std::vector<TableId> across;
  for (int i = 0; i < 4; ++i) across.push_back(table());
  std::vector<NodeId> previous = {problem.AddNode(RandomCosts(num_choices, random)),
                                  problem.AddNode(RandomCosts(num_choices, random))};
  for (int32_t layer = 0; layer < num_layers; ++layer) {
    std::vector<NodeId> nodes;
    for (const auto& cost : costs) nodes.push_back(problem.AddNode(cost));
    for (int a = 0, e = 0; a < 4; ++a)
      for (int b = a + 1; b < 4; ++b) problem.AddEdge({nodes[a], nodes[b], inside[e++]});
    for (int a = 0; a < 2; ++a)
      for (int b = 0; b < 2; ++b) problem.AddEdge({previous[a], nodes[b], across[2 * a + b]});
    previous = {nodes[2], nodes[3]};
  }
  const NodeId exit = problem.AddNode(RandomCosts(num_choices, random));
  problem.AddEdge({previous[0], exit, table()});
  return problem;
}

TEST(RepeatedLayersTest, CutsAllButAFewLayersAndMendsTheEdges) {
  const SolverProblem problem = Layered(40, 3);
  const std::optional<ShortenedProblem> shortened = CutRepeatedLayers(problem, 6);
  ASSERT_TRUE(shortened);
  const SolverProblem& short_problem = shortened->problem();
  EXPECT_GE(shortened->num_layers_cut(), 25);
  EXPECT_EQ(short_problem.num_nodes(), problem.num_nodes() - 4 * shortened->num_layers_cut());
  EXPECT_EQ(short_problem.edges().size(),
            problem.edges().size() - 10 * shortened->num_layers_cut());
  // What is left is what the same builder makes of fewer layers.
  const SolverProblem fewer = Layered(40 - shortened->num_layers_cut(), 3);
  const SolveParameters enough = {.work_limit = 20'000'000};
  EXPECT_EQ(Solve(short_problem, enough)->cost, Solve(fewer, enough)->cost);
}

TEST(RepeatedLayersTest, ProblemsWithoutLayersAreLeftAlone) {
  Random random(5);
  for (int i = 0; i < 20; ++i)
    EXPECT_FALSE(
        CutRepeatedLayers(MakeRandomProblem({.max_nodes = 80, .with_limit = false}, random), 6));
}

TEST(RepeatedLayersTest, LiftedChoicesAreThoseOfTheLayersAroundTheCut) {
  const SolverProblem problem = Layered(30, 3);
  const ShortenedProblem shortened = *CutRepeatedLayers(problem, 6);
  const SolveParameters enough = {.gap = 0.001, .work_limit = 20'000'000};
  const SolveResult solved = *Solve(shortened.problem(), enough);
  const std::vector<int32_t> lifted = LiftChoice(problem, shortened, solved.choice);
  const Evaluation evaluation = *Evaluate(problem, lifted);
  EXPECT_EQ(evaluation.num_forbidden, 0);
  EXPECT_LT(static_cast<double>(evaluation.cost),
            1.02 * static_cast<double>(Solve(problem, enough)->cost));
}

// Large enough that Solve() starts from the shortened problem.
TEST(RepeatedLayersTest, LiftedMessagesProveTheLongProblemsBound) {
  const SolverProblem problem = Layered(1000, 3);
  const SolveResult exact = *Solve(problem, {.gap = 0, .work_limit = 50'000'000});
  const SolveResult quick = *Solve(problem, {.gap = 0.03, .work_limit = 50'000'000});
  EXPECT_EQ(quick.status, SolveStatus::kGapReached);
  EXPECT_LE(quick.lower_bound, exact.cost);
  EXPECT_LE(exact.lower_bound, quick.cost);
  EXPECT_EQ(Evaluate(problem, quick.choice)->cost, quick.cost);
}

}  // namespace
}  // namespace minka
