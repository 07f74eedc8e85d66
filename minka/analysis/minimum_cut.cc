#include "minka/analysis/minimum_cut.h"

#include "boost/graph/adjacency_list.hpp"
#include "boost/graph/boykov_kolmogorov_max_flow.hpp"

namespace minka {
namespace {

using Traits = boost::adjacency_list_traits<boost::vecS, boost::vecS, boost::directedS>;
using Edge = Traits::edge_descriptor;

struct VertexState {
  boost::default_color_type color = boost::white_color;
  Edge predecessor;
  int64_t distance = 0;
  Traits::vertex_descriptor index = 0;
};
struct EdgeState {
  int64_t capacity = 0, residual = 0;
  Edge reverse;
};
using Graph =
    boost::adjacency_list<boost::vecS, boost::vecS, boost::directedS, VertexState, EdgeState>;

}  // namespace

struct MinimumCut::State {
  Graph graph;
  Vertex source = 0, sink = 0;
};

MinimumCut::MinimumCut() : state_(std::make_unique<State>()) {
  state_->source = AddVertex();
  state_->sink = AddVertex();
}
MinimumCut::~MinimumCut() = default;
MinimumCut::MinimumCut(MinimumCut&&) noexcept = default;
MinimumCut& MinimumCut::operator=(MinimumCut&&) noexcept = default;

MinimumCut::Vertex MinimumCut::source() const { return state_->source; }
MinimumCut::Vertex MinimumCut::sink() const { return state_->sink; }

MinimumCut::Vertex MinimumCut::AddVertex() {
  const Vertex vertex = boost::add_vertex(state_->graph);
  state_->graph[vertex].index = vertex;
  return vertex;
}

void MinimumCut::AddEdge(Vertex from, Vertex to, int64_t capacity) {
  Graph& graph = state_->graph;
  const Edge there = boost::add_edge(from, to, graph).first;
  const Edge back = boost::add_edge(to, from, graph).first;
  graph[there] = {.capacity = capacity, .reverse = back};
  graph[back] = {.capacity = 0, .reverse = there};
}

void MinimumCut::Solve() {
  Graph& graph = state_->graph;
  boost::boykov_kolmogorov_max_flow(
      graph, boost::get(&EdgeState::capacity, graph), boost::get(&EdgeState::residual, graph),
      boost::get(&EdgeState::reverse, graph), boost::get(&VertexState::predecessor, graph),
      boost::get(&VertexState::color, graph), boost::get(&VertexState::distance, graph),
      boost::get(&VertexState::index, graph), state_->source, state_->sink);
}

bool MinimumCut::IsWithSource(Vertex vertex) const {
  return state_->graph[vertex].color == boost::color_traits<boost::default_color_type>::black();
}

}  // namespace minka
