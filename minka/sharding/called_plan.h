// How a computation that control flow calls (a loop body, a branch) runs on a mesh once the
// shardings of its parameters and results are fixed: a strategy for every operation, and where its
// values change their sharding. Collectives may stand inside: all devices agree on predicates and
// trip counts, which are whole and complete.
//
// Decided greedily in one pass from parameters to results: every mesh axis of an operation does
// what moves the fewest bytes, at a fixed price per byte and collective against the work it
// divides; what costs nothing to divide is then made in the slices that its readers want. The
// search chooses among loops' factors (op_rule.h) and pays what this makes of them.
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

// A value made once in another sharding.
struct CalledReshard {
  Value value;
  Sharding to;
  std::vector<ReshardStep> steps;
};

struct CalledPlan {
  std::vector<OpRule> rules;                   // by instruction
  std::vector<Strategy> strategies;            // by instruction
  std::vector<std::vector<Sharding>> results;  // [instruction][result]
  std::vector<CalledReshard> reshards;
  // Which reshard each operand reads, and each result of the computation; -1: the value as made.
  std::vector<std::vector<int>> operand_reshards;
  std::vector<int> result_reshards;
};

// Without `results` every result stays as it was made. Parameters by number.
CalledPlan PlanCalled(const Module& module, const Computation& computation,
                      std::span<const Sharding> parameters,
                      std::optional<std::span<const Sharding>> results, const Mesh& mesh);
// The same where the rules of the computation's instructions are known.
CalledPlan PlanCalled(std::vector<OpRule> rules, const Computation& computation,
                      std::span<const Sharding> parameters,
                      std::optional<std::span<const Sharding>> results, const Mesh& mesh);

// Multiplications, additions and other operations on elements, as far as shapes tell.
double RoughWork(const Computation& computation, InstructionId id);

std::vector<OpRule> RulesOf(const Module& module, const Computation& computation);

// The plan of called computation `index` of a `while` or `conditional` that runs by `strategy`.
CalledPlan PlanCalledBy(const Module& module, const Computation& computation, InstructionId id,
                        const OpRule& rule, const Strategy& strategy, size_t index,
                        const Mesh& mesh);

// One collective that an operation itself brings, besides the reshards of what it reads.
struct OperationCollective {
  StepWork work;
  ElementType type = ElementType::kInvalid;
  double times = 1;  // the trips of the loops within the operation that are around it
};

// How often the body of a `while` runs.
using Trips = std::function<double(const Computation&, InstructionId)>;

// What completes kCombine factors, shares what `rng` draws, and stands inside control flow.
std::vector<OperationCollective> CollectivesOf(const Module& module, const Computation& computation,
                                               InstructionId id, const OpRule& rule,
                                               const Strategy& strategy, const Mesh& mesh,
                                               const Trips& trips);

}  // namespace minka
