#include "minka/sharding/reshard.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <queue>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "minka/base/check.h"

namespace minka {
namespace {

// A sharding in 8 bits per mesh axis: where the axis is, and its position in the list of its
// dimension. Every step changes the bytes of the axes it moves and no others.
using State = uint64_t;
constexpr uint64_t kIdle = 0;
constexpr uint64_t kPartial = 1;
constexpr uint64_t kFirstDim = 2;
constexpr int kMaxRank = 30;
constexpr int kMaxSearchedAxesWithHelpers = 3;
constexpr size_t kUsualStates = 300;  // all of three axes and four dimensions

uint64_t Place(State state, int axis) { return state >> (8 * axis + 3) & 31; }
uint64_t Position(State state, int axis) { return state >> (8 * axis) & 7; }
State Moved(State state, int axis, uint64_t place, uint64_t position = 0) {
  const State cleared = state & ~(State{0xff} << (8 * axis));
  return cleared | (place << 3 | position) << (8 * axis);
}

State Encode(const Sharding& sharding) {
  State state = 0;
  for (size_t dim = 0; dim < sharding.dims.size(); ++dim) {
    const AxisList& axes = sharding.dims[dim];
    for (int i = 0; i < axes.size(); ++i) state = Moved(state, axes[i], kFirstDim + dim, i);
  }
  for (int axis = 0; axis < kMaxMeshAxes; ++axis) {
    if (sharding.partial.contains(axis)) state = Moved(state, axis, kPartial);
  }
  return state;
}

Sharding Decode(State state, int rank) {
  Sharding sharding = Sharding::Replicated(rank);
  for (uint64_t position = 0; position < kMaxMeshAxes; ++position) {
    for (int axis = 0; axis < kMaxMeshAxes; ++axis) {
      const uint64_t place = Place(state, axis);
      if (place >= kFirstDim && Position(state, axis) == position) {
        sharding.dims[place - kFirstDim].PushMinor(axis);
      } else if (place == kPartial) {
        sharding.partial.Insert(axis);
      }
    }
  }
  return sharding;
}

struct Move {
  ReshardKind kind = ReshardKind::kSlice;
  AxisSet axes;
  int8_t dim = -1;
  int8_t to_dim = -1;
};

struct Node {
  State state = 0;
  double cost = std::numeric_limits<double>::infinity();
  int num_steps = 0;
  int parent = -1;
  Move move;  // from the parent
  bool is_done = false;
};

struct Candidate {
  double cost = 0;
  int num_steps = 0;
  int order = 0;
  int node = 0;
  bool operator>(const Candidate& other) const {
    if (cost != other.cost) return cost > other.cost;
    if (num_steps != other.num_steps) return num_steps > other.num_steps;
    return order > other.order;
  }
};

// Does a dimension have others of size above 1 in front of it?
bool IsInner(const Shape& shape, int dim) {
  return std::any_of(shape.dims.begin(), shape.dims.begin() + dim,
                     [](int64_t size) { return size > 1; });
}

// Are parts along the dimensions of such a step no blocks of memory? See StepWork.
bool IsInnerStep(const Shape& shape, ReshardKind kind, int dim, int to_dim) {
  switch (kind) {
    case ReshardKind::kReduceScatter:
    case ReshardKind::kAllGather:
      return IsInner(shape, dim);
    case ReshardKind::kAllToAll:
      return IsInner(shape, std::max(dim, to_dim));
    default:
      return false;
  }
}

// Asks for the price of each (kind, place, axes split, axes of the step) once, on meshes of few
// axes.
class Prices {
 public:
  Prices(const Shape& shape, const Mesh& mesh, const ReshardPrice& price)
      : shape_(shape), num_bytes_(shape.num_bytes()), mesh_(mesh), price_(price) {
    if (mesh.num_axes() > kMaxMemoAxes) return;
    memo_.fill(std::numeric_limits<double>::quiet_NaN());
  }

  // `split` as of the side whose bytes count, see StepWork.
  double Of(const Move& move, AxisSet split) {
    const bool is_inner = IsInnerStep(shape_, move.kind, move.dim, move.to_dim);
    if (mesh_.num_axes() > kMaxMemoAxes) return Ask(move, is_inner, split);
    const size_t key = (2 * static_cast<size_t>(move.kind) + is_inner) << (2 * kMaxMemoAxes) |
                       size_t{split.bits()} << kMaxMemoAxes | move.axes.bits();
    if (std::isnan(memo_[key])) memo_[key] = Ask(move, is_inner, split);
    return memo_[key];
  }

 private:
  static constexpr int kMaxMemoAxes = 4;
  static constexpr size_t kNumKinds = 6;

  double Ask(const Move& move, bool is_inner, AxisSet split) const {
    if (mesh_.size(move.axes) == 1) return 0;
    return price_({move.kind, num_bytes_ / mesh_.size(split), move.axes, is_inner});
  }

  const Shape shape_;
  int64_t num_bytes_;
  const Mesh& mesh_;
  const ReshardPrice& price_;
  std::array<double, 2 * kNumKinds << (2 * kMaxMemoAxes)> memo_;
};

// What a state looks like, for the steps that leave it.
struct Layout {
  std::array<AxisList, kMaxRank> dims;
  AxisSet split;
  AxisSet partial;
};

// The single steps that leave a sharding.
class Steps {
 public:
  // Moves axes of `searched` only, and makes partial those of `to_partial`.
  Steps(const Shape& shape, const Mesh& mesh, AxisSet searched, AxisSet to_partial)
      : rank_(shape.rank()), mesh_(mesh), searched_(searched), to_partial_(to_partial) {
    for (const int64_t size : shape.dims) {
      for (int bits = 0; bits < 1 << mesh.num_axes(); ++bits) {
        int64_t parts = 1;
        for (int axis = 0; axis < mesh.num_axes(); ++axis) {
          if (bits >> axis & 1) parts *= mesh.size(axis);
        }
        divides_.push_back(size % parts == 0);
      }
    }
  }

  // Calls visit(next, split, move), always in the same order; `split`: axes split where the bytes
  // count, see Prices.
  template <typename Visit>
  void ForEachFrom(State state, const Visit& visit) const {
    const Layout layout = LayoutOf(state);
    ForEachOfPartial(state, layout, visit);
    for (int dim = 0; dim < rank_; ++dim) ForEachOfDim(state, layout, dim, visit);
    ForEachOfIdle(state, layout, visit);
  }

 private:
  Layout LayoutOf(State state) const {
    Layout layout;
    for (uint64_t position = 0, left = 1; left > 0; ++position) {
      left = 0;
      for (int axis = 0; axis < mesh_.num_axes(); ++axis) {
        const uint64_t place = Place(state, axis);
        if (place == kPartial) layout.partial.Insert(axis);
        if (place < kFirstDim || Position(state, axis) < position) continue;
        ++left;
        if (Position(state, axis) != position) continue;
        layout.dims[place - kFirstDim].PushMinor(axis);
        layout.split.Insert(axis);
      }
    }
    return layout;
  }

  bool Divides(const Layout& layout, int dim, AxisSet added) const {
    const AxisSet axes = layout.dims[dim].axes().Union(added);
    return divides_[static_cast<size_t>(dim) << mesh_.num_axes() | axes.bits()];
  }

  // All-reduces and reduce-scatters over every set of partial axes.
  template <typename Visit>
  void ForEachOfPartial(State state, const Layout& layout, const Visit& visit) const {
    ForEachSubset(layout.partial, [&](AxisSet axes) {
      State next = state;
      for (int axis = 0; axis < mesh_.num_axes(); ++axis) {
        if (axes.contains(axis)) next = Moved(next, axis, kIdle);
      }
      visit(next, layout.split, Move{ReshardKind::kAllReduce, axes});
      SplitOver(state, layout, axes, ReshardKind::kReduceScatter, visit);
    });
  }

  // Slices and partial sums over every set of axes that the sharding does not use.
  template <typename Visit>
  void ForEachOfIdle(State state, const Layout& layout, const Visit& visit) const {
    const AxisSet idle = searched_.Minus(layout.split).Minus(layout.partial);
    ForEachSubset(idle, [&](AxisSet axes) {
      SplitOver(state, layout, axes, ReshardKind::kSlice, visit);
      if (!axes.Minus(to_partial_).empty()) return;
      State next = state;
      for (int axis = 0; axis < mesh_.num_axes(); ++axis) {
        if (axes.contains(axis)) next = Moved(next, axis, kPartial);
      }
      visit(next, layout.split, Move{ReshardKind::kMakePartial, axes});
    });
  }

  // Every set but the empty one, the largest first.
  template <typename Visit>
  static void ForEachSubset(AxisSet axes, const Visit& visit) {
    for (int bits = axes.bits(); bits > 0; bits = (bits - 1) & axes.bits()) {
      AxisSet subset;
      for (int axis = 0; axis < kMaxMeshAxes; ++axis) {
        if (bits >> axis & 1) subset.Insert(axis);
      }
      visit(subset);
    }
  }

  // The axes become the minor ones of a dimension, among themselves in mesh order.
  template <typename Visit>
  void SplitOver(State state, const Layout& layout, AxisSet axes, ReshardKind kind,
                 const Visit& visit) const {
    for (int dim = 0; dim < rank_; ++dim) {
      if (!Divides(layout, dim, axes)) continue;
      State next = state;
      int position = layout.dims[dim].size();
      for (int axis = 0; axis < mesh_.num_axes(); ++axis) {
        if (axes.contains(axis)) next = Moved(next, axis, kFirstDim + dim, position++);
      }
      visit(next, layout.split, Move{kind, axes, static_cast<int8_t>(dim)});
    }
  }

  // All-gathers and all-to-alls of the minor axes of the dimension.
  template <typename Visit>
  void ForEachOfDim(State state, const Layout& layout, int dim, const Visit& visit) const {
    const AxisList& axes = layout.dims[dim];
    AxisSet taken;
    State gathered = state;
    for (int first = axes.size() - 1; first >= 0; --first) {
      taken.Insert(axes[first]);
      gathered = Moved(gathered, axes[first], kIdle);
      visit(gathered, layout.split.Minus(taken),
            Move{ReshardKind::kAllGather, taken, static_cast<int8_t>(dim)});
      for (int to_dim = 0; to_dim < rank_; ++to_dim) {
        if (to_dim == dim || !Divides(layout, to_dim, taken)) continue;
        State next = state;
        for (int i = first, position = layout.dims[to_dim].size(); i < axes.size(); ++i) {
          next = Moved(next, axes[i], kFirstDim + to_dim, position++);
        }
        visit(next, layout.split,
              Move{ReshardKind::kAllToAll, taken, static_cast<int8_t>(dim),
                   static_cast<int8_t>(to_dim)});
      }
    }
  }

  int rank_;
  const Mesh& mesh_;
  AxisSet searched_;
  AxisSet to_partial_;
  std::vector<bool> divides_;  // [dim << num_axes | axes]: do the axes divide the dimension?
};

// The axes of both sides, and others up to three in all.
AxisSet SearchedAxes(const Sharding& from, const Sharding& to, const Mesh& mesh) {
  AxisSet searched = from.used_axes().Union(to.used_axes());
  int num_searched = 0;
  for (int axis = 0; axis < mesh.num_axes(); ++axis) num_searched += searched.contains(axis);
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    if (num_searched >= kMaxSearchedAxesWithHelpers) break;
    if (searched.contains(axis) || mesh.size(axis) == 1) continue;
    searched.Insert(axis);
    ++num_searched;
  }
  return searched;
}

class Search {
 public:
  Search(const Shape& shape, const Sharding& from, const Sharding& to, const Mesh& mesh,
         const ReshardPrice& price)
      : shape_(shape),
        mesh_(mesh),
        prices_(shape, mesh, price),
        steps_(shape, mesh, SearchedAxes(from, to, mesh), to.partial),
        from_(from),
        to_(to) {}

  ReshardPath Run() {
    // Rounding must not cut the direct path itself.
    bound_ = DirectCost() * (1 + 1e-9);
    goal_ = Encode(to_);
    nodes_.reserve(kUsualStates);
    index_.reserve(kUsualStates);
    Relax(Encode(from_), 0, 0, -1, {});
    while (!queue_.empty()) {
      const Candidate best = queue_.top();
      queue_.pop();
      Node& node = nodes_[best.node];
      if (node.is_done) continue;
      node.is_done = true;
      if (node.state == goal_) return PathTo(best.node);
      Expand(best.node);
    }
    MINKA_CHECK(false, "no path from {} to {} of {}", ToString(from_, mesh_), ToString(to_, mesh_),
                ToString(shape_));
  }

 private:
  // Completes the sums that `to` does not owe, gathers what it splits otherwise, slices.
  double DirectCost() {
    double cost = 0;
    AxisSet split = from_.split_axes();
    const AxisSet completed = from_.partial.Minus(to_.partial);
    if (!completed.empty()) cost += prices_.Of({ReshardKind::kAllReduce, completed}, split);
    std::vector<int> common(to_.dims.size());
    for (size_t dim = 0; dim < to_.dims.size(); ++dim) {
      const AxisList& old_axes = from_.dims[dim];
      const AxisList& new_axes = to_.dims[dim];
      int& same = common[dim];
      while (same < old_axes.size() && same < new_axes.size() && old_axes[same] == new_axes[same]) {
        ++same;
      }
      AxisSet gathered;
      for (int i = same; i < old_axes.size(); ++i) gathered.Insert(old_axes[i]);
      split = split.Minus(gathered);
      if (gathered.empty()) continue;
      cost += prices_.Of({ReshardKind::kAllGather, gathered, static_cast<int8_t>(dim)}, split);
    }
    for (size_t dim = 0; dim < to_.dims.size(); ++dim) {
      for (int i = common[dim]; i < to_.dims[dim].size(); ++i) {
        const AxisSet axis = AxisSet::Of(to_.dims[dim][i]);
        cost += prices_.Of({ReshardKind::kSlice, axis}, split);
        split = split.Union(axis);
      }
    }
    for (int axis = 0; axis < mesh_.num_axes(); ++axis) {
      if (!to_.partial.contains(axis) || from_.partial.contains(axis)) continue;
      cost += prices_.Of({ReshardKind::kMakePartial, AxisSet::Of(axis)}, split);
    }
    return cost;
  }

  void Relax(State state, double cost, int num_steps, int parent, Move move) {
    if (cost > bound_) return;
    const auto [entry, is_new] = index_.try_emplace(state, static_cast<int>(nodes_.size()));
    if (is_new) nodes_.push_back({.state = state});
    Node& node = nodes_[entry->second];
    if (node.is_done || std::pair(node.cost, node.num_steps) <= std::pair(cost, num_steps)) return;
    node.cost = cost;
    node.num_steps = num_steps;
    node.parent = parent;
    node.move = move;
    queue_.push({cost, num_steps, num_pushed_++, entry->second});
  }

  void Expand(int index) {
    const double cost = nodes_[index].cost;
    const int num_steps = nodes_[index].num_steps + 1;
    steps_.ForEachFrom(nodes_[index].state, [&](State next, AxisSet split, const Move& move) {
      Relax(next, cost + prices_.Of(move, split), num_steps, index, move);
    });
  }

  ReshardPath PathTo(int index) const {
    ReshardPath path;
    path.cost = nodes_[index].cost;
    for (int node = index; nodes_[node].parent >= 0; node = nodes_[node].parent) {
      const Move& move = nodes_[node].move;
      ReshardStep step{.kind = move.kind, .dim = move.dim, .to_dim = move.to_dim};
      step.result = Decode(nodes_[node].state, shape_.rank());
      if (move.kind == ReshardKind::kAllGather || move.kind == ReshardKind::kAllToAll) {
        const Sharding before = Decode(nodes_[nodes_[node].parent].state, shape_.rank());
        const AxisList& axes = before.dims[move.dim];
        for (int i = 0; i < axes.size(); ++i) {
          if (move.axes.contains(axes[i])) step.axes.PushMinor(axes[i]);
        }
      } else {
        for (int axis = 0; axis < mesh_.num_axes(); ++axis) {
          if (move.axes.contains(axis)) step.axes.PushMinor(axis);
        }
      }
      path.steps.push_back(std::move(step));
    }
    std::reverse(path.steps.begin(), path.steps.end());
    return path;
  }

  const Shape& shape_;
  const Mesh& mesh_;
  Prices prices_;
  const Steps steps_;
  const Sharding& from_;
  const Sharding& to_;
  double bound_ = 0;
  State goal_ = 0;
  std::vector<Node> nodes_;
  absl::flat_hash_map<State, int> index_;  // looked up only, never iterated
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue_;
  int num_pushed_ = 0;
};

}  // namespace

bool IsCollective(ReshardKind kind) {
  return kind != ReshardKind::kSlice && kind != ReshardKind::kMakePartial;
}

std::string_view ToString(ReshardKind kind) {
  switch (kind) {
    case ReshardKind::kAllReduce:
      return "all-reduce";
    case ReshardKind::kReduceScatter:
      return "reduce-scatter";
    case ReshardKind::kAllGather:
      return "all-gather";
    case ReshardKind::kAllToAll:
      return "all-to-all";
    case ReshardKind::kSlice:
      return "slice";
    case ReshardKind::kMakePartial:
      return "make-partial";
  }
  MINKA_CHECK(false, "reshard of kind {}", static_cast<int>(kind));
}

ReshardPath CheapestReshard(const Shape& shape, const Sharding& from, const Sharding& to,
                            const Mesh& mesh, const ReshardPrice& price) {
  MINKA_CHECK(shape.rank() <= kMaxRank, "{} has too many dimensions", ToString(shape));
  if (from == to) return {};
  return Search(shape, from, to, mesh, price).Run();
}

bool SearchesEveryAxis(const Mesh& mesh) {
  int num_axes = 0;
  for (int axis = 0; axis < mesh.num_axes(); ++axis) num_axes += mesh.size(axis) > 1;
  return num_axes <= kMaxSearchedAxesWithHelpers;
}

// Shardings and the steps between them are found when first needed and serve all searches.
struct ReshardDistances::Graph {
  struct Edge {
    int to = 0;
    double cost = 0;
    AxisSet made_partial;
  };
  struct Vertex {
    State state = 0;
    size_t first_edge = 0, end_edge = 0;  // equal until expanded: every sharding has some step
  };

  Graph(const Shape& shape, const Mesh& mesh, const ReshardPrice& price)
      : price(price), prices(shape, mesh, this->price), steps(shape, mesh, All(mesh), All(mesh)) {
    vertices.reserve(kUsualStates);
    number.reserve(kUsualStates);
  }

  static AxisSet All(const Mesh& mesh) {
    AxisSet axes;
    for (int axis = 0; axis < mesh.num_axes(); ++axis)
      if (mesh.size(axis) > 1) axes.Insert(axis);
    return axes;
  }

  int NumberOf(State state) {
    const auto [entry, is_new] = number.try_emplace(state, static_cast<int>(vertices.size()));
    if (is_new) vertices.push_back({.state = state});
    return entry->second;
  }

  void Expand(int vertex) {
    if (vertices[vertex].first_edge != vertices[vertex].end_edge) return;
    const size_t first = edges.size();
    steps.ForEachFrom(vertices[vertex].state, [&](State next, AxisSet split, const Move& move) {
      edges.push_back(
          {.to = NumberOf(next),
           .cost = prices.Of(move, split),
           .made_partial = move.kind == ReshardKind::kMakePartial ? move.axes : AxisSet()});
    });
    vertices[vertex].first_edge = first;
    vertices[vertex].end_edge = edges.size();
  }

  // Dijkstra from one vertex to all that can be reached where `to_partial` may be made partial.
  std::vector<double> Search(int from, AxisSet to_partial) {
    using Candidate = std::pair<double, int>;
    constexpr double kInfinite = std::numeric_limits<double>::infinity();
    std::vector<double> costs(vertices.size(), kInfinite);
    std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
    costs[from] = 0;
    queue.emplace(0, from);
    while (!queue.empty()) {
      const auto [cost, vertex] = queue.top();
      queue.pop();
      if (cost > costs[vertex]) continue;
      Expand(vertex);
      costs.resize(vertices.size(), kInfinite);
      for (size_t i = vertices[vertex].first_edge; i < vertices[vertex].end_edge; ++i) {
        const Edge& edge = edges[i];
        if (!edge.made_partial.Minus(to_partial).empty()) continue;
        if (cost + edge.cost >= costs[edge.to]) continue;
        costs[edge.to] = cost + edge.cost;
        queue.emplace(costs[edge.to], edge.to);
      }
    }
    return costs;
  }

  const ReshardPrice price;
  Prices prices;
  const Steps steps;
  std::vector<Vertex> vertices;
  std::vector<Edge> edges;
  absl::flat_hash_map<State, int> number;  // looked up only, never iterated
  // Costs to all vertices, once searched; by vertex and partial axes of the goal.
  absl::flat_hash_map<std::pair<int, uint32_t>, std::vector<double>> from;
};

ReshardDistances::ReshardDistances(const Shape& shape, const Mesh& mesh,
                                   const ReshardPrice& price) {
  MINKA_CHECK(shape.rank() <= kMaxRank, "{} has too many dimensions", ToString(shape));
  MINKA_CHECK(SearchesEveryAxis(mesh), "a mesh of {} axes has too many", mesh.num_axes());
  graph_ = std::make_unique<Graph>(shape, mesh, price);
}

ReshardDistances::~ReshardDistances() = default;

double ReshardDistances::Between(const Sharding& from, const Sharding& to) {
  const int source = graph_->NumberOf(Encode(from));
  const auto [found, is_new] = graph_->from.try_emplace({source, to.partial.bits()});
  if (is_new) found->second = graph_->Search(source, to.partial);
  const size_t target = graph_->NumberOf(Encode(to));
  MINKA_CHECK(target < found->second.size(), "no path to a sharding of {} dimensions",
              to.dims.size());
  return found->second[target];
}

StepWork WorkOfStep(const Shape& shape, const Sharding& before, const ReshardStep& step,
                    const Mesh& mesh) {
  const bool counts_result = step.kind == ReshardKind::kAllGather;
  return {.kind = step.kind,
          .local_bytes = LocalBytes(shape, counts_result ? step.result : before, mesh),
          .axes = step.axes.axes(),
          .is_inner = IsInnerStep(shape, step.kind, step.dim, step.to_dim)};
}

}  // namespace minka
