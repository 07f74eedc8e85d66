// Improves a choice of a core by exact moves on small trees: a random tree of nodes is re-decided
// as a whole, best for the costs with memory at given prices, while everything else stays. Keeps
// the cheapest choice within the limit that it meets.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "minka/solver/bound/core_graph.h"
#include "minka/solver/improve/usage_profile.h"
#include "minka/solver/model/random.h"
#include "minka/solver/reduce/core_answer.h"

namespace minka {

class LocalSearch {
 public:
  // `graph` must outlive this.
  LocalSearch(const CoreGraph& graph, uint64_t seed);

  // Starts over from a choice, feasible or not.
  void Start(std::span<const int32_t> choice);

  // Price per byte and time that moves weigh memory with.
  void SetPrices(std::span<const double> prices);

  // Raises prices where memory is over the limit and moves the nodes that live there, until the
  // limit holds and nothing forbidden is used. False if `work` units were not enough; the prices
  // are kept raised either way.
  bool Repair(int64_t work);

  // Tree moves that keep the limit and never raise cost + price_weight * (price of memory), for
  // about `work` units. A temperature above 0 lets moves rise by about that much (perturb and
  // maximise: each choice of the tree is drawn with probability falling exponentially in its cost).
  struct ImproveOptions {
    double price_weight = 1;
    double temperature = 0;
    int32_t max_tree = 40;
    int64_t work = 0;
  };
  void Improve(const ImproveOptions& options);

  bool feasible() const { return num_forbidden_ == 0 && (usage_.Excess() <= 0); }
  const std::vector<int32_t>& choice() const { return choice_; }
  const std::optional<CoreAnswer>& best() const { return best_; }
  // Of the choices without forbidden entries that Repair met, the one with the smallest excess.
  const std::optional<std::vector<int32_t>>& least_excess() const { return least_excess_; }
  int64_t work() const { return work_; }

 private:
  struct TreeNode {
    int32_t node = 0;
    int32_t parent = -1;  // position in tree_
    const CoreGraph::Arc* to_parent = nullptr;
    const CoreGraph::Arc* from_parent = nullptr;
    int32_t first_entry = 0;  // of its choices in entries_
    int32_t chosen = 0;
  };

  void RecordIfBest();
  void GrowTree(int32_t seed, int32_t max_nodes);
  void AddTreeNode(int32_t node, int32_t parent, const CoreGraph::Arc* from_parent);
  double TreeCosts(double price_weight, double temperature);
  void SolveTree();
  bool ApplyTree(bool keep_limit);
  double CostOfTree();
  void RecordExcess();
  void RefreshPrice(int32_t node);
  int64_t CountForbidden() const;
  bool RaisePriceAtWorst();
  std::vector<int32_t> NodesAt(int32_t time) const;
  std::vector<int32_t> NodesWithForbidden() const;

  const CoreGraph& graph_;
  Random random_;
  std::vector<int32_t> choice_;
  UsageProfile usage_;
  int64_t num_forbidden_ = 0;
  std::vector<double> prices_;
  std::vector<double> price_sums_;
  std::vector<double> memory_price_;  // per choice, valid where price_stamp_ is current
  std::vector<int64_t> price_stamp_;  // per node
  int64_t current_stamp_ = 0;
  double price_step_ = 0;
  int32_t last_worst_ = -1;
  std::vector<TreeNode> tree_;
  std::vector<double> entries_;    // costs of the tree's choices given the rest, then with subtrees
  std::vector<double> own_costs_;  // the same before messages
  std::vector<int32_t> tree_position_;  // per node, -1 outside
  std::vector<int32_t> ties_to_tree_;   // per node: neighbours in the tree
  std::vector<int32_t> touched_;
  std::vector<double> message_;
  std::optional<CoreAnswer> best_;
  std::optional<std::vector<int32_t>> least_excess_;
  int64_t least_excess_bytes_ = 0;
  int64_t work_ = 0;
};

}  // namespace minka
