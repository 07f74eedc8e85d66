// What each choice of an operation costs: its local compute, and the collectives that complete its
// results at once.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "minka/cost/cost_model.h"
#include "minka/planner/intra_op/choices.h"

namespace minka {

struct StepFacts;

// Remembers costs of equal operations, so one object should price a whole step. Not thread-safe.
class OpCosts {
 public:
  OpCosts(const StepFacts& facts, const ChoiceTables& tables, const Mesh& mesh,
          const CostModel& cost)
      : facts_(facts), tables_(tables), mesh_(mesh), cost_(cost) {}

  // By choice, in the cost model's unit.
  const std::vector<double>& Costs(InstructionId id);

 private:
  double Cost(InstructionId id, const OpChoices& choices, size_t choice) const;
  int64_t OutsideBytes(InstructionId id, const OpChoices& choices, size_t choice) const;

  const StepFacts& facts_;
  const ChoiceTables& tables_;
  const Mesh& mesh_;
  const CostModel& cost_;
  std::map<std::string, std::vector<double>> costs_;
};

}  // namespace minka
