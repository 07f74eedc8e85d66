// Lower bounds of a core by sequential tree-reweighted message passing (TRW-S; Kolmogorov,
// "Convergent Tree-Reweighted Message Passing for Energy Minimization", PAMI 2006), with the memory
// limit relaxed into one price per time.
//
// Messages and prices are floating point and may be anything; Certify() turns them into a bound in
// integer arithmetic.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "minka/solver/bound/core_graph.h"

namespace minka {

// The cost of every choice within the limit, in units of 2^-shift, is at least
//   bound + sum of node_costs + sum over edges of (cell - message to a - message to b -
//   edge_minimum),
// and no term is negative: `bound` is a lower bound, and a partial choice raises it by its terms.
struct IntegerTerms {
  int shift = 0;
  __int128 bound = 0;                 // without the core's base cost
  std::vector<int64_t> node_costs;    // per choice
  std::vector<int64_t> messages;      // as CoreGraph numbers them
  std::vector<int64_t> edge_minimum;  // per core edge
  std::vector<int32_t> first_equal;   // per core edge: the first with equal table and messages
};

// Copies are cheap (messages, not tables); a copy is a snapshot for another thread.
class MessagePassing {
 public:
  // `graph` must outlive this.
  explicit MessagePassing(const CoreGraph& graph);

  // Cost per byte at every time, never negative.
  void SetPrices(std::span<const double> prices);
  std::span<const double> prices() const { return prices_; }

  // Messages of another solve, num_message_entries() of them; any values are valid.
  void SetMessages(std::vector<double> messages) {
    messages_ = std::move(messages);
    num_swept_ = 0;
  }

  // One sweep over all nodes in order and back, from messages moved on along the last sweep's
  // change by more with every sweep (Nesterov's momentum), anew once the bound has fallen
  // (O'Donoghue and Candes, "Adaptive Restart for Accelerated Gradient Schemes", FoCM 2015). That
  // takes a third to a tenth of the sweeps that TRW-S takes for the same bound, and does not come
  // to rest where it does. Returns the bound of the priced core in floating point.
  double Sweep();

  // The bound of the current messages and prices, proved: no choice of the core within the limit
  // costs less. Reads the cells of every edge once, of edges with equal tables and messages once
  // together.
  int64_t Certify() const;
  IntegerTerms Terms() const;

  // Costs of a node's choices with memory priced, without messages.
  std::span<const double> PricedCosts(int32_t node) const { return Part(priced_, node); }
  // Priced costs plus all incoming messages: what the bound says each choice costs.
  std::span<const double> MinMarginals(int32_t node) const { return Part(marginal_, node); }
  // The message that arrives along an arc of `graph`.
  const double* Incoming(const CoreGraph::Arc& arc) const { return messages_.data() + arc.in; }

  // Bytes over the limit at every time if each node takes choice k with probability proportional to
  // exp(-(min-marginal of k) / temperature).
  std::vector<double> ExpectedExcess(double temperature) const;

  const CoreGraph& graph() const { return graph_; }
  int64_t sweep_work() const { return 100 + graph_.num_cells() + 8 * graph_.total_choices(); }

 private:
  std::span<const double> Part(const std::vector<double>& values, int32_t node) const {
    return {values.data() + graph_.first_choice(node),
            static_cast<size_t>(graph_.num_choices(node))};
  }
  void AddMomentum();
  double Send(int32_t node, bool forward);
  void ReduceNode(int32_t node, const std::vector<__int128>& price_sums, IntegerTerms& terms) const;
  int64_t EdgeMinimum(const IntegerTerms& terms, int32_t edge) const;
  uint64_t HashOfEdge(const IntegerTerms& terms, int32_t edge) const;
  bool EdgesAreEqual(const IntegerTerms& terms, int32_t edge, int32_t other) const;

  const CoreGraph& graph_;
  std::vector<double> priced_;
  std::vector<double> marginal_;
  std::vector<double> messages_;
  std::vector<double> swept_;  // messages_ after the last sweep but one
  int num_swept_ = 0;          // sweeps since the momentum began anew
  double last_bound_ = 0;
  std::vector<double> prices_;
  std::vector<double> base_;   // scratch of Send
  double price_of_limit_ = 0;  // sum over times of price * limit
  int shift_ = 0;              // certified arithmetic counts in 2^-shift
};

}  // namespace minka
