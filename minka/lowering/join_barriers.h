// Barriers that order memory.
#pragma once

#include <string>
#include <vector>

#include "minka/ir/module.h"

namespace minka {

// Frontend attribute of `opt-barrier` instructions: those with equal text are lanes of one barrier.
inline constexpr char kBarrierAttribute[] = "minka.barrier";

// A barrier of which some lanes depend on others.
struct BarrierApart {
  std::string barrier;  // kBarrierAttribute's text
  int num_apart = 0;    // lanes that stay by themselves
  int num_lanes = 0;
  bool operator==(const BarrierApart&) const = default;
};

struct JoinedBarriers {
  Module module;
  std::vector<BarrierApart> apart;
};

// Makes one barrier of all lanes again, so that nothing behind it can start before everything in
// front of it is there: a recomputation waits for the gradient that it is made for. (The planner
// takes barriers apart, because each value is split on its own.) Instructions keep their order
// otherwise. Where lanes have come to depend on each other, by themselves or through barriers that
// come before theirs, those that do not depend on their barrier's first lanes, nor these on them,
// are joined with them, and the others stay apart.
JoinedBarriers JoinBarriers(Module module);

// One line per barrier for the plan's notes.
std::vector<std::string> NotesOnBarriers(const std::vector<BarrierApart>& apart);

}  // namespace minka
