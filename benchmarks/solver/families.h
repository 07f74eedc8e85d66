// Problems of our own for the solver's table, made from a seed: shapes that stress one thing each.
#pragma once

#include <string>
#include <vector>

#include "minka/solver/model/problem.h"

namespace minka {

struct NamedProblem {
  std::string name;
  SolverProblem problem;
};

// chain: long, narrow, tight memory. grid_long_range: a grid with random far edges, little memory.
// dense_forbidden: half of all pairs forbidden. transformer, transformer_tied: repeated layers with
// residual edges, the second with one table shared by first and last layer. wide_choices: few nodes
// with hundreds of choices, as on 3-D meshes. program: irregular, up to 39 choices a node, a limit
// a tenth above the least, as in the contest's instances. Each with and without a tight limit where
// memory is the point. Other seeds give others of the same shapes.
std::vector<NamedProblem> MakeFamilies(uint64_t seed = 0);

}  // namespace minka
