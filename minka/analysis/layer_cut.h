// Which layer of a step each backward operation belongs to.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace minka {

// Variables stand in layers 0 to num_layers - 1.
struct LayerCutProblem {
  // What is held by some variables, and by others whose layers are known: costs
  // bytes * (highest - lowest layer among them).
  struct Shared {
    int64_t bytes = 0;
    std::vector<int> variables;
    int lowest = -1, highest = -1;  // of those that are known; -1: none is
  };
  // The layer of `after` is at most that of `before`.
  struct Order {
    int before = 0, after = 0;
  };

  int num_layers = 1;
  int num_variables = 0;
  std::vector<Shared> shared;
  std::vector<Order> orders;
  // By variable, between which layers it has to stand, in accord with the orders; empty: anywhere.
  std::vector<std::pair<int, int>> bounds;
};

// The layer of each variable, at least cost; the lowest of several that cost the same.
//
// The cost is a sum over thresholds t of the bytes whose holders stand on both sides of t, and for
// each t a minimum cut decides who stands at or above it; least cuts of higher thresholds lie
// within those of lower ones, so that all agree. (Ishikawa, Exact Optimization for Markov Random
// Fields with Convex Priors, 2003; thresholds halved as by Darbon and Sigelle, 2006.)
std::vector<int> SolveLayerCut(const LayerCutProblem& problem);

}  // namespace minka
