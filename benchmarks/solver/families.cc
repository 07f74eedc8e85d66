#include "families.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "minka/solver/model/random.h"

namespace minka {
namespace {

// A table between two nodes whose choices stand for shardings: equal indices are free, others cost
// by a random distance.
std::vector<int64_t> ReshardTable(int32_t rows, int32_t columns, int64_t scale,
                                  int32_t forbidden_percent, Random& random) {
  std::vector<int64_t> cells;
  for (int32_t i = 0; i < rows; ++i) {
    for (int32_t j = 0; j < columns; ++j) {
      if (i == j)
        cells.push_back(0);
      else if (random.Below(100) < forbidden_percent)
        cells.push_back(kForbidden);
      else
        cells.push_back(scale * (1 + random.Below(20)));
    }
  }
  return cells;
}

std::vector<int64_t> RandomCosts(int32_t count, int32_t largest, Random& random) {
  std::vector<int64_t> costs(count);
  for (int64_t& cost : costs) cost = random.Below(largest);
  return costs;
}

// Choice k keeps a 2^(k mod 5)-th of the tensor.
std::vector<int64_t> ShardedBytes(int32_t count, int64_t bytes) {
  std::vector<int64_t> usage;
  for (int32_t k = 0; k < count; ++k) usage.push_back(bytes >> (k % 5));
  return usage;
}

// `slack` times the peak of every node at its smallest usage.
void SetTightLimit(SolverProblem& problem, double slack) {
  std::vector<std::pair<int64_t, int64_t>> changes;
  for (const NodeUsage& usage : problem.usages()) {
    const int64_t least = *std::ranges::min_element(problem.usage_row(usage.row));
    changes.emplace_back(usage.interval.begin, least);
    changes.emplace_back(usage.interval.end, -least);
  }
  std::ranges::sort(changes);
  int64_t bytes = 0;
  int64_t peak = 0;
  for (const auto& [time, change] : changes) peak = std::max(peak, bytes += change);
  problem.set_usage_limit(static_cast<int64_t>(slack * static_cast<double>(peak)));
}

SolverProblem Chain(int32_t num_nodes, int32_t num_choices, std::optional<double> slack,
                    uint64_t seed) {
  Random random(1 + seed);
  SolverProblem problem;
  for (int32_t n = 0; n < num_nodes; ++n) {
    const NodeId node = problem.AddNode(RandomCosts(num_choices, 1000, random));
    problem.AddUsage(node, {n, n + 2 + random.Below(40)},
                     problem.AddUsageRow(ShardedBytes(num_choices, 1 << 20)));
    if (n == 0) continue;
    const TableId table = problem.AddTable(num_choices, num_choices,
                                           ReshardTable(num_choices, num_choices, 60, 10, random));
    problem.AddEdge({node - 1, node, table});
  }
  if (slack) SetTightLimit(problem, *slack);
  return problem;
}

SolverProblem GridWithLongRange(int32_t side, int32_t num_choices, uint64_t seed) {
  Random random(2 + seed);
  SolverProblem problem;
  for (int32_t n = 0; n < side * side; ++n) problem.AddNode(RandomCosts(num_choices, 1000, random));
  const auto join = [&](NodeId a, NodeId b) {
    problem.AddEdge({a, b,
                     problem.AddTable(num_choices, num_choices,
                                      ReshardTable(num_choices, num_choices, 40, 0, random))});
  };
  for (int32_t i = 0; i < side; ++i) {
    for (int32_t j = 0; j < side; ++j) {
      if (j + 1 < side) join(i * side + j, i * side + j + 1);
      if (i + 1 < side) join(i * side + j, (i + 1) * side + j);
    }
  }
  for (int32_t e = 0; e < side; ++e) {
    const NodeId a = random.Below(side * side);
    const NodeId b = random.Below(side * side);
    if (a != b) join(a, b);
  }
  return problem;
}

SolverProblem DenseForbidden(int32_t num_nodes, int32_t num_choices, uint64_t seed) {
  Random random(3 + seed);
  SolverProblem problem;
  for (int32_t n = 0; n < num_nodes; ++n) problem.AddNode(RandomCosts(num_choices, 1000, random));
  for (int32_t n = 1; n < num_nodes; ++n)
    for (int32_t back = 1; back <= std::min(n, 3); ++back)
      problem.AddEdge({n - back, n,
                       problem.AddTable(num_choices, num_choices,
                                        ReshardTable(num_choices, num_choices, 30, 50, random))});
  return problem;
}

// Layers of equal nodes and tables: six operations, a residual edge, and two weights that live to
// the end.
SolverProblem Transformer(int32_t num_layers, int32_t num_choices, bool tied,
                          std::optional<double> slack, uint64_t seed) {
  Random random(4 + seed);
  SolverProblem problem;
  constexpr int32_t kOperations = 6;
  std::vector<std::vector<int64_t>> costs;
  std::vector<TableId> tables;
  for (int32_t i = 0; i < 2 * kOperations; ++i) {
    costs.push_back(RandomCosts(num_choices, 2000, random));
    tables.push_back(problem.AddTable(num_choices, num_choices,
                                      ReshardTable(num_choices, num_choices, 50, 20, random)));
  }
  const RowId activation = problem.AddUsageRow(ShardedBytes(num_choices, 4 << 20));
  const RowId weight = problem.AddUsageRow(ShardedBytes(num_choices, 16 << 20));
  const int64_t end = 2 * num_layers * kOperations;
  NodeId previous = -1;
  for (int32_t layer = 0; layer < num_layers; ++layer) {
    const NodeId entry = previous;
    for (int32_t i = 0; i < kOperations; ++i) {
      const int64_t time = layer * kOperations + i;
      const NodeId node = problem.AddNode(costs[i]);
      problem.AddUsage(node, {time, end - time}, activation);
      if (previous >= 0) problem.AddEdge({previous, node, tables[i]});
      if (i == 2 || i == 5) {
        const NodeId kernel = problem.AddNode(costs[kOperations + i]);
        problem.AddUsage(kernel, {0, end}, weight);
        problem.AddEdge({kernel, node, tables[kOperations + i]});
      }
      if (i == kOperations - 1 && entry >= 0) problem.AddEdge({entry, node, tables[kOperations]});
      previous = node;
    }
  }
  if (tied) problem.AddEdge({0, previous, tables[kOperations + 1]});
  if (slack) SetTightLimit(problem, *slack);
  return problem;
}

// Operations of a program in order, as in the contest's instances: an operation reads the one
// before it or some of the last ones, some of them a weight that lives to the end; memory
// is limited to a tenth more than the least.
SolverProblem Program(int32_t num_operations, uint64_t seed) {
  constexpr int32_t kReach = 30;
  constexpr int32_t kNumKinds = 40;  // of operations, so that tables repeat
  Random random(5 + seed);
  SolverProblem problem;
  struct Kind {
    std::vector<int64_t> costs;
    RowId bytes = 0;
  };
  std::vector<Kind> kinds;
  for (int32_t i = 0; i < kNumKinds; ++i) {
    const int32_t num_choices = 6 + random.Below(34);
    kinds.push_back(
        {RandomCosts(num_choices, 2000, random),
         problem.AddUsageRow(ShardedBytes(num_choices, int64_t{1} << (16 + random.Below(7))))});
  }
  std::map<std::pair<int32_t, int32_t>, TableId> tables;
  std::vector<int32_t> kind_of;
  const auto join = [&](NodeId from, NodeId to) {
    const auto [at, added] = tables.try_emplace({kind_of[from], kind_of[to]}, 0);
    if (added) {
      const int32_t rows = problem.num_choices(from), columns = problem.num_choices(to);
      at->second = problem.AddTable(rows, columns, ReshardTable(rows, columns, 80, 30, random));
    }
    problem.AddEdge({from, to, at->second});
  };
  std::vector<int64_t> last_read;
  std::vector<char> is_weight;
  std::vector<NodeId> operations;
  for (int32_t i = 0; i < num_operations; ++i) {
    const int32_t kind = random.Below(kNumKinds);
    const NodeId node = problem.AddNode(kinds[kind].costs);
    kind_of.push_back(kind);
    last_read.push_back(i + 1);
    is_weight.push_back(0);
    const auto read = [&](NodeId other) {
      join(other, node);
      last_read[other] = std::max<int64_t>(last_read[other], i + 1);
    };
    if (!operations.empty() && random.Below(10) > 0) read(operations.back());
    if (operations.size() > kReach && random.Below(4) == 0)
      read(operations[operations.size() - 2 - random.Below(kReach - 1)]);
    operations.push_back(node);
    if (random.Below(6) > 0) continue;
    const NodeId weight = problem.AddNode(kinds[kind].costs);
    kind_of.push_back(kind);
    last_read.push_back(num_operations);
    is_weight.push_back(1);
    join(node, weight);
  }
  int32_t time = 0;
  for (NodeId node = 0; node < problem.num_nodes(); ++node) {
    const bool lives_from_begin = is_weight[node] != 0;
    problem.AddUsage(node, {lives_from_begin ? 0 : time, last_read[node]},
                     kinds[kind_of[node]].bytes);
    if (!lives_from_begin) ++time;
  }
  SetTightLimit(problem, 1.1);
  return problem;
}

}  // namespace

std::vector<NamedProblem> MakeFamilies(uint64_t seed) {
  std::vector<NamedProblem> problems;
  problems.push_back({"chain_loose", Chain(5000, 12, std::nullopt, seed)});
  problems.push_back({"chain_tight", Chain(5000, 12, 1.1, seed)});
  problems.push_back({"grid_long_range", GridWithLongRange(20, 10, seed)});
  problems.push_back({"dense_forbidden", DenseForbidden(400, 12, seed)});
  problems.push_back({"transformer_tight", Transformer(48, 25, false, 1.2, seed)});
  problems.push_back({"transformer_tied_tight", Transformer(48, 25, true, 1.2, seed)});
  problems.push_back({"transformer_tied_loose", Transformer(48, 25, true, std::nullopt, seed)});
  problems.push_back({"wide_choices_tight", Transformer(6, 343, false, 1.3, seed)});
  problems.push_back({"program_tight", Program(700, seed)});
  problems.push_back({"large_program", Program(20'000, seed)});
  return problems;
}

}  // namespace minka
