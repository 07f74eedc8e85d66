#include "minka/solver/bound/lift.h"

#include <algorithm>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "minka/solver/model/evaluate.h"

namespace minka {
namespace {

// Finds the arc between two nodes of the short problem in its core.
class ShortArcs {
 public:
  ShortArcs(const Reduction& reduction, const CoreGraph& graph)
      : reduction_(reduction), core_node_(reduction.num_problem_nodes, -1) {
    for (size_t n = 0; n < reduction.nodes.size(); ++n)
      core_node_[reduction.nodes[n]] = static_cast<int32_t>(n);
    for (int32_t n = 0; n < graph.num_nodes(); ++n)
      for (const CoreGraph::Arc& arc : graph.arcs(n)) arcs_.emplace(std::pair(n, arc.other), &arc);
  }

  // -1 if the node was reduced away.
  int32_t CoreNode(NodeId node) const { return node < 0 ? -1 : core_node_[node]; }
  const CoreGraph::Arc* Find(int32_t here, int32_t other) const {
    const auto found = arcs_.find(std::pair(here, other));
    return found == arcs_.end() ? nullptr : found->second;
  }
  std::span<const int64_t> Choices(int32_t core_node) const {
    return reduction_.core.algebra.row(reduction_.choices[core_node]);
  }

 private:
  const Reduction& reduction_;
  std::vector<int32_t> core_node_;
  absl::flat_hash_map<std::pair<int32_t, int32_t>, const CoreGraph::Arc*> arcs_;
};

}  // namespace

std::vector<double> LiftMessages(const ShortenedProblem& shortened,
                                 const Reduction& short_reduction,
                                 const MessagePassing& short_messages,
                                 const Reduction& long_reduction, const CoreGraph& long_graph) {
  const ShortArcs arcs(short_reduction, short_messages.graph());
  std::vector<double> messages(long_graph.num_message_entries(), 0);
  for (int32_t n = 0; n < long_graph.num_nodes(); ++n) {
    const NodeId node = long_reduction.nodes[n];
    const int32_t copy = arcs.CoreNode(shortened.ShortNode(node));
    if (copy < 0 || !std::ranges::equal(arcs.Choices(copy),
                                        long_reduction.core.algebra.row(long_reduction.choices[n])))
      continue;
    for (const CoreGraph::Arc& arc : long_graph.arcs(n)) {
      const NodeId other = shortened.ShortNeighbour(node, long_reduction.nodes[arc.other]);
      const CoreGraph::Arc* const short_arc = arcs.Find(copy, arcs.CoreNode(other));
      if (short_arc == nullptr) continue;
      std::copy_n(short_messages.Incoming(*short_arc), long_graph.num_choices(n),
                  messages.begin() + arc.in);
    }
  }
  return messages;
}

std::vector<int32_t> LiftChoice(const SolverProblem& problem, const ShortenedProblem& shortened,
                                const std::vector<int32_t>& short_choice) {
  // Behind the cut, and before it.
  constexpr int32_t kFirstBack = -1;
  constexpr int32_t kLastBack = 2;
  std::vector<int32_t> best;
  std::optional<std::pair<int64_t, int64_t>> best_cost;  // forbidden entries, cost
  for (int32_t back = kLastBack; back >= kFirstBack; --back) {
    std::vector<int32_t> choice(problem.num_nodes(), 0);
    bool found = true;
    for (NodeId n = 0; n < problem.num_nodes() && found; ++n) {
      const NodeId copy = shortened.ShortNode(n, back);
      found = copy >= 0;
      if (found) choice[n] = short_choice[copy];
    }
    if (!found) continue;
    const auto evaluation = Evaluate(problem, choice);
    if (!evaluation.ok()) continue;
    const std::pair<int64_t, int64_t> cost(evaluation->num_forbidden, evaluation->cost);
    if (best_cost && *best_cost <= cost) continue;
    best_cost = cost;
    best = std::move(choice);
  }
  return best;
}

}  // namespace minka
