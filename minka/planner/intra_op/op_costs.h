// What each choice of an operation costs: its local compute, and the collectives that complete its
// results at once.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "minka/analysis/fusion_groups.h"
#include "minka/cost/cost_model.h"
#include "minka/planner/intra_op/choices.h"
#include "minka/sharding/called_plan.h"

namespace minka {

struct StepFacts;

// A computation as it is priced: the entry, a loop's body and condition, a branch.
struct PricedComputation {
  // `computation` is of the module. `is_loop`: its results take the place of its parameters.
  PricedComputation(const Module& module, const Computation& computation, const CostModel& cost,
                    bool is_loop = false);

  const Computation& computation;
  UseTable uses;
  FusionPartition fusions;
  // First operation of its fusion group, views of what is in memory aside: it pays the launch.
  std::vector<bool> leads_group;

  // How often an instruction brings in its operand from memory: on GPUs every kernel that it is in
  // does so once, for all of its instructions; loops of processors for each that is not made there.
  int NumReads(InstructionId reader, int operand) const { return num_reads_[reader][operand]; }
  // In how many loops of processors the operation is computed.
  double NumCopies(InstructionId id) const {
    const size_t num_copies = fusions.copies[id].size();
    return num_copies > 1 && visible_.empty() ? static_cast<double>(num_copies) : 1;
  }
  // The part of an elementwise operation's arithmetic that its kernel's memory traffic does not
  // hide: a GPU does both at once, a processor is priced operation by operation (1).
  double VisibleArithmetic(InstructionId id) const {
    return visible_.empty() ? 1 : visible_[fusions.group[id]];
  }
  // Does its maker write it to memory? What a view shows is written once, by what it is a view of,
  // however many views there are.
  bool IsWritten(Value value) const {
    return value.result == 0 ? is_written_[value.instruction] : fusions.IsMaterialised(uses, value);
  }
  // Is what it writes written where nothing lies that it reads? Arithmetic may take the place of an
  // operand that nobody reads afterwards.
  bool IsFresh(Value value) const { return value.result != 0 || is_fresh_[value.instruction]; }

 private:
  bool IsInside(Value value, int group) const {
    return fusions.repeated[value.instruction] || fusions.group[value.instruction] == group;
  }
  void CountReads(Platform platform);
  void FindFresh(const Module& module, bool is_loop);
  // What a result's group reads from memory of which an element decides about that of the result
  // alone.
  std::vector<Value> ReadElementByElement(InstructionId result) const;
  void HideArithmetic(const Module& module, const CostModel& cost);

  std::vector<bool> is_written_;             // by instruction, result 0
  std::vector<bool> is_fresh_;               // by instruction, result 0
  std::vector<InstructionId> viewed_;        // by instruction: itself, or what it is a view of
  std::vector<std::vector<int>> num_reads_;  // by instruction and operand
  std::vector<double> visible_;              // by group; empty: 1
};

// Prices operations by what one device does, in the cost model's unit: every fusion group a launch
// and the bytes that enter and leave it (of tables that are sliced, looked up or updated in place,
// the part that is touched), control flow by what it calls, by the same rules, times its trips (one
// where they are unknown, see NotesOnTrips). Not thread-safe.
class OperationPrices {
 public:
  OperationPrices(const Module& module, const Mesh& mesh, const CostModel& cost)
      : module_(module), mesh_(mesh), cost_(cost) {}

  // One run; `in` is of the module. `called` are the plans of what control flow calls.
  double Price(const PricedComputation& in, InstructionId id, const OpRule& rule,
               const Strategy& strategy, std::span<const CalledPlan> called) {
    return Price(in, id, rule, strategy, called, /*cached_part=*/0);
  }

 private:
  // `cached_part`: of what it reads and writes, that stays in the caches from one turn of a loop to
  // the next.
  double Price(const PricedComputation& in, InstructionId id, const OpRule& rule,
               const Strategy& strategy, std::span<const CalledPlan> called, double cached_part);
  double ControlPrice(const PricedComputation& in, InstructionId id,
                      std::span<const CalledPlan> called);
  double CalledPrice(ComputationId called, const CalledPlan& plan, bool repeats);
  LocalWork WorkOf(const PricedComputation& in, InstructionId id, const OpRule& rule,
                   const Strategy& strategy) const;
  ReductionKernel KernelOf(const Computation& computation, const Instruction& instruction) const;
  // Of a dot's operands that are copied into another order first.
  int64_t CopiedOperandBytes(const PricedComputation& in, InstructionId id, const OpRule& rule,
                             const Strategy& strategy) const;
  // What a loop's body or condition reads of what it is given, each array once, and what it writes,
  // except what takes the place of what was given and read; of loops and branches inside, what they
  // are given and make.
  int64_t TouchedBytes(const PricedComputation& in, const std::vector<OpRule>& rules,
                       const CalledPlan& plan) const;
  // Precondition: the cost model knows the caches.
  double CachedPart(int64_t touched_bytes) const;
  // Of an operand from outside the fusion group, and of a result for it.
  int64_t ReadBytes(const PricedComputation& in, InstructionId id, int operand, const OpRule& rule,
                    const Strategy& strategy) const;
  int64_t WrittenBytes(const PricedComputation& in, InstructionId id, int result,
                       const OpRule& rule, const Strategy& strategy) const;
  // Of OutsideBytes, those of results and copies that take nothing's place.
  int64_t FreshBytes(const PricedComputation& in, InstructionId id, const OpRule& rule,
                     const Strategy& strategy) const;
  int64_t OutsideBytes(const PricedComputation& in, InstructionId id, const OpRule& rule,
                       const Strategy& strategy) const;

  const Module& module_;
  const Mesh& mesh_;
  const CostModel& cost_;
  struct Called {
    PricedComputation priced;
    std::vector<OpRule> rules;  // by instruction
  };
  std::map<ComputationId, std::unique_ptr<Called>> called_;
};

// One line per loop whose number of trips nothing says.
std::vector<std::string> NotesOnTrips(const Module& module);

// Remembers costs of equal operations, so one object should price a whole step. Not thread-safe.
class OpCosts {
 public:
  OpCosts(const StepFacts& facts, const ChoiceTables& tables, const Mesh& mesh,
          const CostModel& cost);

  // By choice, in the cost model's unit.
  const std::vector<double>& Costs(InstructionId id);

 private:
  double Cost(InstructionId id, const OpChoices& choices, size_t choice);

  const StepFacts& facts_;
  const ChoiceTables& tables_;
  const Mesh& mesh_;
  const CostModel& cost_;
  const PricedComputation entry_;
  OperationPrices prices_;
  std::map<std::string, std::vector<double>> costs_;
};

}  // namespace minka
