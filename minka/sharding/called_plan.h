// How a computation that control flow calls (a loop body, a branch) runs on a mesh once the
// shardings of its parameters and results are fixed: a strategy for every operation, and where its
// values change their sharding. Collectives may stand inside: all devices agree on predicates and
// trip counts, which are whole and complete.
//
// Decided greedily in one pass from parameters to results: every mesh axis of an operation does
// what moves the fewest bytes, at a price per byte and collective against the work it divides; what
// costs nothing to divide is then made in the slices that its readers want. The search chooses
// among loops' factors (op_rule.h) and pays what this makes of them; the plan holds what it paid
// for, and lowering reads it there.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "minka/ir/module.h"
#include "minka/sharding/mesh.h"
#include "minka/sharding/op_rule.h"
#include "minka/sharding/reshard.h"

namespace minka {

// A value made once in another sharding than its producer makes.
struct CalledReshard {
  Value value;
  Sharding from, to;
  std::vector<ReshardStep> steps;
};

// Versions of values: 0: as its producer makes it; i > 0: made by reshards[i - 1].
struct CalledPlan {
  struct Operation {
    Strategy strategy;  // parameters: idle
    std::vector<int> operand_versions;
    std::vector<CalledPlan> called;  // while, conditional: by called computation
  };
  std::vector<Sharding> parameters;   // by number
  std::vector<Operation> operations;  // by instruction
  std::vector<CalledReshard> reshards;
  std::vector<int> result_versions;
};

// The version of `value` numbered `version` has this sharding; `rules` are the computation's.
Sharding VersionSharding(const Computation& computation, std::span<const OpRule> rules,
                         const CalledPlan& plan, Value value, int version);

// What moving costs, in operations on one element.
struct CalledPrices {
  double per_byte = 0;  // that moves between devices
  double per_collective = 0;
};

// By which rules try what a factor does to a loop, and loops within micro-batches are written
// (lowering/micro_batches.cc). No cost model's: which factors a rule offers, and what they leave
// owed, is part of what the strategies of a saved plan mean, and the written loop of its module's
// hash.
inline constexpr CalledPrices kTrialPrices = {.per_byte = 8, .per_collective = 4096};

// Without `results` every result stays as it was made. Parameters by number, rules by instruction.
// What control flow in the computation calls is left out.
CalledPlan PlanCalled(std::span<const OpRule> rules, const Computation& computation,
                      std::span<const Sharding> parameters,
                      std::optional<std::span<const Sharding>> results, const Mesh& mesh,
                      const CalledPrices& prices);

// How a computation takes its parameters and leaves its results, both by number.
struct CalledShardings {
  std::vector<Sharding> parameters, results;
};
// Of called computation `index` of a `while` or `conditional` that runs by `strategy`. Conditions
// are whole.
CalledShardings ShardingsOfCalled(const Module& module, const Computation& computation,
                                  InstructionId id, const OpRule& rule, const Strategy& strategy,
                                  size_t index);

bool IsControlFlow(Opcode opcode);

// The plans of what a `while` or `conditional` calls, loops within loops included, if it runs by
// `strategy`; none for other operations.
std::vector<CalledPlan> PlanCalledBy(const Module& module, const Computation& computation,
                                     InstructionId id, const OpRule& rule, const Strategy& strategy,
                                     const Mesh& mesh, const CalledPrices& prices);

// Multiplications, additions and other operations on elements, as far as shapes tell.
double RoughWork(const Computation& computation, InstructionId id);

std::vector<OpRule> RulesOf(const Module& module, const Computation& computation);

// One collective that an operation itself brings, besides the reshards of what it reads.
struct OperationCollective {
  StepWork work;
  ElementType type = ElementType::kInvalid;
  double times = 1;  // the trips of the loops within the operation that are around it
};

// How often the body of a `while` runs.
using Trips = std::function<double(const Computation&, InstructionId)>;

// What completes kCombine factors, shares what `rng` draws, and stands inside control flow, which
// runs by the plans `called`.
std::vector<OperationCollective> CollectivesOf(const Module& module, const Computation& computation,
                                               InstructionId id, const OpRule& rule,
                                               const Strategy& strategy,
                                               std::span<const CalledPlan> called, const Mesh& mesh,
                                               const Trips& trips);

}  // namespace minka
