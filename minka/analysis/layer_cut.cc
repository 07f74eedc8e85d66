#include "minka/analysis/layer_cut.h"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "boost/graph/adjacency_list.hpp"
#include "boost/graph/boykov_kolmogorov_max_flow.hpp"

namespace minka {
namespace {

using Traits = boost::adjacency_list_traits<boost::vecS, boost::vecS, boost::directedS>;
using Edge = Traits::edge_descriptor;
using Vertex = Traits::vertex_descriptor;

struct VertexState {
  boost::default_color_type color = boost::white_color;
  Edge predecessor;
  int64_t distance = 0;
  Vertex index = 0;
};
struct EdgeState {
  int64_t capacity = 0, residual = 0;
  Edge reverse;
};
using Graph =
    boost::adjacency_list<boost::vecS, boost::vecS, boost::directedS, VertexState, EdgeState>;

// A graph of which a minimum cut is asked: who stays with the source?
class Cut {
 public:
  Cut() : source_(AddVertex()), sink_(AddVertex()) {}

  Vertex source() const { return source_; }
  Vertex sink() const { return sink_; }

  Vertex AddVertex() {
    const Vertex vertex = boost::add_vertex(graph_);
    graph_[vertex].index = vertex;
    return vertex;
  }

  // Paid where `from` stays with the source and `to` does not.
  void AddEdge(Vertex from, Vertex to, int64_t capacity) {
    const Edge there = boost::add_edge(from, to, graph_).first;
    const Edge back = boost::add_edge(to, from, graph_).first;
    graph_[there] = {.capacity = capacity, .reverse = back};
    graph_[back] = {.capacity = 0, .reverse = there};
  }

  void Solve() {
    boost::boykov_kolmogorov_max_flow(
        graph_, boost::get(&EdgeState::capacity, graph_), boost::get(&EdgeState::residual, graph_),
        boost::get(&EdgeState::reverse, graph_), boost::get(&VertexState::predecessor, graph_),
        boost::get(&VertexState::color, graph_), boost::get(&VertexState::distance, graph_),
        boost::get(&VertexState::index, graph_), source_, sink_);
  }

  // Of all minimum cuts, the one with the fewest there.
  bool IsWithSource(Vertex vertex) const {
    return graph_[vertex].color == boost::color_traits<boost::default_color_type>::black();
  }

 private:
  Graph graph_;
  Vertex source_, sink_;
};

class Solver {
 public:
  explicit Solver(const LayerCutProblem& problem)
      : problem_(problem),
        lowest_(problem.num_variables, 0),
        highest_(problem.num_variables, problem.num_layers - 1),
        vertices_(problem.num_variables),
        shared_of_(problem.num_variables),
        orders_of_(problem.num_variables),
        unlimited_(1) {
    for (int i = 0; i < static_cast<int>(problem.shared.size()); ++i) {
      unlimited_ += problem.shared[i].bytes;
      for (const int variable : problem.shared[i].variables) shared_of_[variable].push_back(i);
    }
    for (int i = 0; i < static_cast<int>(problem.bounds.size()); ++i) {
      std::tie(lowest_[i], highest_[i]) = problem.bounds[i];
    }
    for (int i = 0; i < static_cast<int>(problem.orders.size()); ++i) {
      orders_of_[problem.orders[i].before].push_back(i);
      orders_of_[problem.orders[i].after].push_back(i);
    }
  }

  std::vector<int> Run() && {
    std::vector<int> all(problem_.num_variables);
    std::iota(all.begin(), all.end(), 0);
    Split(all, 0, problem_.num_layers - 1);
    return std::move(lowest_);
  }

 private:
  // Decides between `first` and `last`, which is where all of `variables` stand, by halves.
  void Split(const std::vector<int>& variables, int first, int last) {
    if (first == last || variables.empty()) return;
    const int threshold = first + (last - first + 1) / 2;
    std::vector<int> below, above;
    const Cut cut = CutAt(threshold, variables);
    for (const int variable : variables) {
      const bool is_above =
          highest_[variable] >= threshold &&
          (lowest_[variable] >= threshold || cut.IsWithSource(vertices_[variable]));
      if (is_above) {
        lowest_[variable] = std::max(lowest_[variable], threshold);
      } else {
        highest_[variable] = std::min(highest_[variable], threshold - 1);
      }
      (is_above ? above : below).push_back(variable);
    }
    Split(below, first, threshold - 1);
    Split(above, threshold, last);
  }

  // Those that stand at or above the threshold are with the source.
  Cut CutAt(int threshold, const std::vector<int>& variables) {
    Cut cut;
    for (const int variable : variables) vertices_[variable] = cut.AddVertex();
    const auto vertex = [&](int variable) {
      if (lowest_[variable] >= threshold) return cut.source();
      return highest_[variable] < threshold ? cut.sink() : vertices_[variable];
    };
    for (const int i : Touched(variables, orders_of_)) {
      const LayerCutProblem::Order& order = problem_.orders[i];
      cut.AddEdge(vertex(order.after), vertex(order.before), unlimited_);
    }
    for (const int i : Touched(variables, shared_of_)) {
      const LayerCutProblem::Shared& shared = problem_.shared[i];
      // With the source where any holder is, and where all holders are; paid where these differ.
      const Vertex any = cut.AddVertex(), all = cut.AddVertex();
      cut.AddEdge(any, all, shared.bytes);
      const auto hold = [&](Vertex holder) {
        cut.AddEdge(holder, any, unlimited_);
        cut.AddEdge(all, holder, unlimited_);
      };
      for (const int variable : shared.variables) hold(vertex(variable));
      if (shared.highest >= threshold) hold(cut.source());
      if (shared.lowest >= 0 && shared.lowest < threshold) hold(cut.sink());
    }
    cut.Solve();
    return cut;
  }

  static std::vector<int> Touched(const std::vector<int>& variables,
                                  const std::vector<std::vector<int>>& of) {
    std::vector<int> touched;
    for (const int variable : variables) {
      touched.insert(touched.end(), of[variable].begin(), of[variable].end());
    }
    std::ranges::sort(touched);
    touched.erase(std::ranges::unique(touched).begin(), touched.end());
    return touched;
  }

  const LayerCutProblem& problem_;
  std::vector<int> lowest_, highest_;  // by variable: as far as it is decided
  std::vector<Vertex> vertices_;       // by variable, of the cut at hand
  std::vector<std::vector<int>> shared_of_, orders_of_;
  int64_t unlimited_;
};

}  // namespace

std::vector<int> SolveLayerCut(const LayerCutProblem& problem) { return Solver(problem).Run(); }

}  // namespace minka
