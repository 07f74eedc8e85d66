// Repeated layers of a problem: a run of equal copies, found by refining labels of nodes and
// following equal edges, and a shorter problem with most of the copies cut out.
//
//   entry - L - L - L - L - L - L - L - L - exit      becomes      entry - L - L - L - L - exit
//
// What a search learns of the short problem (choices, messages) starts the search of the long one.
// Nothing here has to be exact: the long problem's own bound and evaluation decide.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "minka/solver/model/problem.h"

namespace minka {

// The copies of one node: the same node in consecutive layers.
inline constexpr int32_t kNoOrbit = -1;

struct LayerPosition {
  int32_t orbit = kNoOrbit;  // kNoOrbit: the node is in no repeated layer
  int32_t layer = 0;
};

class ShortenedProblem {
 public:
  const SolverProblem& problem() const { return problem_; }
  int32_t num_layers_cut() const { return last_cut_ - first_cut_; }

  // The short node that a node of the long problem became or, if it was cut, that stands for it:
  // its copy `back` layers before the cut (0: the first one behind it). -1 if there is none.
  NodeId ShortNode(NodeId node, int32_t back = 1) const;
  // The copy of `neighbour` as ShortNode(node) sees it; -1 if the short problem has none.
  NodeId ShortNeighbour(NodeId node, NodeId neighbour) const;

 private:
  friend class Shortener;
  NodeId At(int32_t orbit, int32_t layer) const;

  SolverProblem problem_;
  std::vector<LayerPosition> positions_;    // by long node
  std::vector<NodeId> short_of_fixed_;      // by long node, -1 if in an orbit
  std::vector<int32_t> first_layer_;        // by orbit
  std::vector<std::vector<NodeId>> orbit_;  // short nodes by orbit and layer of the short problem
  int32_t first_cut_ = 0;                   // layers [first_cut_, last_cut_) of the long problem
  int32_t last_cut_ = 0;
};

// Cuts to about `num_layers` layers; nothing if no run of clearly more equal layers is found.
// Usages are not carried over. `problem` must have passed Check().
std::optional<ShortenedProblem> CutRepeatedLayers(const SolverProblem& problem, int32_t num_layers);

}  // namespace minka
