#include "minka/solver/solve.h"

#include <algorithm>
#include <chrono>

#include "minka/base/status.h"
#include "minka/solver/evaluate.h"

namespace minka {
namespace {

constexpr int kMaxSweeps = 100;

struct Neighbour {
  NodeId node;
  int32_t edge;
};

std::vector<std::vector<Neighbour>> Neighbours(const SolverProblem& problem) {
  std::vector<std::vector<Neighbour>> neighbours(problem.num_nodes());
  for (size_t e = 0; e < problem.edges().size(); ++e) {
    const ProblemEdge& edge = problem.edges()[e];
    neighbours[edge.a].push_back({edge.b, static_cast<int32_t>(e)});
    neighbours[edge.b].push_back({edge.a, static_cast<int32_t>(e)});
  }
  return neighbours;
}

// Forbidden entries weigh more than any sum of costs.
double Weigh(int64_t cost, int64_t multiplicity) {
  return cost == kForbidden ? 1e19 : static_cast<double>(cost) * static_cast<double>(multiplicity);
}

int32_t BestChoice(const SolverProblem& problem, const std::vector<int32_t>& choice,
                   const std::vector<Neighbour>& neighbours, NodeId node) {
  int32_t best = choice[node];
  double best_cost = 0;
  for (int32_t k = -1; k < problem.num_choices(node); ++k) {
    const int32_t candidate = k < 0 ? choice[node] : k;
    double cost = Weigh(problem.costs(node)[candidate], problem.multiplicity(node));
    for (const Neighbour& neighbour : neighbours) {
      const ProblemEdge& edge = problem.edges()[neighbour.edge];
      cost += Weigh(problem.EdgeCost(edge, edge.a == node ? candidate : choice[edge.a],
                                     edge.b == node ? candidate : choice[edge.b]),
                    edge.multiplicity);
    }
    if (k < 0 || cost < best_cost) {
      best_cost = cost;
      best = candidate;
    }
  }
  return best;
}

}  // namespace

std::string_view SolveStatusName(SolveStatus status) {
  switch (status) {
    case SolveStatus::kOptimal:
      return "optimal";
    case SolveStatus::kGapReached:
      return "gap_reached";
    case SolveStatus::kWorkLimit:
      return "work_limit";
    case SolveStatus::kTimeLimit:
      return "time_limit";
    case SolveStatus::kCancelled:
      return "cancelled";
    case SolveStatus::kInfeasible:
      return "infeasible";
  }
  return "";
}

absl::StatusOr<SolveResult> Solve(const SolverProblem& problem, const SolveParameters& parameters) {
  RETURN_IF_ERROR(problem.Check());
  const auto start = std::chrono::steady_clock::now();
  std::vector<int32_t> choice = parameters.initial_choice;
  if (static_cast<int32_t>(choice.size()) != problem.num_nodes())
    choice.assign(problem.num_nodes(), 0);
  const std::vector<std::vector<Neighbour>> neighbours = Neighbours(problem);
  for (int sweep = 0; sweep < kMaxSweeps; ++sweep) {
    bool changed = false;
    for (NodeId node = 0; node < problem.num_nodes(); ++node) {
      const int32_t best = BestChoice(problem, choice, neighbours[node], node);
      changed |= best != choice[node];
      choice[node] = best;
    }
    if (!changed) break;
  }
  SolveResult result;
  for (NodeId node = 0; node < problem.num_nodes(); ++node) {
    const int64_t cheapest = *std::ranges::min_element(problem.costs(node));
    if (cheapest != kForbidden) result.lower_bound += cheapest * problem.multiplicity(node);
  }
  ASSIGN_OR_RETURN(const Evaluation evaluation, Evaluate(problem, choice));
  result.status = SolveStatus::kWorkLimit;
  result.peak_usage_bytes = evaluation.peak_usage_bytes;
  if (evaluation.feasible()) {
    result.choice = std::move(choice);
    result.cost = evaluation.cost;
    result.gap = result.cost == 0 ? 0
                                  : static_cast<double>(result.cost - result.lower_bound) /
                                        static_cast<double>(result.cost);
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  result.seconds_to_best = result.seconds;
  return result;
}

}  // namespace minka
