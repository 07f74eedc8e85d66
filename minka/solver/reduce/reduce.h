// Exact reductions: the core has the same optimum as the problem, and every choice of the core
// expands to a choice of the problem with the same cost and no more memory.
//
// - forbidden choices, choices without support on an edge (arc consistency), choices dominated by
// another one (Goldstein 1994,
//   with memory);
// - nodes with a single choice, parallel edges, edges that say nothing about pairs;
// - followers: a node whose choice is forced by a neighbour's (alias edges are the common case);
// - nodes without memory of degree 0, 1 and 2 (Scholz and Eckstein 2002, rules R0, RI, RII), in
// order of growing tables.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "minka/solver/model/problem.h"
#include "minka/solver/reduce/core.h"

namespace minka {

struct ReduceOptions {
  bool arc_consistency = true;
  bool dominance = true;
  bool followers = true;
  bool elimination = true;
  // A node of degree 2 stays if its elimination would make a table with more cells.
  int64_t max_table_cells = 1 << 16;
};

// How one removed node is decided once its neighbours are.
struct Undo {
  NodeId node = 0;
  // The node's choices at the time of removal (as choices of the problem) and their costs.
  RowId choices = 0;
  RowId costs = 0;
  // Up to two neighbours; a table's rows are the node's choices, its columns the neighbour's
  // choices at that time.
  struct Neighbour {
    NodeId node = 0;
    RowId choices = 0;
    TableId table = 0;
  };
  std::vector<Neighbour> neighbours;
};

struct Reduction {
  Core core;
  std::vector<NodeId> nodes;  // of each core node
  std::vector<RowId>
      choices;  // per core node: its choices as choices of the problem (a row of core.algebra)
  std::vector<Undo> undos;  // in order of removal
  int32_t num_problem_nodes = 0;
};

// `problem` must have passed Check(). Without a usage limit, or where it cannot bind, memory plays
// no role.
Reduction Reduce(const SolverProblem& problem, const ReduceOptions& options = {});

// Reduces a core in which nodes may take only the listed choices (ascending, by node). "Problem" in
// the result means `core`: its nodes, choices and costs.
Reduction ReduceFurther(const Core& core, const std::vector<std::vector<int64_t>>& choices,
                        const ReduceOptions& options = {});

// The problem's choice from the core's.
std::vector<int32_t> Expand(const Reduction& reduction, std::span<const int32_t> core_choice);

// The core choice that a problem's choice restricts to; where it was reduced away, the core node's
// first choice.
std::vector<int32_t> Restrict(const Reduction& reduction, std::span<const int32_t> choice);

}  // namespace minka
