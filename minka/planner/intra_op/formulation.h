// The step as a discrete problem: nodes choose, edges price the reshards between choices, usages
// count bytes over time.
//
// A node per operation (choice: a strategy). A value with several users has a kept node (choice: a
// sharding; producer -> kept is paid once; its bytes live to the last use) and, per phase with
// several users, a view node below it (choice: a sharding; kept -> view is paid once per phase; its
// bytes live from the first to the last use there). Under a memory limit each sharding of a view
// stands twice: "as kept" (no bytes, only where kept is equal) and "fresh" (a copy). Single-use
// values have a plain edge. The new value of a state parameter has an edge to the parameter's node.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "minka/analysis/fusion_groups.h"
#include "minka/cost/cost_model.h"
#include "minka/planner/intra_op/choices.h"
#include "minka/planner/intra_op/reshard_costs.h"
#include "minka/solver/problem.h"

namespace minka {

// What is known of the step before anything is chosen; everything by instruction or value of the
// entry computation.
struct StepFacts {
  explicit StepFacts(const Step& step);

  const Step& step;
  const Computation& entry;
  UseTable uses;
  std::vector<Phase> phases;
  FusionPartition fusions;
  std::vector<bool> leads_group;  // first operation of its fusion group
  std::vector<std::vector<int>>
      state_parameters;  // by instruction, for result 0 values: parameters it is the new value of

  bool IsMaterialised(Value value) const;  // leaves its fusion group
  // Does the reader get the value without a trip through memory?
  bool IsInside(Value value, InstructionId reader) const {
    return fusions.repeated[value.instruction] ||
           fusions.group[value.instruction] == fusions.group[reader];
  }
  InstructionId LastUse(Value value) const;
};

// Distinct instructions that read a value, each with the operands it reads it as; in instruction
// order.
struct User {
  InstructionId instruction = -1;
  std::vector<int> operands;
  int state_parameter = -1;  // >= 0: no instruction, but the parameter whose new value this is
};
std::vector<User> UsersOf(const StepFacts& facts, Value value);

struct ValueLayout {
  NodeId kept = -1;  // the producer's own node where the value has no kept node
  std::array<NodeId, 3> views = {-1, -1, -1};  // by phase
  NodeId SourceFor(Phase phase) const {
    const NodeId view = views[static_cast<int>(phase)];
    return view >= 0 ? view : kept;
  }
};

struct Formulation {
  SolverProblem problem;
  std::vector<PortId> ports;                      // by node; operations: of result 0
  std::vector<NodeId> operations;                 // by instruction
  std::vector<std::vector<ValueLayout>> layouts;  // [instruction][result]
  double units_per_cost = 1;                      // solver cost = cost * units_per_cost
};

// Adds the ports of kept and view nodes to `tables`.
Formulation Formulate(const StepFacts& facts, ChoiceTables& tables, ReshardCosts& reshards,
                      const Mesh& mesh, const CostModel& cost, const IntraOpOptions& options);

}  // namespace minka
