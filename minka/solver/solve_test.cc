#include "minka/solver/solve.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>

#include "minka/base/status.h"
#include "minka/solver/bound/bound_ascent.h"
#include "minka/solver/bound/choice_excess.h"
#include "minka/solver/bound/core_graph.h"
#include "minka/solver/bound/message_passing.h"
#include "minka/solver/core_search.h"
#include "minka/solver/improve/regions.h"
#include "minka/solver/improve/variable_elimination.h"
#include "minka/solver/model/evaluate.h"
#include "minka/solver/model/random_problem.h"
#include "minka/solver/prove/branching.h"
#include "minka/solver/prove/probing.h"
#include "minka/solver/reduce/reduce.h"

namespace minka {
namespace {

// Calls visit with every choice.
void ForEveryChoice(const SolverProblem& problem,
                    const std::function<void(std::vector<int32_t>&)>& visit) {
  std::vector<int32_t> choice(problem.num_nodes(), 0);
  while (true) {
    visit(choice);
    NodeId node = 0;
    while (node < problem.num_nodes() && ++choice[node] == problem.num_choices(node))
      choice[node++] = 0;
    if (node == problem.num_nodes()) return;
  }
}

std::optional<int64_t> Optimum(const SolverProblem& problem) {
  std::optional<int64_t> best;
  ForEveryChoice(problem, [&](std::vector<int32_t>& choice) {
    const Evaluation evaluation = *Evaluate(problem, choice);
    if (evaluation.feasible() && (!best || evaluation.cost < *best)) best = evaluation.cost;
  });
  return best;
}

// The core as a problem of its own, to be solved by enumeration.
std::optional<int64_t> OptimumOfCore(const Core& core) {
  if (core.infeasible) return std::nullopt;
  SolverProblem problem;
  for (int32_t node = 0; node < core.num_nodes(); ++node) {
    problem.AddNode(core.costs(node));
    for (const CoreUsage& usage : core.usages[node])
      for (const TimeRange& range : usage.ranges)
        problem.AddUsage(node, {range.begin, range.end},
                         problem.AddUsageRow(core.algebra.row(usage.row)));
  }
  for (const CoreEdge& edge : core.edges) {
    const CostTable t = core.algebra.table(edge.table);
    problem.AddEdge({edge.a, edge.b, problem.AddTable(t.num_rows, t.num_columns, t.cells)});
  }
  std::optional<int64_t> best;
  ForEveryChoice(problem, [&](std::vector<int32_t>& choice) {
    const Evaluation evaluation = *Evaluate(problem, choice);
    std::vector<int64_t> bytes(core.limit_bytes.size(), 0);
    for (const UsageStep& step : UsageOverTime(problem, choice))
      for (size_t t = step.time; t < bytes.size(); ++t) bytes[t] = step.bytes;
    bool fits = true;
    for (size_t t = 0; t < bytes.size(); ++t) fits &= bytes[t] <= core.limit_bytes[t];
    if (fits && evaluation.num_forbidden == 0 && (!best || evaluation.cost < *best))
      best = evaluation.cost;
  });
  if (best) *best += core.base_cost;
  return best;
}

TEST(ReduceTest, EveryReductionKeepsTheOptimum) {
  std::vector<ReduceOptions> variants(6);
  variants[1].arc_consistency = false;
  variants[2].dominance = false;
  variants[3].followers = false;
  variants[4].elimination = false;
  variants[5] = {
      .arc_consistency = false, .dominance = false, .followers = false, .elimination = false};
  Random random(7);
  for (int i = 0; i < 400; ++i) {
    const SolverProblem problem =
        MakeRandomProblem({.max_nodes = 5, .with_limit = i % 3 != 0}, random);
    const std::optional<int64_t> optimum = Optimum(problem);
    for (const ReduceOptions& options : variants) {
      const Reduction reduction = Reduce(problem, options);
      EXPECT_EQ(OptimumOfCore(reduction.core), optimum) << "problem " << i;
    }
  }
}

TEST(PruneTest, ChoicesThatBeatAnAnswerAreKept) {
  Random random(23);
  int64_t num_dropped = 0;
  for (int i = 0; i < 300; ++i) {
    const SolverProblem problem = MakeRandomProblem({.with_limit = i % 2 == 0}, random);
    const Reduction reduction = Reduce(problem, {.dominance = false, .elimination = false});
    const std::optional<int64_t> optimum = OptimumOfCore(reduction.core);
    if (!optimum) continue;
    const CoreGraph graph(reduction.core);
    MessagePassing messages(graph);
    messages.SetPrices(std::vector<double>(reduction.core.times.size(), 0.01 * random.Below(9)));
    for (int sweep = 0; sweep < 5; ++sweep) messages.Sweep();
    const auto kept = ChoiceExcess(messages).Within(*optimum + random.Below(3));
    for (int32_t n = 0; n < graph.num_nodes(); ++n)
      num_dropped += graph.num_choices(n) - static_cast<int64_t>(kept[n].size());
    EXPECT_EQ(OptimumOfCore(ReduceFurther(reduction.core, kept).core), optimum) << "problem " << i;
  }
  EXPECT_GT(num_dropped, 300);
}

// Any choice of the core within the limit; nothing if a few tries meet none.
std::optional<CoreAnswer> AnyAnswer(const Core& core, Random& random) {
  for (int tries = 0; tries < 200; ++tries) {
    CoreAnswer answer;
    for (int32_t node = 0; node < core.num_nodes(); ++node)
      answer.choice.push_back(random.Below(core.num_choices(node)));
    const std::optional<int64_t> cost = CoreCost(core, answer.choice);
    if (!cost || !FitsLimit(core, answer.choice)) continue;
    answer.cost = *cost;
    return answer;
  }
  return std::nullopt;
}

// Edges between two in three pairs; half of all pairs of choices forbidden.
SolverProblem DenseProblem(Random& random) {
  SolverProblem problem;
  const int32_t num_nodes = 3 + random.Below(4);
  for (NodeId n = 0; n < num_nodes; ++n) {
    std::vector<int64_t> costs;
    for (int32_t k = 2 + random.Below(3); k > 0; --k) costs.push_back(random.Below(50));
    problem.AddNode(costs);
    for (NodeId other = 0; other < n; ++other) {
      if (random.Below(3) == 0) continue;
      const int32_t rows = problem.num_choices(other);
      const int32_t columns = problem.num_choices(n);
      std::vector<int64_t> cells;
      for (int32_t c = 0; c < rows * columns; ++c)
        cells.push_back(random.Below(2) == 0 ? kForbidden : int64_t{random.Below(50)});
      problem.AddEdge({other, n, problem.AddTable(rows, columns, cells)});
    }
  }
  return problem;
}

TEST(BranchingTest, ProvesTheOptimumByCases) {
  Random random(37);
  int num_above_root = 0;  // problems whose relaxation alone does not prove it
  for (int i = 0; i < 600; ++i) {
    const SolverProblem problem =
        i % 2 == 0 ? MakeRandomProblem({.with_limit = true}, random) : DenseProblem(random);
    const Reduction reduction = Reduce(problem, {.dominance = false, .elimination = false});
    const Core& core = reduction.core;
    const std::optional<int64_t> optimum = OptimumOfCore(core);
    const std::optional<CoreAnswer> answer =
        optimum && core.num_nodes() > 0 ? AnyAnswer(core, random) : std::nullopt;
    if (!answer) continue;
    const CoreGraph graph(core);
    MessagePassing messages(graph);
    for (int sweep = 0; sweep < 20; ++sweep) messages.Sweep();
    num_above_root += messages.Certify() < *optimum ? 1 : 0;
    const ChoiceExcess excess(messages);
    Branching branching(core, excess.Within(answer->cost), excess, /*case_work=*/1000, i);
    const auto search = [](const Reduction& reduced, uint64_t seed, const CoreAnswer&) {
      return std::make_unique<CoreSearch>(reduced.core, seed);
    };
    EXPECT_EQ(branching.bound(), INT64_MIN);
    branching.Run(*answer, /*goal=*/*optimum, search, /*work=*/50'000'000, [] { return false; });
    EXPECT_EQ(branching.bound(), *optimum) << "problem " << i;
    EXPECT_GE(branching.found()->cost, *optimum) << "problem " << i;
    EXPECT_EQ(CoreCost(core, branching.found()->choice), branching.found()->cost);
  }
  EXPECT_GT(num_above_root, 20);
}

TEST(VariableEliminationTest, FindsTheOptimum) {
  Random random(31);
  int num_infeasible = 0;
  int num_wide = 0;  // tables of three nodes or more
  for (int i = 0; i < 300; ++i) {
    const Reduction reduction = Reduce(
        DenseProblem(random),
        {.arc_consistency = false, .dominance = false, .followers = false, .elimination = false});
    const Core& core = reduction.core;
    if (core.infeasible) continue;
    const Eliminated eliminated = SolveByElimination(core, /*most_work=*/1'000'000);
    ASSERT_TRUE(eliminated.complete) << "problem " << i;
    const std::optional<int64_t> optimum = OptimumOfCore(core);
    ASSERT_EQ(eliminated.answer.has_value(), optimum.has_value()) << "problem " << i;
    num_infeasible += optimum ? 0 : 1;
    num_wide += eliminated.work > 100 ? 1 : 0;
    if (!optimum) continue;
    EXPECT_EQ(eliminated.answer->cost, *optimum) << "problem " << i;
    EXPECT_EQ(CoreCost(core, eliminated.answer->choice), *optimum) << "problem " << i;
  }
  EXPECT_GT(num_infeasible, 50);
  EXPECT_GT(num_wide, 50);
}

TEST(VariableEliminationTest, GivesUpWhenItWouldTakeTooMuch) {
  SolverProblem problem;
  Random random(1);
  for (NodeId n = 0; n < 12; ++n) {
    problem.AddNode(std::vector<int64_t>(8, 1));
    for (NodeId other = 0; other < n; ++other) {
      std::vector<int64_t> cells;
      for (int c = 0; c < 64; ++c) cells.push_back(random.Below(100));
      problem.AddEdge({other, n, problem.AddTable(8, 8, cells)});
    }
  }
  const Reduction reduction = Reduce(problem);
  const Eliminated eliminated = SolveByElimination(reduction.core, /*most_work=*/1'000'000);
  EXPECT_FALSE(eliminated.complete);
  EXPECT_FALSE(eliminated.answer);
}

TEST(ProbingTest, FindsTheOptimumAndPrunesOnlyWhatIsNoBetter) {
  Random random(29);
  int64_t num_dropped = 0;
  int num_improved = 0;
  for (int i = 0; i < 300; ++i) {
    const SolverProblem problem = MakeRandomProblem({.with_limit = i % 2 == 0}, random);
    const Reduction reduction = Reduce(problem, {.dominance = false, .elimination = false});
    const Core& core = reduction.core;
    const std::optional<int64_t> optimum = OptimumOfCore(core);
    const std::optional<CoreAnswer> answer =
        optimum && core.num_nodes() > 0 ? AnyAnswer(core, random) : std::nullopt;
    if (!answer) continue;
    const CoreGraph graph(core);
    MessagePassing messages(graph);
    messages.Sweep();
    const ChoiceExcess excess(messages);
    Probing probing(core, excess.Within(answer->cost), excess, /*probe_work=*/1 + 5000 * (i % 3),
                    i);
    const auto search = [](const Reduction& pruned, uint64_t seed, const CoreAnswer&) {
      return std::make_unique<CoreSearch>(pruned.core, seed);
    };
    probing.Run(*answer, search, /*work=*/2'000'000, [] { return false; });
    EXPECT_EQ(probing.found()->cost, *optimum) << "problem " << i;
    EXPECT_EQ(OptimumOfCore(ReduceFurther(core, probing.choices()).core), optimum)
        << "problem " << i;
    num_improved += probing.found()->cost < answer->cost ? 1 : 0;
    for (int32_t n = 0; n < graph.num_nodes(); ++n)
      num_dropped += graph.num_choices(n) - static_cast<int64_t>(probing.choices()[n].size());
  }
  EXPECT_GT(num_improved, 50);
  EXPECT_GT(num_dropped, 300);
}

TEST(RegionsTest, AnswersFitAndAreOftenTheOptimum) {
  Random random(31);
  int num_searched = 0, num_improved = 0, num_optimal = 0;
  for (int i = 0; i < 100; ++i) {
    const SolverProblem problem = MakeRandomProblem({.with_limit = i % 2 == 0}, random);
    const Reduction reduction = Reduce(problem, {.dominance = false, .elimination = false});
    const Core& core = reduction.core;
    const std::optional<int64_t> optimum = OptimumOfCore(core);
    const std::optional<CoreAnswer> answer = optimum ? AnyAnswer(core, random) : std::nullopt;
    if (!answer) continue;
    const CoreGraph graph(core);
    MessagePassing messages(graph);
    messages.Sweep();
    Regions regions(graph, i);
    const MakePartSearch search = [](const Reduction& free, uint64_t seed, const CoreAnswer&) {
      return std::make_unique<CoreSearch>(free.core, seed);
    };
    const Known known = {.messages = messages,
                         .prices = messages.prices(),
                         .best = answer,
                         .make_part_search = &search,
                         .bound_is_at_rest = true};
    ASSERT_TRUE(regions.CanRun(known, 1) || core.num_nodes() == 0);
    if (core.num_nodes() == 0) continue;
    regions.Run(known, /*work=*/2'000'000, [] { return false; });
    EXPECT_EQ(regions.found()->cost, CoreCost(core, regions.found()->choice)) << "problem " << i;
    EXPECT_TRUE(FitsLimit(core, regions.found()->choice)) << "problem " << i;
    ++num_searched;
    num_improved += regions.found()->cost < answer->cost ? 1 : 0;
    num_optimal += regions.found()->cost == *optimum ? 1 : 0;
  }
  // Where memory couples parts that no edge joins, regions cannot trade between them.
  EXPECT_GT(num_improved, num_searched / 4);
  EXPECT_GT(num_optimal, num_searched / 2);
}

TEST(RegionsTest, ACoreWithoutNodesHasNoRegions) {
  SolverProblem problem;
  problem.AddNode(std::vector<int64_t>{3, 1});
  const Reduction reduction = Reduce(problem);
  ASSERT_EQ(reduction.core.num_nodes(), 0);
  const CoreGraph graph(reduction.core);
  MessagePassing messages(graph);
  const MakePartSearch search = [](const Reduction& free, uint64_t seed, const CoreAnswer&) {
    return std::make_unique<CoreSearch>(free.core, seed);
  };
  const CoreAnswer answer = {{}, 1};
  EXPECT_FALSE(Regions(graph, 1).CanRun({.messages = messages,
                                         .prices = messages.prices(),
                                         .best = answer,
                                         .make_part_search = &search,
                                         .bound_is_at_rest = true},
                                        1000));
}

TEST(SolveTest, SmallProblemsAreSolvedToTheOptimum) {
  Random random(11);
  int infeasible = 0;
  for (int i = 0; i < 500; ++i) {
    const SolverProblem problem = MakeRandomProblem({.with_limit = i % 4 != 0}, random);
    const std::optional<int64_t> optimum = Optimum(problem);
    const absl::StatusOr<SolveResult> result = Solve(problem, {.num_threads = 1 + i % 2});
    ASSERT_TRUE(result.ok()) << Message(result.status());
    if (!optimum) {
      ++infeasible;
      EXPECT_EQ(result->status, SolveStatus::kInfeasible) << "problem " << i;
      continue;
    }
    EXPECT_EQ(result->status, SolveStatus::kOptimal) << "problem " << i;
    EXPECT_EQ(result->cost, *optimum) << "problem " << i;
    EXPECT_EQ(result->lower_bound, *optimum) << "problem " << i;
    const Evaluation evaluation = *Evaluate(problem, result->choice);
    EXPECT_TRUE(evaluation.feasible());
    EXPECT_EQ(evaluation.cost, result->cost);
  }
  EXPECT_GT(infeasible, 20);
}

TEST(SolveTest, BoundHoldsAtEveryWorkLimit) {
  Random random(13);
  for (int i = 0; i < 60; ++i) {
    const SolverProblem problem = MakeRandomProblem({}, random);
    const std::optional<int64_t> optimum = Optimum(problem);
    if (!optimum) continue;
    for (const int64_t work : {1, 1000, 100'000}) {
      const SolveResult result = *Solve(problem, {.work_limit = work});
      EXPECT_LE(result.lower_bound, *optimum);
      EXPECT_TRUE(result.choice.empty() || result.cost >= *optimum);
    }
  }
}

TEST(SolveTest, SameSeedAndThreadsGiveTheSameAnswer) {
  Random random(17);
  for (int i = 0; i < 10; ++i) {
    const SolverProblem problem =
        MakeRandomProblem({.max_nodes = 60, .max_choices = 8, .max_cost = 1000}, random);
    const SolveParameters parameters = {.work_limit = 20'000'000, .num_threads = 2};
    const SolveResult first = *Solve(problem, parameters);
    const SolveResult second = *Solve(problem, parameters);
    EXPECT_EQ(first.choice, second.choice);
    EXPECT_EQ(first.lower_bound, second.lower_bound);
    EXPECT_EQ(first.prices, second.prices);
    EXPECT_EQ(first.work, second.work);
  }
}

TEST(SolveTest, InfeasibleLimitNamesTimeAndALimitThatWorks) {
  SolverProblem problem;
  problem.AddNode(std::vector<int64_t>{0, 5});
  problem.AddNode(std::vector<int64_t>{0, 5});
  const RowId row = problem.AddUsageRow(std::vector<int64_t>{8, 6});
  problem.AddUsage(0, {3, 9}, row);
  problem.AddUsage(1, {7, 12}, row);
  problem.set_usage_limit(11);
  const SolveResult result = *Solve(problem);
  EXPECT_EQ(result.status, SolveStatus::kInfeasible);
  ASSERT_TRUE(result.infeasibility.has_value());
  EXPECT_FALSE(result.infeasibility->without_limit);
  EXPECT_EQ(result.infeasibility->tightest_time, 8);
  EXPECT_EQ(result.infeasibility->smallest_known_limit_bytes, 12);
  problem.set_usage_limit(12);
  EXPECT_EQ(Solve(problem)->cost, 10);
}

TEST(SolveTest, ForbiddenPairsAloneAreInfeasibleWithoutLimit) {
  SolverProblem problem;
  problem.AddNode(std::vector<int64_t>{0, 5});
  problem.AddNode(std::vector<int64_t>{0, kForbidden});
  problem.AddEdge(
      {0, 1, problem.AddTable(2, 2, std::vector<int64_t>{kForbidden, 0, kForbidden, 0})});
  const SolveResult result = *Solve(problem);
  EXPECT_EQ(result.status, SolveStatus::kInfeasible);
  EXPECT_TRUE(result.infeasibility->without_limit);
}

// A ring of nodes whose pairs cost something unless equal, with costs that pull apart.
SolverProblem Ring(int32_t num_nodes) {
  SolverProblem problem;
  Random random(19);
  std::vector<int64_t> cells(36, 50);
  for (int32_t k = 0; k < 6; ++k) cells[7 * k] = 0;
  for (int32_t n = 0; n < num_nodes; ++n) {
    std::vector<int64_t> costs(6);
    for (int64_t& cost : costs) cost = random.Below(100);
    const NodeId node = problem.AddNode(costs);
    problem.AddUsage(node, {n, n + 5}, problem.AddUsageRow(std::vector<int64_t>{6, 5, 4, 3, 2, 1}));
  }
  const TableId table = problem.AddTable(6, 6, cells);
  for (int32_t n = 0; n < num_nodes; ++n) problem.AddEdge({n, (n + 1) % num_nodes, table});
  for (int32_t n = 0; n < num_nodes; ++n) problem.AddEdge({n, (n + 7) % num_nodes, table});
  problem.set_usage_limit(15);
  return problem;
}

TEST(SolveTest, StopsOnceNothingCanCostLessThanTheCutoff) {
  const SolverProblem problem = Ring(200);
  const SolveResult whole = *Solve(problem, {.gap = 0.05});
  const int64_t cutoff = whole.lower_bound / 2;
  const SolveResult stopped = *Solve(problem, {.cutoff = cutoff});
  EXPECT_EQ(stopped.status, SolveStatus::kCutoff);
  EXPECT_GE(stopped.lower_bound, cutoff);
  // One that the bound never reaches changes nothing.
  const SolveResult same = *Solve(problem, {.gap = 0.05, .cutoff = whole.cost + 1});
  EXPECT_EQ(same.status, SolveStatus::kGapReached);
  EXPECT_EQ(same.choice, whole.choice);
}

TEST(SolveTest, CancellationGapAndWorkLimitStopEarly) {
  const SolverProblem problem = Ring(200);
  const std::atomic<bool> cancelled = true;
  const SolveResult stopped = *Solve(problem, {.cancelled = &cancelled});
  EXPECT_EQ(stopped.status, SolveStatus::kCancelled);
  EXPECT_EQ(stopped.gap, 1);
  const SolveResult loose = *Solve(problem, {.gap = 0.2});
  EXPECT_EQ(loose.status, SolveStatus::kGapReached);
  EXPECT_LE(loose.gap, 0.2);
  EXPECT_GT(loose.memory_price, 0);
  EXPECT_EQ(Solve(problem, {.work_limit = 3'000'000})->status, SolveStatus::kWorkLimit);
  EXPECT_EQ(Message(Solve(problem, {.num_threads = 0}).status()),
            "num_threads must be at least 1, not 0");
}

TEST(SolveTest, WarmStartBeginsWithTheGivenChoice) {
  const SolverProblem problem = Ring(2000);
  const SolveResult cold = *Solve(problem, {.gap = 0.05});
  const SolveResult none = *Solve(problem, {.work_limit = 1});
  EXPECT_TRUE(none.choice.empty());
  // What it would take instead.
  ASSERT_TRUE(none.infeasibility.has_value());
  const Evaluation least = *Evaluate(problem, none.infeasibility->choice);
  EXPECT_EQ(least.num_forbidden, 0);
  EXPECT_EQ(none.infeasibility->smallest_known_limit_bytes, least.peak_usage_bytes);
  const SolveResult warm = *Solve(problem, {.work_limit = 1, .initial_choice = cold.choice});
  ASSERT_FALSE(warm.choice.empty());
  EXPECT_LE(warm.cost, cold.cost);
}

// A ring whose nodes all take the choice that costs nothing, unless memory has a price.
SolverProblem TightRing(int32_t num_nodes) {
  SolverProblem problem;
  Random random(19);
  const TableId table = problem.AddTable(3, 3, std::vector<int64_t>{0, 1, 2, 1, 0, 1, 2, 1, 0});
  for (int32_t n = 0; n < num_nodes; ++n) {
    const NodeId node =
        problem.AddNode(std::vector<int64_t>{0, 10 + random.Below(10), 30 + random.Below(10)});
    problem.AddUsage(node, {n, n + 5}, problem.AddUsageRow(std::vector<int64_t>{4, 2, 0}));
  }
  for (int32_t n = 0; n < num_nodes; ++n) {
    problem.AddEdge({n, (n + 1) % num_nodes, table});
    problem.AddEdge({n, (n + 7) % num_nodes, table});
  }
  problem.set_usage_limit(10);
  return problem;
}

TEST(SolveTest, WarmStartBeginsWithTheGivenPrices) {
  const SolverProblem problem = TightRing(400);
  const SolveResult cold = *Solve(problem, {.work_limit = 100'000'000});
  ASSERT_FALSE(cold.prices.empty());
  const SolveResult brief = *Solve(problem, {.work_limit = 1});
  const SolveResult warm = *Solve(problem, {.work_limit = 1, .initial_prices = cold.prices});
  EXPECT_GT(warm.lower_bound, brief.lower_bound);
}

TEST(BoundAscentTest, BeginsWithTheGivenPrices) {
  const Reduction reduction = Reduce(TightRing(100));
  const CoreGraph graph(reduction.core);
  const auto never = [] { return false; };
  const int64_t sweep = MessagePassing(graph).sweep_work();
  BoundAscent cold(graph);
  cold.Run(300 * sweep, never);
  BoundAscent brief(graph);
  brief.Run(5 * sweep, never);
  EXPECT_EQ(brief.bound(), 0);
  BoundAscent warm(graph);
  warm.StartFrom(cold.best_prices());
  warm.Run(5 * sweep, never);
  EXPECT_GT(warm.bound(), cold.bound() / 2);
}

}  // namespace
}  // namespace minka
