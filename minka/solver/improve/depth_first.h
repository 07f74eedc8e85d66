// Depth-first branch and bound over some nodes of a core while the others stay: the search behind
// whole_core.h and neighbourhoods.h.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "minka/solver/bound/message_passing.h"
#include "minka/solver/improve/usage_profile.h"
#include "minka/solver/reduce/core_answer.h"

namespace minka {

struct ExactOutcome {
  // The whole space was covered: `answer`, or else the given cost, is optimal; without either there
  // is no feasible choice.
  bool complete = false;
  // Cheaper than the given cost.
  std::optional<CoreAnswer> answer;
  int64_t work = 0;
};

// The times at which memory is checked step by step; the others are checked for whole choices only.
// Learned: a time joins when a whole choice breaks its limit.
class HotTimes {
 public:
  explicit HotTimes(const CoreGraph& graph) : graph_(graph), of_node_(graph.num_nodes()) {}
  // Nothing if it is hot already.
  void Add(int32_t time);
  size_t size() const { return times_.size(); }
  int64_t limit_bytes(size_t hot) const { return graph_.core().limit_bytes[times_[hot]]; }
  // A hot time at which a node uses memory.
  struct Use {
    size_t hot = 0;
    std::vector<int64_t> bytes;  // by choice
  };
  // Ascending.
  std::span<const Use> of_node(int32_t node) const { return of_node_[node]; }

 private:
  const CoreGraph& graph_;
  std::vector<int32_t> times_;
  std::vector<std::vector<Use>> of_node_;
};

// The integer terms of a bound, and what they add up to for one choice. kNever stands for
// forbidden.
inline constexpr int64_t kNever = int64_t{1} << 60;

inline int64_t AddCapped(int64_t a, int64_t b) { return std::min(kNever, a + b); }

// costs[j] += (cells[j] << shift) - messages[j] - constant, capped at kNever.
void AddTerms(const int64_t* cells, const int64_t* messages, int32_t count, int shift,
              int64_t constant, int64_t* costs);

class BoundTerms {
 public:
  explicit BoundTerms(const MessagePassing& messages)
      : graph_(messages.graph()), terms_(messages.Terms()) {}

  const CoreGraph& graph() const { return graph_; }
  const IntegerTerms& terms() const { return terms_; }
  const int64_t* NodeCosts(int32_t node) const {
    return terms_.node_costs.data() + graph_.first_choice(node);
  }

  int64_t EdgeTerm(const CoreGraph::Arc& arc, int32_t here, int32_t there) const {
    const int64_t cell =
        arc.exact_from_here[static_cast<size_t>(here) * graph_.num_choices(arc.other) + there];
    if (cell == kForbidden) return kNever;
    return (cell << terms_.shift) - terms_.messages[arc.in + here] -
           terms_.messages[arc.out + there] - terms_.edge_minimum[arc.edge];
  }

  // Adds the edge's terms to the costs of the other node's choices, given the choice here.
  void AddTermsThere(const CoreGraph::Arc& arc, int32_t here, int64_t* costs) const {
    const int32_t count = graph_.num_choices(arc.other);
    AddTerms(arc.exact_from_here + static_cast<size_t>(here) * count,
             terms_.messages.data() + arc.out, count, terms_.shift,
             terms_.messages[arc.in + here] + terms_.edge_minimum[arc.edge], costs);
  }
  // Adds them to the costs of this node's choices, given the choice there.
  void AddTermsHere(const CoreGraph::Arc& arc, int32_t node, int32_t there, int64_t* costs) const {
    const int32_t count = graph_.num_choices(node);
    AddTerms(arc.exact_to_here + static_cast<size_t>(there) * count,
             terms_.messages.data() + arc.in, count, terms_.shift,
             terms_.messages[arc.out + there] + terms_.edge_minimum[arc.edge], costs);
  }

  // What the node and its edges add to the bound.
  int64_t Slack(std::span<const int32_t> choice, int32_t node) const {
    int64_t slack = NodeCosts(node)[choice[node]];
    for (const CoreGraph::Arc& arc : graph_.arcs(node))
      slack = AddCapped(slack, EdgeTerm(arc, choice[node], choice[arc.other]));
    return slack;
  }

  __int128 Bound(std::span<const int32_t> choice) const {
    __int128 bound = terms_.bound;
    for (int32_t node = 0; node < graph_.num_nodes(); ++node) {
      bound += NodeCosts(node)[choice[node]];
      for (const CoreGraph::Arc& arc : graph_.arcs(node).first(graph_.num_backward_arcs(node)))
        bound += EdgeTerm(arc, choice[node], choice[arc.other]);
    }
    return bound;
  }

 private:
  const CoreGraph& graph_;
  IntegerTerms terms_;
};

class DepthFirst {
 public:
  // Both must outlive this; `hot_times` learns.
  DepthFirst(const BoundTerms& bound_terms, HotTimes& hot_times);

  // All nodes take their choice in `choice`, which must be within the limit, until SearchRegion
  // frees some.
  void Fix(std::span<const int32_t> choice);

  // Over all nodes; anything feasible beats an unset cost.
  ExactOutcome SearchAll(std::optional<int64_t> cost_to_beat, int64_t max_work,
                         const std::function<bool()>& stop);

  // Over `region` only; afterwards its nodes are back where Fix put them.
  ExactOutcome SearchRegion(std::span<const int32_t> region, int64_t cost_to_beat, int64_t max_work,
                            const std::function<bool()>& stop);

 private:
  ExactOutcome Search(std::span<const int32_t> nodes, std::optional<int64_t> cost_to_beat,
                      int64_t max_work, const std::function<bool()>& stop);
  void SetCostToBeat(int64_t cost);
  void PriceAgainstDecided(int32_t node);
  int64_t Least(int32_t node) const;
  void OrderNodes(std::span<const int32_t> nodes);
  bool Descend(size_t depth);
  bool Take(size_t depth, int32_t node, int32_t k);
  bool TellNeighbours(int32_t node, int32_t k);
  void Untell(int32_t node, size_t mark);
  void Finish();
  bool FitsHotTimes(int32_t node, int32_t k) const;
  void UseHotTimes(int32_t node, int32_t k, int64_t sign);

  const BoundTerms& bound_terms_;
  HotTimes& hot_times_;
  const CoreGraph& graph_;
  UsageProfile usage_;              // of the nodes decided before the search
  std::vector<int64_t> hot_bytes_;  // in use at each hot time
  int64_t max_work_ = 0;
  const std::function<bool()>* stop_ = nullptr;
  std::vector<int64_t>
      costs_;  // of undecided nodes: their terms plus those of edges to decided neighbours
  std::vector<int64_t> saved_;
  std::vector<int32_t> order_;
  std::vector<int32_t> ties_;
  std::vector<int32_t> places_;
  std::vector<int32_t> decided_;
  __int128 fixed_bound_ = 0;  // of everything decided before the search
  __int128 bound_ = 0;
  __int128 limit_ = 0;  // bounds above this cannot beat the cost
  bool limited_ = false;
  int64_t visited_ = 0;
  ExactOutcome outcome_;
};

}  // namespace minka
