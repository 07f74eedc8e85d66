// A core as floating-point arrays that sweeps and local search walk over. Immutable; shared by
// threads.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "minka/solver/reduce/core.h"

namespace minka {

// Above every sum of costs, so that a minimum over nothing but forbidden entries stays finite.
inline constexpr double kHugeCost = 1e25;

// Where an edge's messages begin, of num_message_entries().
struct EdgeMessages {
  int64_t to_a = 0;
  int64_t to_b = 0;
};

class CoreGraph {
 public:
  // An edge as one of its nodes ("here") sees it. Forbidden cells are infinite.
  struct Arc {
    int32_t other = 0;
    int32_t edge = 0;                          // in core().edges
    const double* from_here = nullptr;         // cells with this node's choices as rows
    const double* to_here = nullptr;           // the same, transposed
    const int64_t* exact_from_here = nullptr;  // as from_here, in integers; kForbidden stays
    const int64_t* exact_to_here = nullptr;
    int64_t in = 0;   // first entry of the message to this node, of num_message_entries()
    int64_t out = 0;  // and of the message to the other
  };

  // `core` must outlive this.
  explicit CoreGraph(const Core& core);
  CoreGraph(const CoreGraph&) = delete;
  CoreGraph& operator=(const CoreGraph&) = delete;

  const Core& core() const { return core_; }
  int32_t num_nodes() const { return static_cast<int32_t>(first_choice_.size()) - 1; }
  int32_t num_choices(int32_t node) const { return first_choice_[node + 1] - first_choice_[node]; }
  // Where a node's choices begin in arrays over all choices.
  int32_t first_choice(int32_t node) const { return first_choice_[node]; }
  int32_t total_choices() const { return first_choice_.back(); }
  std::span<const double> costs() const { return costs_; }
  std::span<const double> costs(int32_t node) const {
    return {costs_.data() + first_choice_[node], static_cast<size_t>(num_choices(node))};
  }
  // In which sweeps visit the nodes: breadth first from an end of the graph, as bounds rise sooner
  // then than in the order of the problem, where far nodes (a layer and its gradient) are
  // neighbours.
  std::span<const int32_t> order() const { return order_; }
  // Where a node is in order().
  int32_t rank(int32_t node) const { return rank_[node]; }
  // Arcs to nodes of lower rank come first.
  std::span<const Arc> arcs(int32_t node) const {
    return {arcs_.data() + first_arc_[node],
            static_cast<size_t>(first_arc_[node + 1] - first_arc_[node])};
  }
  EdgeMessages edge_messages(int32_t edge) const { return edge_messages_[edge]; }
  int32_t num_backward_arcs(int32_t node) const { return num_backward_[node]; }
  // About what a change of the node's choice costs in a UsageProfile, in work units.
  int64_t move_work(int32_t node) const { return move_work_[node]; }
  int64_t num_message_entries() const { return num_message_entries_; }
  int64_t num_cells() const { return num_cells_; }
  // Sum over nodes and edges of the largest absolute allowed cost.
  double largest_sum() const { return largest_sum_; }

 private:
  void LayOutNodes();
  void LayOutTables();
  void LayOutArcs();
  void OrderNodes();

  const Core& core_;
  std::vector<int32_t> first_choice_;
  std::vector<double> costs_;
  std::vector<double> cells_;
  std::vector<int64_t> exact_transposed_;
  std::vector<int64_t> first_cell_;              // per table, -1 if unused
  std::vector<int64_t> first_transposed_cell_;   // per table
  std::vector<int64_t> first_exact_transposed_;  // per table
  std::vector<int32_t> order_;
  std::vector<int32_t> rank_;
  std::vector<Arc> arcs_;
  std::vector<int32_t> first_arc_;
  std::vector<int32_t> num_backward_;
  std::vector<EdgeMessages> edge_messages_;
  std::vector<int64_t> move_work_;
  int64_t num_message_entries_ = 0;
  int64_t num_cells_ = 0;
  double largest_sum_ = 1;
};

// All nodes, breadth first from one; those that it does not lead to come last.
std::vector<int32_t> BreadthFirst(const CoreGraph& graph, int32_t first);

// out[j] = min over i of in[i] + cells[i][j], at most kHugeCost.
void MinPlus(const double* in, const double* cells, int32_t rows, int32_t columns, double* out);

// Sums over times, so that the price of a range is sums[end] - sums[begin]; one longer than
// `prices`.
std::vector<double> PriceSums(std::span<const double> prices);

// Adds the price of a node's memory to the costs of its choices; `price_sums` as PriceSums gives
// them.
void AddMemoryPrice(const Core& core, int32_t node, std::span<const double> price_sums,
                    std::span<double> costs);

}  // namespace minka
