#include "minka/solver/improve/variable_elimination.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "minka/base/check.h"
#include "minka/solver/reduce/transpose.h"

namespace minka {
namespace {

constexpr int64_t kMostCells = int64_t{1} << 24;  // of all tables together
constexpr int64_t kNever = int64_t{1} << 60;      // above every sum of allowed costs

int64_t Clamped(int64_t cost) { return std::min(cost, kNever); }

// Greedily the node whose elimination reads the smallest table.
class Order {
 public:
  explicit Order(const Core& core) : neighbours_(core.num_nodes()) {
    for (const CoreEdge& edge : core.edges) {
      neighbours_[edge.a].insert(edge.b);
      neighbours_[edge.b].insert(edge.a);
    }
    for (int32_t n = 0; n < core.num_nodes(); ++n)
      log_choices_.push_back(std::log2(core.num_choices(n)));
    for (int32_t n = 0; n < core.num_nodes(); ++n) {
      log_work_.push_back(LogWork(n));
      queue_.emplace(log_work_[n], n);
    }
  }

  // Whether elimination in nodes() takes at most that.
  bool Find(int64_t most_work) {
    double cells = 0;
    while (!queue_.empty()) {
      const auto [log_work, node] = *queue_.begin();
      queue_.erase(queue_.begin());
      nodes_.push_back(node);
      work_ += std::exp2(log_work);
      cells += std::exp2(log_work - log_choices_[node]);
      if (work_ > static_cast<double>(most_work) || cells > static_cast<double>(kMostCells))
        return false;
      Remove(node);
    }
    return true;
  }

  const std::vector<int32_t>& nodes() const { return nodes_; }
  int64_t work() const { return static_cast<int64_t>(work_); }

 private:
  double LogWork(int32_t node) const {
    double sum = log_choices_[node];
    for (const int32_t other : neighbours_[node]) sum += log_choices_[other];
    return sum;
  }

  void Remove(int32_t node) {
    // Sorted, so that sums of logarithms do not depend on the order of a hash table.
    const std::vector<int32_t> around(neighbours_[node].begin(), neighbours_[node].end());
    for (const int32_t a : around) {
      neighbours_[a].erase(node);
      for (const int32_t b : around)
        if (a != b) neighbours_[a].insert(b);
    }
    for (const int32_t a : around) {
      queue_.erase({log_work_[a], a});
      log_work_[a] = LogWork(a);
      queue_.emplace(log_work_[a], a);
    }
  }

  std::vector<std::set<int32_t>> neighbours_;
  std::vector<double> log_choices_;
  std::vector<double> log_work_;
  std::set<std::pair<double, int32_t>> queue_;
  std::vector<int32_t> nodes_;
  double work_ = 0;
};

// Costs of the joint choices of some nodes, those eliminated first varying fastest.
struct Factor {
  std::vector<int32_t> nodes;
  std::vector<int64_t> cells;
};

class Elimination {
 public:
  Elimination(const Core& core, const std::vector<int32_t>& order)
      : core_(core), order_(order), position_(core.num_nodes()), buckets_(core.num_nodes()) {
    for (size_t i = 0; i < order.size(); ++i) position_[order[i]] = static_cast<int32_t>(i);
    for (int32_t n = 0; n < core.num_nodes(); ++n) {
      const std::span<const int64_t> costs = core.costs(n);
      AddFactor({{n}, {costs.begin(), costs.end()}});
    }
    for (const CoreEdge& edge : core.edges) AddEdge(edge);
  }

  std::optional<CoreAnswer> Run() {
    int64_t cost = core_.base_cost;
    for (const int32_t node : order_) {
      Factor rest = Eliminate(node);
      if (!rest.nodes.empty()) {
        AddFactor(std::move(rest));
        continue;
      }
      if (rest.cells[0] >= kNever / 2) return std::nullopt;
      cost += rest.cells[0];
    }
    CoreAnswer answer = {std::vector<int32_t>(core_.num_nodes(), 0), cost};
    for (auto node = order_.rbegin(); node != order_.rend(); ++node)
      answer.choice[*node] = Cheapest(*node, answer.choice);
    return answer;
  }

 private:
  void AddEdge(const CoreEdge& edge) {
    const CostTable t = core_.algebra.table(edge.table);
    if (position_[edge.b] < position_[edge.a]) {
      AddFactor({{edge.b, edge.a}, {t.cells.begin(), t.cells.end()}});
      return;
    }
    std::vector<int64_t> cells(t.cells.size());
    Transpose(t.cells.data(), t.num_rows, t.num_columns, cells.data());
    AddFactor({{edge.a, edge.b}, std::move(cells)});
  }

  void AddFactor(Factor factor) {
    for (int64_t& cost : factor.cells) cost = Clamped(cost);
    std::vector<Factor>& bucket = buckets_[factor.nodes[0]];
    bucket.push_back(std::move(factor));
  }

  // The other nodes of a node's factors, those eliminated first in front.
  std::vector<int32_t> NodesAround(int32_t node) const {
    std::vector<int32_t> nodes;
    for (const Factor& factor : buckets_[node])
      nodes.insert(nodes.end(), factor.nodes.begin() + 1, factor.nodes.end());
    std::ranges::sort(nodes, {}, [&](int32_t n) { return position_[n]; });
    const auto repeated = std::ranges::unique(nodes);
    nodes.erase(repeated.begin(), repeated.end());
    return nodes;
  }

  // How far each of `nodes` moves in the factor's cells per choice; 0 where it is none of the
  // factor's.
  std::vector<int64_t> Strides(const Factor& factor, const std::vector<int32_t>& nodes) const {
    std::vector<int64_t> strides(nodes.size(), 0);
    int64_t stride = 1;
    for (const int32_t n : factor.nodes) {
      const auto it = std::ranges::find(nodes, n);
      if (it != nodes.end()) strides[it - nodes.begin()] = stride;
      stride *= core_.num_choices(n);
    }
    return strides;
  }

  // The least sum of the node's factors over its choices, for all choices of the nodes around.
  Factor Eliminate(int32_t node) const {
    const std::vector<Factor>& factors = buckets_[node];
    Factor rest = {.nodes = NodesAround(node), .cells = {}};
    const auto num_around = static_cast<int32_t>(rest.nodes.size());
    std::vector<std::vector<int64_t>> strides;
    for (const Factor& factor : factors) strides.push_back(Strides(factor, rest.nodes));
    int64_t size = 1;
    for (const int32_t n : rest.nodes) size *= core_.num_choices(n);
    rest.cells.reserve(size);
    const int32_t count = core_.num_choices(node);
    std::vector<int64_t> sums(count);
    std::vector<const int64_t*> at;
    for (const Factor& factor : factors) at.push_back(factor.cells.data());
    std::vector<int32_t> choice(num_around, 0);
    while (true) {
      std::copy_n(at[0], count, sums.begin());
      for (size_t f = 1; f < at.size(); ++f)
        for (int32_t k = 0; k < count; ++k) sums[k] = Clamped(sums[k] + at[f][k]);
      rest.cells.push_back(*std::ranges::min_element(sums));
      int32_t i = 0;
      for (; i < num_around; ++i) {
        const int32_t choices = core_.num_choices(rest.nodes[i]);
        const bool wraps = ++choice[i] == choices;
        const int64_t steps = wraps ? 1 - choices : 1;
        for (size_t f = 0; f < at.size(); ++f) at[f] += steps * strides[f][i];
        if (!wraps) break;
        choice[i] = 0;
      }
      if (i == num_around) return rest;
    }
  }

  int32_t Cheapest(int32_t node, const std::vector<int32_t>& choice) const {
    std::vector<int64_t> sums(core_.num_choices(node), 0);
    for (const Factor& factor : buckets_[node]) {
      int64_t offset = 0;
      int64_t stride = core_.num_choices(node);
      for (size_t i = 1; i < factor.nodes.size(); ++i) {
        offset += stride * choice[factor.nodes[i]];
        stride *= core_.num_choices(factor.nodes[i]);
      }
      for (size_t k = 0; k < sums.size(); ++k)
        sums[k] = Clamped(sums[k] + factor.cells[offset + k]);
    }
    return static_cast<int32_t>(std::ranges::min_element(sums) - sums.begin());
  }

  const Core& core_;
  const std::vector<int32_t>& order_;
  std::vector<int32_t> position_;             // in order_
  std::vector<std::vector<Factor>> buckets_;  // by the node of a factor that is eliminated first
};

}  // namespace

Eliminated SolveByElimination(const Core& core, int64_t most_work) {
  MINKA_CHECK(core.times.empty(), "memory is not eliminated");
  Order order(core);
  Eliminated eliminated = {.complete = order.Find(most_work)};
  eliminated.work = core.num_nodes() + (eliminated.complete ? order.work() : 0);
  if (eliminated.complete) eliminated.answer = Elimination(core, order.nodes()).Run();
  return eliminated;
}

}  // namespace minka
