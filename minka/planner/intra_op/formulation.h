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
#include <span>
#include <vector>

#include "minka/analysis/fusion_groups.h"
#include "minka/cost/cost_model.h"
#include "minka/ir/micro_loop.h"
#include "minka/planner/intra_op/choices.h"
#include "minka/planner/intra_op/reshard_costs.h"
#include "minka/solver/model/problem.h"

namespace minka {

// What is known of the step before anything is chosen; everything by instruction or value of the
// entry computation.
struct StepFacts {
  // For what the platform's compiler makes of the step.
  explicit StepFacts(const Step& step, Platform platform = Platform::kCpu);

  const Step& step;
  const Platform platform;
  const Computation& entry;
  UseTable uses;
  std::vector<Phase> phases;
  // For memory, as if the step was one program: what one program keeps for another is counted by
  // who holds it in between. (Prices: PricedComputation.)
  FusionPartition fusions;
  // When it runs last: one that leaves nothing in memory runs with those that read it.
  std::vector<InstructionId> last_runs;
  std::vector<std::vector<int>>
      state_parameters;  // by instruction, for result 0 values: parameters it is the new value of

  MicroLoop loop;
  std::vector<bool> is_activation;  // by instruction: depends on the batch, comes before apply
  // The first instruction of the backward pass that works on something of the batch (kernels are
  // turned around before), in the loop over micro-batches if there is one; without one, behind all.
  // What all layers keep for the backward pass is there then, and what the update reads.
  const InstructionId turning_point;
  // By instruction: in the apply phase, or arranges what only the apply phase reads.
  std::vector<bool> leads_to_apply_only;

  bool IsMaterialised(Value value) const;  // leaves its fusion group
  TensorClass ClassOf(Value value) const;
  // How many values enter the apply phase, where their reshards may be combined; at least 1.
  int NumEnteringApply() const;
  // Does nothing before the apply phase read it? Then it may be made together with others.
  bool IsReadLate(Value value) const;
  // Sums and stacks of a loop are there from its begin, what it reads to its end.
  InstructionId FirstTime(Value value) const;
  InstructionId LastUse(Value value) const;
  // The readers of one value that share a view: by phase; outside the loop over micro-batches they
  // are one more.
  int ViewGroup(InstructionId reader) const {
    const bool is_outside = loop.exists() && !loop.IsInside(reader);
    return is_outside ? kNumViewGroups - 1 : static_cast<int>(phases[reader]);
  }
  static constexpr int kNumViewGroups = 4;
  // How often a step makes a version of the value for the reader. What a stack begins with is made
  // in front of the loop.
  int64_t RunsOfReshard(Value value, InstructionId reader, bool hoists) const {
    if (loop.IsTransient(value.instruction)) return loop.num_micro_batches;
    const bool hoisted = hoists || !loop.IsInside(reader) || loop.IsStack(reader);
    return hoisted ? 1 : loop.num_micro_batches;
  }
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
  std::array<NodeId, StepFacts::kNumViewGroups> views = {-1, -1, -1, -1};  // by view group
  NodeId SourceFor(int group) const { return views[group] >= 0 ? views[group] : kept; }
};

// The reshards that an edge prices: from every sharding of one port to those of others, so often
// per step.
struct EdgeReshards {
  PortId from = -1;
  std::vector<PortId> to;  // by operand
  ReshardUse use;
  int64_t runs = 1;
  Shape shape;
};

struct Formulation {
  SolverProblem problem;
  std::vector<EdgeReshards> reshards;
  std::vector<int32_t> reshards_of_edge;          // by edge of the problem
  std::vector<PortId> ports;                      // by node; operations: of result 0
  std::vector<NodeId> operations;                 // by instruction
  std::vector<std::vector<ValueLayout>> layouts;  // [instruction][result]
  // Are versions that the loop over micro-batches reads made once, in front of it?
  bool hoists_reshards = true;
  double units_per_cost = 1;  // solver cost = cost * units_per_cost, rounded down
  double most_per_cell = 0;   // in solver cost: what is dearer is cut to it
};

// What the search takes for memory at a price: the problem with it, and what a byte of each of its
// usages costs, or nothing.
struct ChargedProblem {
  SolverProblem problem;
  std::vector<double> us_per_byte;

  double HeldCost(std::span<const int32_t> choice) const;
};
ChargedProblem ChargeMemory(const StepFacts& facts, const Formulation& formulation,
                            const MemoryPrice& price);

// Without a price of memory. Adds the ports of kept and view nodes to `tables`.
Formulation Formulate(const StepFacts& facts, ChoiceTables& tables, ReshardCosts& reshards,
                      const Mesh& mesh, const CostModel& cost, const IntraOpOptions& options);

// What the reshards of a choice take, each paid as the edges pay it, and how much more they cost in
// the search, see ReshardLimits; exact, in units of the cost model.
struct ReshardTimes {
  double time = 0;
  double penalties = 0;
};
ReshardTimes ReshardTimesOf(const Formulation& formulation, const ChoiceTables& tables,
                            ReshardCosts& reshards, std::span<const int32_t> choice);

}  // namespace minka
