#include "minka/solver/reduce/repeated_layers.h"

#include <algorithm>
#include <deque>
#include <map>

#include "absl/container/flat_hash_map.h"

namespace minka {
namespace {

constexpr int kRefinements = 5;
constexpr int32_t kFewestCut = 2;        // layers: cutting fewer is not worth a search of its own
constexpr size_t kLargestGroup = 8;      // equal edges of one node that may be told apart by order
constexpr double kFewestInOrbits = 0.6;  // of all nodes
constexpr int32_t kSpread = 4;           // orbits this much shorter than the longest are left out

uint64_t Mix(uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9ULL;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebULL;
  return x ^ x >> 31;
}
uint64_t Mix(uint64_t a, uint64_t b) { return Mix(a + 0x9e3779b97f4a7c15ULL * (b + 1)); }

// An edge as one of its ends sees it.
struct Tie {
  uint64_t kind = 0;  // equal for equal tables, orientations and multiplicities
  NodeId other = 0;
};

// Ties of all nodes, one after another.
class Ties {
 public:
  explicit Ties(const SolverProblem& problem) : first_(problem.num_nodes() + 1, 0) {
    for (const ProblemEdge& edge : problem.edges()) {
      ++first_[edge.a + 1];
      ++first_[edge.b + 1];
    }
    for (size_t n = 1; n < first_.size(); ++n) first_[n] += first_[n - 1];
    ties_.resize(first_.back());
    std::vector<int32_t> next(first_.begin(), first_.end() - 1);
    for (const ProblemEdge& edge : problem.edges()) {
      const uint64_t table = Mix(Mix(edge.table), static_cast<uint64_t>(edge.multiplicity));
      ties_[next[edge.a]++] = {Mix(table, edge.transposed), edge.b};
      ties_[next[edge.b]++] = {Mix(table, !edge.transposed), edge.a};
    }
  }
  std::span<const Tie> of(NodeId node) const {
    return {ties_.data() + first_[node], static_cast<size_t>(first_[node + 1] - first_[node])};
  }

 private:
  std::vector<int32_t> first_;
  std::vector<Tie> ties_;
};

// Nodes with equal labels look alike as far as `rounds` edges away.
std::vector<uint64_t> Labels(const SolverProblem& problem, const Ties& ties, int rounds) {
  std::vector<uint64_t> labels(problem.num_nodes());
  for (NodeId n = 0; n < problem.num_nodes(); ++n)
    labels[n] = Mix(Mix(problem.cost_row(n)), static_cast<uint64_t>(problem.multiplicity(n)));
  std::vector<uint64_t> next(labels.size());
  for (int round = 0; round < rounds; ++round) {
    for (NodeId n = 0; n < problem.num_nodes(); ++n) {
      uint64_t sum = 0;
      for (const Tie& tie : ties.of(n)) sum += Mix(tie.kind, labels[tie.other]);
      next[n] = Mix(labels[n], sum);
    }
    labels.swap(next);
  }
  return labels;
}

// Groups of nodes that look alike, of the size that most groups have: each is likely one node per
// layer.
std::vector<std::vector<NodeId>> LikelyLayerMarks(const std::vector<uint64_t>& labels,
                                                  int32_t fewest) {
  absl::flat_hash_map<uint64_t, int32_t> group_of_label;
  std::vector<std::vector<NodeId>> groups;
  for (NodeId n = 0; n < static_cast<NodeId>(labels.size()); ++n) {
    const auto [it, added] =
        group_of_label.try_emplace(labels[n], static_cast<int32_t>(groups.size()));
    if (added) groups.emplace_back();
    groups[it->second].push_back(n);
  }
  std::map<size_t, int32_t> num_groups_of_size;
  for (const auto& group : groups)
    if (static_cast<int32_t>(group.size()) >= fewest) ++num_groups_of_size[group.size()];
  size_t size = 0;
  for (const auto& [candidate, count] : num_groups_of_size)
    if (size == 0 || count > num_groups_of_size[size]) size = candidate;
  std::erase_if(groups, [&](const auto& group) { return group.size() != size || size == 0; });
  return groups;
}

// Maps nodes to their copies in the next layer.
class Shift {
 public:
  Shift(const Ties& ties, const std::vector<uint64_t>& near, std::span<const NodeId> marks)
      : ties_(ties), near_(near), next_(near.size(), -1), previous_(near.size(), -1) {
    for (size_t i = 0; i + 1 < marks.size(); ++i) Assign(marks[i], marks[i + 1]);
    while (!queue_.empty()) {
      const NodeId node = queue_.front();
      queue_.pop_front();
      Follow(node, next_[node]);
    }
  }

  NodeId next(NodeId node) const { return next_[node]; }
  NodeId previous(NodeId node) const { return previous_[node]; }
  int32_t num_assigned() const { return num_assigned_; }

 private:
  void Assign(NodeId from, NodeId to) {
    if (from == to || near_[from] != near_[to] || next_[from] >= 0 || previous_[to] >= 0) return;
    next_[from] = to;
    previous_[to] = from;
    ++num_assigned_;
    queue_.push_back(from);
  }

  struct Seen {
    uint64_t key = 0;
    NodeId node = 0;
    auto operator<=>(const Seen&) const = default;
  };

  std::vector<Seen> Sorted(NodeId node) const {
    std::vector<Seen> seen;
    for (const Tie& tie : ties_.of(node))
      seen.push_back({Mix(tie.kind, near_[tie.other]), tie.other});
    std::ranges::sort(seen);
    return seen;
  }

  // The neighbours of a node shift to those neighbours of its copy that look the same from there.
  void Follow(NodeId node, NodeId copy) {
    const std::vector<Seen> here = Sorted(node);
    const std::vector<Seen> there = Sorted(copy);
    for (size_t i = 0, j = 0; i < here.size() && j < there.size();) {
      if (here[i].key != there[j].key) {
        ++(here[i].key < there[j].key ? i : j);
        continue;
      }
      const auto end = [](const std::vector<Seen>& seen, size_t begin) {
        size_t e = begin;
        while (e < seen.size() && seen[e].key == seen[begin].key) ++e;
        return e;
      };
      const size_t i_end = end(here, i);
      const size_t j_end = end(there, j);
      if (i_end - i == j_end - j && i_end - i <= kLargestGroup)
        for (size_t k = 0; k < i_end - i; ++k) Assign(here[i + k].node, there[j + k].node);
      i = i_end;
      j = j_end;
    }
  }

  const Ties& ties_;
  const std::vector<uint64_t>& near_;
  std::vector<NodeId> next_;
  std::vector<NodeId> previous_;
  int32_t num_assigned_ = 0;
  std::deque<NodeId> queue_;
};

}  // namespace

NodeId ShortenedProblem::At(int32_t orbit, int32_t layer) const {
  const int32_t at = layer - first_layer_[orbit];
  const std::vector<NodeId>& nodes = orbit_[orbit];
  return at < 0 || at >= static_cast<int32_t>(nodes.size()) ? -1 : nodes[at];
}

NodeId ShortenedProblem::ShortNode(NodeId node, int32_t back) const {
  const auto [orbit, layer] = positions_[node];
  if (orbit == kNoOrbit) return short_of_fixed_[node];
  if (layer < first_cut_) return At(orbit, layer);
  if (layer >= last_cut_) return At(orbit, layer - num_layers_cut());
  return At(orbit, first_cut_ - back);
}

NodeId ShortenedProblem::ShortNeighbour(NodeId node, NodeId neighbour) const {
  const auto [orbit, layer] = positions_[node];
  const auto [other_orbit, other_layer] = positions_[neighbour];
  if (orbit == kNoOrbit || other_orbit == kNoOrbit) return ShortNode(neighbour);
  const int32_t short_layer = layer < first_cut_   ? layer
                              : layer >= last_cut_ ? layer - num_layers_cut()
                                                   : first_cut_ - 1;
  return At(other_orbit, short_layer + other_layer - layer);
}

class Shortener {
 public:
  Shortener(const SolverProblem& problem, int32_t num_layers)
      : problem_(problem), num_layers_(num_layers), ties_(problem) {}

  std::optional<ShortenedProblem> Run() {
    const std::vector<uint64_t> near = Labels(problem_, ties_, 1);
    const std::vector<std::vector<NodeId>> marks =
        LikelyLayerMarks(Labels(problem_, ties_, kRefinements), num_layers_);
    if (marks.empty()) return std::nullopt;
    const std::vector<NodeId>& mark = marks[marks.size() / 2];
    const Shift shift(ties_, near, mark);
    if (shift.num_assigned() < kFewestInOrbits * problem_.num_nodes()) return std::nullopt;
    FindOrbits(shift);
    AlignOrbits(mark[mark.size() / 2]);
    if (!ChooseCut()) return std::nullopt;
    Build();
    return std::move(out_);
  }

 private:
  void FindOrbits(const Shift& shift) {
    out_.positions_.resize(problem_.num_nodes());
    size_t longest = 0;
    for (NodeId n = 0; n < problem_.num_nodes(); ++n) {
      if (shift.previous(n) >= 0 || shift.next(n) < 0) continue;
      std::vector<NodeId> members;
      for (NodeId m = n; m >= 0; m = shift.next(m)) members.push_back(m);
      longest = std::max(longest, members.size());
      members_.push_back(std::move(members));
    }
    std::erase_if(members_, [&](const auto& orbit) { return orbit.size() + kSpread < longest; });
    for (size_t o = 0; o < members_.size(); ++o)
      for (size_t i = 0; i < members_[o].size(); ++i)
        out_.positions_[members_[o][i]] = {static_cast<int32_t>(o), static_cast<int32_t>(i)};
  }

  // Layers of different orbits are counted from different nodes at first. From one node in the
  // middle, neighbours get its layer.
  void AlignOrbits(NodeId middle) {
    std::vector<char> aligned(members_.size(), 0);
    first_.assign(members_.size(), 0);
    if (out_.positions_[middle].orbit == kNoOrbit) return;
    aligned[out_.positions_[middle].orbit] = 1;
    layer_ = out_.positions_[middle].layer;
    std::deque<NodeId> queue = {middle};
    while (!queue.empty()) {
      const NodeId node = queue.front();
      queue.pop_front();
      for (const Tie& tie : ties_.of(node)) {
        const auto [orbit, at] = out_.positions_[tie.other];
        if (orbit == kNoOrbit || aligned[orbit]) continue;
        aligned[orbit] = 1;
        first_[orbit] = layer_ - at;
        queue.push_back(tie.other);
      }
    }
    for (size_t o = 0; o < members_.size(); ++o) {
      for (const NodeId n : members_[o]) {
        LayerPosition& position = out_.positions_[n];
        if (aligned[o])
          position.layer += first_[o];
        else
          position = {};
      }
      if (!aligned[o]) members_[o].clear();
    }
  }

  bool ChooseCut() {
    int32_t begin = INT32_MIN;
    int32_t end = INT32_MAX;
    for (size_t o = 0; o < members_.size(); ++o) {
      if (members_[o].empty()) continue;
      begin = std::max(begin, first_[o]);
      end = std::min(end, first_[o] + static_cast<int32_t>(members_[o].size()));
    }
    if (begin == INT32_MIN) return false;
    out_.first_cut_ = begin + (num_layers_ + 1) / 2;
    out_.last_cut_ = end - num_layers_ / 2;
    return out_.num_layers_cut() >= kFewestCut;
  }

  bool IsCut(NodeId node) const {
    const auto [orbit, layer] = out_.positions_[node];
    return orbit != kNoOrbit && layer >= out_.first_cut_ && layer < out_.last_cut_;
  }

  void Build() {
    out_.first_layer_ = first_;
    out_.orbit_.resize(members_.size());
    out_.short_of_fixed_.assign(problem_.num_nodes(), -1);
    for (NodeId n = 0; n < problem_.num_nodes(); ++n) {
      if (IsCut(n)) continue;
      const NodeId added = out_.problem_.AddNode(problem_.costs(n));
      out_.problem_.SetMultiplicity(added, problem_.multiplicity(n));
      const auto [orbit, layer] = out_.positions_[n];
      if (orbit == kNoOrbit) {
        out_.short_of_fixed_[n] = added;
        continue;
      }
      const int32_t at =
          (layer < out_.first_cut_ ? layer : layer - out_.num_layers_cut()) - first_[orbit];
      std::vector<NodeId>& nodes = out_.orbit_[orbit];
      if (static_cast<int32_t>(nodes.size()) <= at) nodes.resize(at + 1, -1);
      nodes[at] = added;
    }
    tables_.assign(problem_.num_tables(), -1);
    for (const ProblemEdge& edge : problem_.edges()) AddEdge(edge);
  }

  // An edge from before the cut into it goes to the copy behind the cut instead.
  void AddEdge(const ProblemEdge& edge) {
    const bool cut_a = IsCut(edge.a);
    const bool cut_b = IsCut(edge.b);
    if (cut_a && cut_b) return;
    NodeId a = cut_a ? -1 : out_.ShortNode(edge.a);
    NodeId b = cut_b ? -1 : out_.ShortNode(edge.b);
    if (cut_a) a = AcrossTheCut(edge.b, edge.a);
    if (cut_b) b = AcrossTheCut(edge.a, edge.b);
    if (a < 0 || b < 0) return;
    TableId& table = tables_[edge.table];
    if (table < 0) {
      const CostTable t = problem_.table(edge.table);
      table = out_.problem_.AddTable(t.num_rows, t.num_columns, t.cells);
    }
    out_.problem_.AddEdge({a, b, table, edge.transposed, edge.multiplicity});
  }

  NodeId AcrossTheCut(NodeId kept, NodeId cut) const {
    const auto [orbit, layer] = out_.positions_[kept];
    if (orbit == kNoOrbit || layer >= out_.first_cut_) return -1;
    return out_.At(out_.positions_[cut].orbit, out_.positions_[cut].layer);
  }

  const SolverProblem& problem_;
  const int32_t num_layers_;
  const Ties ties_;
  std::vector<std::vector<NodeId>> members_;  // by orbit, in order of layers
  std::vector<int32_t> first_;                // by orbit: the layer of its first member
  int32_t layer_ = 0;
  std::vector<TableId> tables_;
  ShortenedProblem out_;
};

std::optional<ShortenedProblem> CutRepeatedLayers(const SolverProblem& problem,
                                                  int32_t num_layers) {
  return Shortener(problem, num_layers).Run();
}

}  // namespace minka
