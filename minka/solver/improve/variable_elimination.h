// The exact answer of a core without memory by eliminating its nodes one after another (bucket
// elimination; Dechter, "Bucket elimination: A unifying framework for reasoning", AIJ 1999). Work
// and memory grow with the product of the choices of the nodes that meet in one table, so this is
// for cores from which most choices have been pruned.
#pragma once

#include <cstdint>
#include <optional>

#include "minka/solver/reduce/core.h"
#include "minka/solver/reduce/core_answer.h"

namespace minka {

struct Eliminated {
  bool complete = false;             // within `most_work`; else nothing is known
  std::optional<CoreAnswer> answer;  // the cheapest; none if all choices are forbidden together
  int64_t work = 0;                  // table cells, also if given up
};

// `core` has no times.
Eliminated SolveByElimination(const Core& core, int64_t most_work);

}  // namespace minka
