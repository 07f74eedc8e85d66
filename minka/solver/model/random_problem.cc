#include "minka/solver/model/random_problem.h"

#include <algorithm>
#include <vector>

namespace minka {
namespace {

enum class TableKind { kAny, kAlias, kFollower, kSeparable, kZero };

std::vector<int64_t> MakeTable(TableKind kind, int32_t rows, int32_t columns, int64_t max_cost,
                               Random& random) {
  const auto cost = [&] {
    return static_cast<int64_t>(random.Below(static_cast<int32_t>(max_cost + 1)));
  };
  const int32_t forbidden_percent = random.Below(3) == 0 ? 40 : 0;
  std::vector<int64_t> row_costs(rows);
  std::vector<int64_t> column_costs(columns);
  std::vector<int32_t> follows(rows);
  for (int64_t& value : row_costs) value = cost();
  for (int64_t& value : column_costs) value = cost();
  for (int32_t i = 0; i < rows; ++i)
    follows[i] = kind == TableKind::kAlias ? i : random.Below(columns);
  std::vector<int64_t> cells;
  for (int32_t i = 0; i < rows; ++i) {
    for (int32_t j = 0; j < columns; ++j) {
      switch (kind) {
        case TableKind::kAny:
          cells.push_back(random.Below(100) < forbidden_percent ? kForbidden : cost());
          break;
        case TableKind::kAlias:
        case TableKind::kFollower:
          cells.push_back(follows[i] == j ? cost() : kForbidden);
          break;
        case TableKind::kSeparable:
          cells.push_back(row_costs[i] + column_costs[j]);
          break;
        case TableKind::kZero:
          cells.push_back(0);
          break;
      }
    }
  }
  return cells;
}

void AddRandomUsages(SolverProblem& problem, Random& random) {
  constexpr int32_t kTimes = 12;
  constexpr int32_t kMaxBytes = 10;
  for (NodeId node = 0; node < problem.num_nodes(); ++node) {
    for (int32_t i = random.Below(3); i > 0; --i) {
      std::vector<int64_t> bytes(problem.num_choices(node));
      for (int64_t& value : bytes) value = random.Below(kMaxBytes);
      const int64_t begin = random.Below(kTimes);
      problem.AddUsage(node, {begin, begin + random.Below(kTimes)}, problem.AddUsageRow(bytes));
    }
  }
}

}  // namespace

SolverProblem MakeRandomProblem(const RandomProblemOptions& options, Random& random) {
  SolverProblem problem;
  const int32_t num_nodes = 1 + random.Below(options.max_nodes);
  const int32_t common = 1 + random.Below(options.max_choices);
  for (int32_t n = 0; n < num_nodes; ++n) {
    std::vector<int64_t> costs(random.Below(2) == 0 ? common
                                                    : 1 + random.Below(options.max_choices));
    for (int64_t& cost : costs)
      cost = random.Below(20) == 0 ? kForbidden
                                   : random.Below(static_cast<int32_t>(options.max_cost + 1));
    problem.SetMultiplicity(problem.AddNode(costs), 1 + random.Below(3));
  }
  const int32_t num_edges = num_nodes < 2 ? 0 : random.Below(2 * num_nodes + 1);
  for (int32_t e = 0; e < num_edges; ++e) {
    const NodeId a = random.Below(num_nodes);
    const NodeId b = (a + 1 + random.Below(num_nodes - 1)) % num_nodes;
    const int32_t rows = problem.num_choices(a);
    const int32_t columns = problem.num_choices(b);
    TableKind kind = TableKind::kAny;
    const int32_t draw = random.Below(10);
    if (draw == 0) kind = TableKind::kFollower;
    if (draw == 1 && rows == columns) kind = TableKind::kAlias;
    if (draw == 2) kind = TableKind::kSeparable;
    if (draw == 3) kind = TableKind::kZero;
    const TableId table =
        problem.AddTable(rows, columns, MakeTable(kind, rows, columns, options.max_cost, random));
    const bool swapped = random.Below(2) == 0;
    problem.AddEdge({.a = swapped ? b : a,
                     .b = swapped ? a : b,
                     .table = table,
                     .transposed = swapped,
                     .multiplicity = 1 + random.Below(2)});
  }
  AddRandomUsages(problem, random);
  if (options.with_limit) problem.set_usage_limit(random.Below(8 * num_nodes + 1));
  return problem;
}

}  // namespace minka
