#include "minka/solver/exact_search.h"

#include <algorithm>
#include <limits>

#include "minka/solver/usage_profile.h"

namespace minka {
namespace {

constexpr int64_t kNever = int64_t{1} << 60;
constexpr int64_t kMaxCells = 1 << 22;
constexpr int kNodesPerPoll = 256;

int64_t AddCapped(int64_t a, int64_t b) { return std::min(kNever, a + b); }

class ExactSearch {
 public:
  ExactSearch(const MessagePassing& messages, std::optional<int64_t> cost_to_beat, int64_t max_work,
              const std::function<bool()>& stop)
      : graph_(messages.graph()),
        terms_(messages.Terms()),
        usage_(graph_.core().limit_bytes),
        max_work_(max_work),
        stop_(stop),
        costs_(terms_.node_costs),
        decided_(graph_.num_nodes(), -1) {
    if (cost_to_beat) SetCostToBeat(*cost_to_beat);
    bound_ = terms_.bound;  // node minima are zero except where rounding left something
    for (int32_t node = 0; node < graph_.num_nodes(); ++node) bound_ += Least(node);
    OrderNodes();
  }

  ExactOutcome Run() {
    outcome_.complete = graph_.num_cells() <= kMaxCells && Descend(0);
    return std::move(outcome_);
  }

 private:
  void SetCostToBeat(int64_t cost) {
    limit_ = (static_cast<__int128>(cost - graph_.core().base_cost) - 1) << terms_.shift;
    limited_ = true;
  }

  int64_t Least(int32_t node) const {
    const auto first = costs_.begin() + graph_.first_choice(node);
    return *std::min_element(first, first + graph_.num_choices(node));
  }

  // Next comes the node with the most decided neighbours, so that its costs are known best.
  void OrderNodes() {
    std::vector<int32_t> ties(graph_.num_nodes(), 0);
    std::vector<char> ordered(graph_.num_nodes(), 0);
    for (int32_t i = 0; i < graph_.num_nodes(); ++i) {
      int32_t next = -1;
      for (int32_t node = 0; node < graph_.num_nodes(); ++node)
        if (!ordered[node] && (next < 0 || ties[node] > ties[next])) next = node;
      ordered[next] = 1;
      order_.push_back(next);
      for (const CoreGraph::Arc& arc : graph_.arcs(next)) ++ties[arc.other];
    }
  }

  // Whether everything below was covered.
  bool Descend(size_t depth) {
    if (++visited_ % kNodesPerPoll == 0 && stop_()) return false;
    if (outcome_.work > max_work_) return false;
    if (depth == order_.size()) {
      Record();
      return true;
    }
    const int32_t node = order_[depth];
    std::vector<int32_t> choices(graph_.num_choices(node));
    const int64_t* const costs = costs_.data() + graph_.first_choice(node);
    for (size_t k = 0; k < choices.size(); ++k) choices[k] = static_cast<int32_t>(k);
    std::ranges::stable_sort(choices, {}, [&](int32_t k) { return costs[k]; });
    const __int128 bound = bound_;
    const int64_t least = costs[choices[0]];
    for (const int32_t k : choices) {
      if (costs[k] >= kNever) break;
      bound_ = bound - least + costs[k];
      if (limited_ && bound_ > limit_) break;
      if (!Take(depth, node, k)) return false;
    }
    bound_ = bound;
    return true;
  }

  bool Take(size_t depth, int32_t node, int32_t k) {
    usage_.Move(graph_.core(), node, -1, k);
    bool covered = true;
    if (graph_.core().limit_bytes.empty() || usage_.Excess() <= 0) {
      const size_t mark = saved_.size();
      decided_[node] = k;
      const bool alive = TellNeighbours(node, k);
      if (alive && !(limited_ && bound_ > limit_)) covered = Descend(depth + 1);
      Untell(node, mark);
      decided_[node] = -1;
    }
    usage_.Move(graph_.core(), node, k, -1);
    return covered;
  }

  // Adds the edges' terms to undecided neighbours; false if one of them has no choice left.
  bool TellNeighbours(int32_t node, int32_t k) {
    for (const CoreGraph::Arc& arc : graph_.arcs(node)) {
      if (decided_[arc.other] >= 0) continue;
      const int32_t count = graph_.num_choices(arc.other);
      int64_t* const costs = costs_.data() + graph_.first_choice(arc.other);
      saved_.insert(saved_.end(), costs, costs + count);
      bound_ -= *std::min_element(costs, costs + count);
      for (int32_t j = 0; j < count; ++j) costs[j] = AddCapped(costs[j], EdgeTerm(arc, k, j));
      const int64_t least = *std::min_element(costs, costs + count);
      outcome_.work += count;
      bound_ += least;
      if (least >= kNever) return false;
    }
    return true;
  }

  // Restores in reverse what TellNeighbours saved since `mark`.
  void Untell(int32_t node, size_t mark) {
    size_t at = mark;
    for (const CoreGraph::Arc& arc : graph_.arcs(node)) {
      if (decided_[arc.other] >= 0 || at == saved_.size()) continue;
      const int32_t count = graph_.num_choices(arc.other);
      std::copy_n(saved_.begin() + static_cast<int64_t>(at), count,
                  costs_.begin() + graph_.first_choice(arc.other));
      at += count;
    }
    saved_.resize(mark);
  }

  int64_t EdgeTerm(const CoreGraph::Arc& arc, int32_t here, int32_t there) const {
    const CoreEdge& edge = graph_.core().edges[arc.edge];
    const CostTable t = graph_.core().algebra.table(edge.table);
    const int64_t cell = edge.b == arc.other ? t.at(here, there) : t.at(there, here);
    if (cell == kForbidden) return kNever;
    return (cell << terms_.shift) - terms_.messages[arc.in + here] -
           terms_.messages[arc.out + there] - terms_.edge_minimum[arc.edge];
  }

  void Record() {
    const std::optional<int64_t> cost = CoreCost(graph_.core(), decided_);
    if (!cost || (outcome_.answer && outcome_.answer->cost <= *cost)) return;
    outcome_.answer = {decided_, *cost};
    SetCostToBeat(*cost);
  }

  const CoreGraph& graph_;
  IntegerTerms terms_;
  UsageProfile usage_;
  const int64_t max_work_;
  const std::function<bool()>& stop_;
  std::vector<int64_t> costs_;  // node terms plus those of edges to decided neighbours
  std::vector<int64_t> saved_;
  std::vector<int32_t> order_;
  std::vector<int32_t> decided_;
  __int128 bound_ = 0;
  __int128 limit_ = 0;  // bounds above this cannot beat the cost
  bool limited_ = false;
  int64_t visited_ = 0;
  ExactOutcome outcome_;
};

}  // namespace

ExactOutcome SearchExactly(const MessagePassing& messages, std::optional<int64_t> cost_to_beat,
                           int64_t max_work, const std::function<bool()>& stop) {
  return ExactSearch(messages, cost_to_beat, max_work, stop).Run();
}

}  // namespace minka
