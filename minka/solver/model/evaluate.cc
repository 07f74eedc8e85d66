#include "minka/solver/model/evaluate.h"

#include <algorithm>

#include "minka/base/status.h"

namespace minka {

absl::StatusOr<Evaluation> Evaluate(const SolverProblem& problem, std::span<const int32_t> choice) {
  if (static_cast<int32_t>(choice.size()) != problem.num_nodes())
    return InvalidArgument("the solution has {} entries for {} nodes", choice.size(),
                           problem.num_nodes());
  Evaluation evaluation;
  const auto add = [&evaluation](int64_t cost, int64_t multiplicity) {
    if (cost == kForbidden)
      ++evaluation.num_forbidden;
    else
      evaluation.cost += cost * multiplicity;
  };
  for (NodeId node = 0; node < problem.num_nodes(); ++node) {
    if (choice[node] < 0 || choice[node] >= problem.num_choices(node))
      return InvalidArgument("the solution gives {} choice {}, but it has {} choices",
                             problem.node_name(node), choice[node], problem.num_choices(node));
    add(problem.costs(node)[choice[node]], problem.multiplicity(node));
  }
  for (const ProblemEdge& edge : problem.edges())
    add(problem.EdgeCost(edge, choice[edge.a], choice[edge.b]), edge.multiplicity);
  for (const UsageStep& step : UsageOverTime(problem, choice)) {
    if (step.bytes > evaluation.peak_usage_bytes) {
      evaluation.peak_usage_bytes = step.bytes;
      evaluation.peak_time = step.time;
    }
  }
  const std::optional<int64_t> limit = problem.usage_limit();
  evaluation.within_limit = !limit || evaluation.peak_usage_bytes <= *limit;
  return evaluation;
}

std::vector<UsageStep> UsageOverTime(const SolverProblem& problem,
                                     std::span<const int32_t> choice) {
  std::vector<UsageStep> changes;
  for (size_t u = 0; u < problem.usages().size(); ++u) {
    const NodeUsage& usage = problem.usages()[u];
    if (usage.interval.end <= usage.interval.begin) continue;
    const int64_t bytes = problem.usage_row(usage.row)[choice[problem.usage_node(u)]];
    if (bytes == 0) continue;
    changes.push_back({usage.interval.begin, bytes});
    changes.push_back({usage.interval.end, -bytes});
  }
  std::ranges::sort(changes, {}, &UsageStep::time);
  std::vector<UsageStep> steps;
  int64_t bytes = 0;
  for (size_t i = 0; i < changes.size(); ++i) {
    bytes += changes[i].bytes;
    if (i + 1 < changes.size() && changes[i + 1].time == changes[i].time) continue;
    steps.push_back({changes[i].time, bytes});
  }
  return steps;
}

}  // namespace minka
