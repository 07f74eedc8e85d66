#include "minka/solver/reduce/reduce.h"

#include <algorithm>
#include <array>
#include <deque>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "minka/base/check.h"
#include "minka/solver/reduce/binding_times.h"

namespace minka {
namespace {

// Larger nodes are not compared choice by choice: quadratic in choices times neighbours' choices.
constexpr int32_t kMaxDominanceChoices = 160;

// A visit reads all edges of a node, so nodes with more wait until their neighbours have changed.
constexpr size_t kManyEdges = 64;

struct WorkEdge {
  NodeId a = 0;
  NodeId b = 0;
  TableId table = 0;  // rows: a's choices
  bool alive = true;
};

struct WorkNode {
  bool alive = true;
  bool queued = false;
  bool has_dead_edges = false;
  RowId costs = 0;
  RowId choices = 0;
  std::vector<int32_t> edges;  // dead ones are skipped
  std::vector<std::pair<RowId, TimeRange>> usages;
};

class Reducer {
 public:
  explicit Reducer(const ReduceOptions& options) : options_(options) {}

  void Load(const SolverProblem& problem) {
    AddTimes(problem);
    AddNodes(problem);
    AddEdges(problem);
  }

  void Load(const Core& core, const std::vector<std::vector<int64_t>>& choices) {
    core_.base_cost = core.base_cost;
    const std::vector<int32_t> time_of_time = AddTimes(core, choices);
    AddNodes(core, choices, time_of_time);
    AddEdges(core, choices);
  }

  Reduction Run() {
    const auto num_nodes = static_cast<NodeId>(nodes_.size());
    for (NodeId n = 0; n < num_nodes; ++n) Enqueue(n);
    Drain(/*eliminate=*/false);
    // Elimination hides what dominance and followers would still find, so it comes after they came
    // to rest.
    if (options_.elimination && !core_.infeasible) {
      for (NodeId n = 0; n < num_nodes; ++n) Enqueue(n);
      Drain(/*eliminate=*/true);
    }
    return Finish();
  }

 private:
  void AddTimes(const SolverProblem& problem) {
    if (!problem.usage_limit()) return;
    std::vector<UsageBounds> bounds;
    for (const NodeUsage& usage : problem.usages()) {
      const auto [least, most] = std::ranges::minmax(problem.usage_row(usage.row));
      bounds.push_back({usage.interval, least, most});
    }
    core_.times = BindingTimes(bounds, *problem.usage_limit());
    core_.limit_bytes.assign(core_.times.size(), *problem.usage_limit());
  }

  void AddNodes(const SolverProblem& problem) {
    TableAlgebra& algebra = core_.algebra;
    nodes_.resize(problem.num_nodes());
    for (NodeId n = 0; n < problem.num_nodes(); ++n) {
      nodes_[n].costs = algebra.ScaleRow(algebra.AddRow(problem.costs(n)), problem.multiplicity(n));
      nodes_[n].choices = AllChoices(problem.num_choices(n));
    }
    if (core_.times.empty()) return;
    std::vector<RowId> rows;
    for (RowId r = 0; r < problem.num_usage_rows(); ++r)
      rows.push_back(algebra.AddRow(problem.usage_row(r)));
    for (size_t u = 0; u < problem.usages().size(); ++u) {
      const TimeRange range = RangeOfTimes(core_.times, problem.usages()[u].interval);
      if (range.begin < range.end)
        nodes_[problem.usage_node(u)].usages.emplace_back(rows[problem.usages()[u].row], range);
    }
  }

  // Keeps the times that the choices left can still exceed; the new position of each time, or of
  // the next one kept.
  std::vector<int32_t> AddTimes(const Core& core,
                                const std::vector<std::vector<int64_t>>& choices) {
    std::vector<int64_t> change(core.limit_bytes.size() + 1, 0);
    for (int32_t n = 0; n < core.num_nodes(); ++n) {
      for (const CoreUsage& usage : core.usages[n]) {
        int64_t most = 0;
        for (const int64_t k : choices[n]) most = std::max(most, core.algebra.row(usage.row)[k]);
        for (const TimeRange& range : usage.ranges) {
          change[range.begin] += most;
          change[range.end] -= most;
        }
      }
    }
    std::vector<int32_t> time_of_time(change.size(), 0);
    int64_t most = 0;
    for (size_t t = 0; t < core.limit_bytes.size(); ++t) {
      most += change[t];
      if (most > core.limit_bytes[t]) {
        core_.times.push_back(core.times[t]);
        core_.limit_bytes.push_back(core.limit_bytes[t]);
      }
      time_of_time[t + 1] = static_cast<int32_t>(core_.times.size());
    }
    return time_of_time;
  }

  void AddNodes(const Core& core, const std::vector<std::vector<int64_t>>& choices,
                const std::vector<int32_t>& time_of_time) {
    nodes_.resize(core.num_nodes());
    const auto picked = [&](RowId row, int32_t n) {
      std::vector<int64_t> values;
      for (const int64_t k : choices[n]) values.push_back(core.algebra.row(row)[k]);
      return core_.algebra.AddRow(values);
    };
    for (int32_t n = 0; n < core.num_nodes(); ++n) {
      if (choices[n].empty()) core_.infeasible = true;
      nodes_[n].costs = picked(core.cost_rows[n], n);
      nodes_[n].choices = core_.algebra.AddRow(choices[n]);
      for (const CoreUsage& usage : core.usages[n]) {
        const RowId row = picked(usage.row, n);
        for (const TimeRange& range : usage.ranges) {
          const TimeRange left = {time_of_time[range.begin], time_of_time[range.end]};
          if (left.begin < left.end) nodes_[n].usages.emplace_back(row, left);
        }
      }
    }
  }

  void AddEdges(const Core& core, const std::vector<std::vector<int64_t>>& choices) {
    absl::flat_hash_map<std::array<int32_t, 3>, TableId> known;
    std::vector<int64_t> cells;
    for (const CoreEdge& edge : core.edges) {
      const auto [found, added] = known.try_emplace(
          std::array{edge.table, nodes_[edge.a].choices, nodes_[edge.b].choices}, -1);
      if (added) {
        const CostTable t = core.algebra.table(edge.table);
        cells.clear();
        for (const int64_t i : choices[edge.a])
          for (const int64_t j : choices[edge.b])
            cells.push_back(t.at(static_cast<int32_t>(i), static_cast<int32_t>(j)));
        found->second = core_.algebra.AddTable(static_cast<int32_t>(choices[edge.a].size()),
                                               static_cast<int32_t>(choices[edge.b].size()), cells);
      }
      Connect(edge.a, edge.b, found->second);
    }
  }

  void AddEdges(const SolverProblem& problem) {
    TableAlgebra& algebra = core_.algebra;
    std::vector<TableId> tables(problem.num_tables(), -1);
    for (const ProblemEdge& edge : problem.edges()) {
      if (tables[edge.table] < 0) {
        const CostTable t = problem.table(edge.table);
        tables[edge.table] = algebra.AddTable(t.num_rows, t.num_columns, t.cells);
      }
      TableId table = algebra.Scale(tables[edge.table], edge.multiplicity);
      if (edge.transposed) table = algebra.Transpose(table);
      Connect(edge.a, edge.b, table);
    }
  }

  RowId AllChoices(int32_t count) {
    std::vector<int64_t> all(count);
    std::iota(all.begin(), all.end(), 0);
    return core_.algebra.AddRow(all);
  }

  int32_t NumChoices(NodeId n) const {
    return static_cast<int32_t>(core_.algebra.row(nodes_[n].costs).size());
  }

  void Enqueue(NodeId n) {
    if (!nodes_[n].alive || nodes_[n].queued) return;
    nodes_[n].queued = true;
    (nodes_[n].edges.size() > kManyEdges ? hubs_ : queue_).push_back(n);
  }

  void EnqueueAround(NodeId n) {
    Enqueue(n);
    for (const int32_t e : nodes_[n].edges)
      if (edges_[e].alive) Enqueue(Other(edges_[e], n));
  }

  static NodeId Other(const WorkEdge& edge, NodeId n) { return edge.a == n ? edge.b : edge.a; }

  // The edge's table with n's choices as rows.
  TableId TableFrom(const WorkEdge& edge, NodeId n) {
    return edge.a == n ? edge.table : core_.algebra.Transpose(edge.table);
  }

  void Connect(NodeId a, NodeId b, TableId table) {
    if (a > b) {
      std::swap(a, b);
      table = core_.algebra.Transpose(table);
    }
    const auto [it, added] =
        edge_of_pair_.try_emplace(std::make_pair(a, b), static_cast<int32_t>(edges_.size()));
    if (!added && edges_[it->second].alive) {
      WorkEdge& edge = edges_[it->second];
      edge.table = core_.algebra.Sum(edge.table, table);
      return;
    }
    it->second = static_cast<int32_t>(edges_.size());
    nodes_[a].edges.push_back(it->second);
    nodes_[b].edges.push_back(it->second);
    edges_.push_back({a, b, table, true});
  }

  const std::vector<int32_t>& LiveEdges(NodeId n) {
    WorkNode& node = nodes_[n];
    if (std::exchange(node.has_dead_edges, false))
      std::erase_if(node.edges, [&](int32_t e) { return !edges_[e].alive; });
    return node.edges;
  }

  void Kill(int32_t e) {
    edges_[e].alive = false;
    nodes_[edges_[e].a].has_dead_edges = true;
    nodes_[edges_[e].b].has_dead_edges = true;
  }

  void Drain(bool eliminate) {
    while (!core_.infeasible && !(queue_.empty() && hubs_.empty())) {
      std::deque<NodeId>& queue = queue_.empty() ? hubs_ : queue_;
      const NodeId n = queue.front();
      queue.pop_front();
      nodes_[n].queued = false;
      if (nodes_[n].alive) Visit(n, eliminate);
    }
  }

  // Applies the first rule that changes something; a changed node is queued again.
  void Visit(NodeId n, bool eliminate) {
    if (DropChoices(n)) return;
    if (NumChoices(n) == 1) return Fix(n);
    if (DropSeparableEdges(n)) return;
    if (options_.followers && MergeFollower(n)) return;
    if (options_.dominance && DropDominated(n)) return;
    if (eliminate) Eliminate(n);
  }

  // Keeps the listed positions of n's choices.
  void Keep(NodeId n, const std::vector<int64_t>& positions) {
    if (positions.empty()) {
      core_.infeasible = true;
      return;
    }
    TableAlgebra& algebra = core_.algebra;
    const RowId picks = algebra.AddRow(positions);
    WorkNode& node = nodes_[n];
    node.costs = algebra.PickEntries(node.costs, picks);
    node.choices = algebra.PickEntries(node.choices, picks);
    for (auto& [row, range] : node.usages) row = algebra.PickEntries(row, picks);
    for (const int32_t e : LiveEdges(n)) {
      WorkEdge& edge = edges_[e];
      const TableId picked = algebra.PickRows(TableFrom(edge, n), picks);
      edge.table = edge.a == n ? picked : algebra.Transpose(picked);
    }
    EnqueueAround(n);
  }

  // Forbidden ones, and those without support on some edge.
  bool DropChoices(NodeId n) {
    if (AllowsAll(n)) return false;
    const auto costs = core_.algebra.row(nodes_[n].costs);
    std::vector<bool> kept(costs.size());
    for (size_t k = 0; k < costs.size(); ++k) kept[k] = costs[k] != kForbidden;
    if (options_.arc_consistency) {
      for (const int32_t e : LiveEdges(n)) {
        const TableTraits& traits = core_.algebra.Traits(TableFrom(edges_[e], n));
        if (traits.all_rows_supported) continue;
        for (size_t k = 0; k < kept.size(); ++k) kept[k] = kept[k] && traits.row_has_support[k];
      }
    }
    std::vector<int64_t> positions;
    for (size_t k = 0; k < kept.size(); ++k)
      if (kept[k]) positions.push_back(static_cast<int64_t>(k));
    Keep(n, positions);
    return true;
  }

  bool AllowsAll(NodeId n) {
    if (core_.algebra.HasForbidden(nodes_[n].costs)) return false;
    if (!options_.arc_consistency) return true;
    return std::ranges::all_of(LiveEdges(n), [&](int32_t e) {
      return core_.algebra.Traits(TableFrom(edges_[e], n)).all_rows_supported;
    });
  }

  void AddToCosts(NodeId n, std::span<const int64_t> costs) {
    nodes_[n].costs = core_.algebra.SumRows(nodes_[n].costs, core_.algebra.AddRow(costs));
    Enqueue(n);
  }

  void Cut(int32_t e) {
    Kill(e);
    Enqueue(edges_[e].a);
    Enqueue(edges_[e].b);
  }

  void Remove(NodeId n, std::vector<Undo::Neighbour> neighbours) {
    undos_.push_back({n, nodes_[n].choices, nodes_[n].costs, std::move(neighbours)});
    nodes_[n].alive = false;
  }

  // The only choice is taken: its cost is paid, its memory leaves the limit, its edges become costs
  // of the neighbours.
  void Fix(NodeId n) {
    core_.base_cost += core_.algebra.row(nodes_[n].costs)[0];
    for (const auto& [row, range] : nodes_[n].usages) Charge(core_.algebra.row(row)[0], range);
    for (const int32_t e : LiveEdges(n)) {
      const CostTable t = core_.algebra.table(TableFrom(edges_[e], n));
      const std::vector<int64_t> costs(t.cells.begin(), t.cells.end());
      AddToCosts(Other(edges_[e], n), costs);
      Cut(e);
    }
    Remove(n, {});
  }

  void Charge(int64_t bytes, TimeRange range) {
    for (int32_t t = range.begin; t < range.end; ++t) core_.limit_bytes[t] -= bytes;
  }

  bool DropSeparableEdges(NodeId n) {
    bool dropped = false;
    for (const int32_t e : LiveEdges(n)) {
      const WorkEdge edge = edges_[e];
      const TableTraits& traits = core_.algebra.Traits(edge.table);
      if (traits.row_part.empty()) continue;
      AddToCosts(edge.a, traits.row_part);
      AddToCosts(edge.b, traits.column_part);
      Cut(e);
      dropped = true;
    }
    if (dropped) Enqueue(n);
    return dropped;
  }

  bool MergeFollower(NodeId n) {
    for (const int32_t e : LiveEdges(n)) {
      const NodeId other = Other(edges_[e], n);
      const std::vector<int32_t>& followed =
          core_.algebra.Traits(TableFrom(edges_[e], other)).column_of_row;
      if (followed.empty()) continue;
      // Of two aliases the one with fewer ties moves.
      const bool mutual = !core_.algebra.Traits(TableFrom(edges_[e], n)).column_of_row.empty();
      if (mutual && Ties(other) < Ties(n)) continue;
      const std::vector<int64_t> picks(followed.begin(), followed.end());
      Follow(other, n, e, picks);
      return true;
    }
    return false;
  }

  size_t Ties(NodeId n) const { return nodes_[n].edges.size() + nodes_[n].usages.size(); }

  // `follower` takes choice picks[k] when `leader` takes k.
  void Follow(NodeId leader, NodeId follower, int32_t tie, const std::vector<int64_t>& positions) {
    TableAlgebra& algebra = core_.algebra;
    const RowId picks = algebra.AddRow(positions);
    const TableId table = TableFrom(edges_[tie], leader);
    std::vector<int64_t> tie_costs;
    const CostTable t = algebra.table(table);
    for (int32_t k = 0; k < t.num_rows; ++k)
      tie_costs.push_back(t.at(k, static_cast<int32_t>(positions[k])));
    AddToCosts(leader, tie_costs);
    const std::vector<int64_t> costs(
        algebra.row(algebra.PickEntries(nodes_[follower].costs, picks)).begin(),
        algebra.row(algebra.PickEntries(nodes_[follower].costs, picks)).end());
    AddToCosts(leader, costs);
    Remove(follower, {{leader, nodes_[leader].choices, algebra.Transpose(table)}});
    Kill(tie);
    for (const int32_t e : LiveEdges(follower)) {
      const NodeId other = Other(edges_[e], follower);
      const TableId moved = algebra.PickRows(TableFrom(edges_[e], follower), picks);
      Kill(e);
      Connect(leader, other, moved);
      Enqueue(other);
    }
    for (const auto& [row, range] : nodes_[follower].usages)
      nodes_[leader].usages.emplace_back(algebra.PickEntries(row, picks), range);
    nodes_[follower] = {.alive = false};
    Enqueue(leader);
  }

  std::vector<RowId> UsageRows(NodeId n) const {
    std::vector<RowId> rows;
    for (const auto& [row, range] : nodes_[n].usages) rows.push_back(row);
    std::ranges::sort(rows);
    const auto repeated = std::ranges::unique(rows);
    rows.erase(repeated.begin(), repeated.end());
    return rows;
  }

  bool DropDominated(NodeId n) {
    const int32_t count = NumChoices(n);
    if (count > kMaxDominanceChoices) return false;
    std::vector<TableId> tables;
    for (const int32_t e : LiveEdges(n)) {
      if (NumChoices(Other(edges_[e], n)) > kMaxDominanceChoices) return false;
      tables.push_back(TableFrom(edges_[e], n));
    }
    const RowId kept = core_.algebra.Undominated(nodes_[n].costs, tables, UsageRows(n));
    const std::span<const int64_t> positions = core_.algebra.row(kept);
    if (static_cast<int32_t>(positions.size()) == count) return false;
    Keep(n, {positions.begin(), positions.end()});
    return true;
  }

  bool ChoiceMovesMemory(NodeId n) const {
    return std::ranges::any_of(nodes_[n].usages, [&](const auto& usage) {
      const auto [least, most] = std::ranges::minmax(core_.algebra.row(usage.first));
      return least != most;
    });
  }

  void Eliminate(NodeId n) {
    const std::vector<int32_t>& live = LiveEdges(n);
    if (live.size() > 2 || ChoiceMovesMemory(n)) return;
    TableAlgebra& algebra = core_.algebra;
    std::vector<Undo::Neighbour> neighbours;
    int64_t cells = 1;
    for (const int32_t e : live) {
      const NodeId other = Other(edges_[e], n);
      neighbours.push_back({other, nodes_[other].choices, TableFrom(edges_[e], n)});
      cells *= NumChoices(other);
    }
    if (live.size() == 2 && cells > options_.max_table_cells) return;
    for (const auto& [row, range] : nodes_[n].usages) Charge(algebra.row(row)[0], range);
    for (const int32_t e : live) Cut(e);
    if (live.empty()) core_.base_cost += *std::ranges::min_element(algebra.row(nodes_[n].costs));
    if (live.size() == 1) {
      nodes_[neighbours[0].node].costs = algebra.SumRows(
          nodes_[neighbours[0].node].costs, algebra.Project(nodes_[n].costs, neighbours[0].table));
    }
    if (live.size() == 2)
      Connect(neighbours[0].node, neighbours[1].node,
              algebra.Eliminate(nodes_[n].costs, neighbours[0].table, neighbours[1].table));
    Remove(n, std::move(neighbours));
  }

  Reduction Finish() {
    Reduction reduction;
    std::vector<int32_t> core_node(nodes_.size(), -1);
    for (NodeId n = 0; n < static_cast<NodeId>(nodes_.size()); ++n) {
      if (!nodes_[n].alive) continue;
      core_node[n] = core_.num_nodes();
      core_.cost_rows.push_back(nodes_[n].costs);
      core_.usages.push_back(GroupedUsages(n));
      reduction.nodes.push_back(n);
      reduction.choices.push_back(nodes_[n].choices);
    }
    for (const WorkEdge& edge : edges_)
      if (edge.alive) core_.edges.push_back({core_node[edge.a], core_node[edge.b], edge.table});
    reduction.core = std::move(core_);
    reduction.undos = std::move(undos_);
    reduction.num_problem_nodes = static_cast<int32_t>(nodes_.size());
    return reduction;
  }

  // What every choice uses leaves the limit; equal rows share their ranges, and touching ranges are
  // joined.
  std::vector<CoreUsage> GroupedUsages(NodeId n) {
    std::map<RowId, std::vector<TimeRange>> ranges_of_row;
    for (const auto& [row, range] : nodes_[n].usages) {
      const auto bytes = core_.algebra.row(row);
      const int64_t least = *std::ranges::min_element(bytes);
      std::vector<int64_t> rest(bytes.begin(), bytes.end());
      for (int64_t& value : rest) value -= least;
      Charge(least, range);
      if (std::ranges::any_of(rest, [](int64_t value) { return value > 0; }))
        ranges_of_row[core_.algebra.AddRow(rest)].push_back(range);
    }
    std::vector<CoreUsage> usages;
    for (auto& [row, ranges] : ranges_of_row) {
      std::ranges::sort(ranges);
      CoreUsage usage = {.row = row};
      for (const TimeRange& range : ranges) {
        if (!usage.ranges.empty() && usage.ranges.back().end == range.begin)
          usage.ranges.back().end = range.end;
        else
          usage.ranges.push_back(range);
      }
      usages.push_back(std::move(usage));
    }
    return usages;
  }

  const ReduceOptions& options_;
  Core core_;
  std::vector<WorkNode> nodes_;
  std::vector<WorkEdge> edges_;
  absl::flat_hash_map<std::pair<NodeId, NodeId>, int32_t> edge_of_pair_;
  std::deque<NodeId> queue_;
  std::deque<NodeId> hubs_;  // nodes of many edges, visited once all others have come to rest
  std::vector<Undo> undos_;
};

int32_t PositionOf(std::span<const int64_t> choices, int32_t choice) {
  const auto it = std::ranges::lower_bound(choices, choice);
  MINKA_CHECK(it != choices.end() && *it == choice, "choice {} was reduced away", choice);
  return static_cast<int32_t>(it - choices.begin());
}

int32_t Decide(const TableAlgebra& algebra, const Undo& undo, const std::vector<int32_t>& choice) {
  const auto costs = algebra.row(undo.costs);
  std::vector<int32_t> columns;
  for (const Undo::Neighbour& neighbour : undo.neighbours)
    columns.push_back(PositionOf(algebra.row(neighbour.choices), choice[neighbour.node]));
  size_t best = 0;
  int64_t best_cost = kForbidden;
  for (size_t k = 0; k < costs.size(); ++k) {
    int64_t cost = costs[k];
    for (size_t i = 0; i < columns.size(); ++i)
      cost = AddCosts(
          cost, algebra.table(undo.neighbours[i].table).at(static_cast<int32_t>(k), columns[i]));
    if (cost < best_cost) {
      best_cost = cost;
      best = k;
    }
  }
  return static_cast<int32_t>(algebra.row(undo.choices)[best]);
}

}  // namespace

Reduction Reduce(const SolverProblem& problem, const ReduceOptions& options) {
  Reducer reducer(options);
  reducer.Load(problem);
  return reducer.Run();
}

Reduction ReduceFurther(const Core& core, const std::vector<std::vector<int64_t>>& choices,
                        const ReduceOptions& options) {
  Reducer reducer(options);
  reducer.Load(core, choices);
  return reducer.Run();
}

std::vector<int32_t> Expand(const Reduction& reduction, std::span<const int32_t> core_choice) {
  const TableAlgebra& algebra = reduction.core.algebra;
  std::vector<int32_t> choice(reduction.num_problem_nodes, 0);
  for (size_t n = 0; n < reduction.nodes.size(); ++n)
    choice[reduction.nodes[n]] =
        static_cast<int32_t>(algebra.row(reduction.choices[n])[core_choice[n]]);
  for (auto undo = reduction.undos.rbegin(); undo != reduction.undos.rend(); ++undo)
    choice[undo->node] = Decide(algebra, *undo, choice);
  return choice;
}

std::vector<int32_t> Restrict(const Reduction& reduction, std::span<const int32_t> choice) {
  std::vector<int32_t> core_choice;
  for (size_t n = 0; n < reduction.nodes.size(); ++n) {
    const auto choices = reduction.core.algebra.row(reduction.choices[n]);
    const auto it = std::ranges::lower_bound(choices, choice[reduction.nodes[n]]);
    const bool present = it != choices.end() && *it == choice[reduction.nodes[n]];
    core_choice.push_back(present ? static_cast<int32_t>(it - choices.begin()) : 0);
  }
  return core_choice;
}

}  // namespace minka
