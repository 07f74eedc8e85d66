// A stage's module with its plan, as the lowering reads it.
#pragma once

#include <vector>

#include "minka/ir/micro_loop.h"
#include "minka/ir/module.h"
#include "minka/plan/plan.h"
#include "minka/sharding/op_rule.h"

namespace minka {

// A value as the plan first has it (0) or as one of its reshards makes it.
struct ValueVersion {
  Value value;
  int version = 0;  // see Reshard::from_version
  auto operator<=>(const ValueVersion&) const = default;
};

// Module and plan must live as long.
class PlannedStage {
 public:
  PlannedStage(const Module& module, const StagePlan& plan);

  const Module& module() const { return module_; }
  const Computation& entry() const { return entry_; }
  const Instruction& instruction(InstructionId id) const { return entry_.instructions[id]; }
  const StagePlan& plan() const { return plan_; }
  const Mesh& mesh() const { return plan_.mesh; }
  const MicroLoop& loop() const { return loop_; }
  const OpRule& rule(InstructionId id) const { return rules_[id]; }

  Sharding ShardingOf(const ValueVersion& made) const;
  Shape LocalShapeOf(const ValueVersion& made) const;
  ValueVersion SourceOf(int reshard) const;
  ValueVersion Operand(InstructionId id, int operand) const;
  ValueVersion Result(int result) const;

  // What is written one after the other: instructions by number, then lists of reshards that each
  // run as one collective.
  int num_nodes() const { return entry_.num_instructions() + static_cast<int>(lists_.size()); }
  bool IsInstruction(int node) const { return node < entry_.num_instructions(); }
  const std::vector<int>& list(int node) const { return lists_[node - entry_.num_instructions()]; }
  // Reshards of unequal parts, by reshard, do not run as one.
  void KeepApart(const std::vector<int>& part_of_reshard);

  // All nodes, part by part (`parts`, by node): those that are ready, by first place in the source,
  // instructions before lists. Combined collectives wait for all that they read, and their readers
  // for them; but what combined gathers read stands in front of them (in plans of the planner views
  // of state).
  std::vector<int> Order(const std::vector<int>& parts) const;

 private:
  bool IsCombinedGather(int node) const;

  const Module& module_;
  const Computation& entry_;
  const StagePlan& plan_;
  MicroLoop loop_;
  std::vector<OpRule> rules_;            // by instruction
  std::vector<std::vector<int>> lists_;  // of reshards
};

}  // namespace minka
