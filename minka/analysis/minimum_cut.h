// The minimum cut of a graph between a source and a sink, by Boost.Graph's implementation of Boykov
// and Kolmogorov, An Experimental Comparison of Min-Cut/Max-Flow Algorithms, 2004.
#pragma once

#include <cstdint>
#include <memory>

namespace minka {

// Which vertices stay with the source, so that what is paid for edges that leave them is least?
class MinimumCut {
 public:
  using Vertex = uint64_t;

  MinimumCut();
  ~MinimumCut();
  MinimumCut(MinimumCut&&) noexcept;
  MinimumCut& operator=(MinimumCut&&) noexcept;

  Vertex source() const;
  Vertex sink() const;
  Vertex AddVertex();
  // Paid where `from` stays with the source and `to` does not.
  void AddEdge(Vertex from, Vertex to, int64_t capacity);

  void Solve();
  // Of all minimum cuts, the one with the fewest there. Precondition: solved.
  bool IsWithSource(Vertex vertex) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace minka
