// Which op rules the random programs exercised, and in which ways.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "minka/ir/module.h"
#include "minka/plan/plan.h"

namespace minka {

// Of one rule. A way counts once per operation that ran split or partial over some axis; `can`
// tells whether the rule has the way at all.
struct WayCount {
  bool can = false;
  int count = 0, on_three_axes = 0;
};
struct RuleCoverage {
  int num_operations = 0;
  WayCount split;          // an axis splits a factor
  WayCount partial;        // an axis makes operands partial
  WayCount initial_value;  // the value that a reduction, scatter or pad starts from is not zero
  WayCount padding;        // a window or pad reaches beyond the operand
};

class Coverage {
 public:
  void Add(const Module& module, const StagePlan& stage);
  void Print() const;
  // "reduce (add): 3 with partial operands" for each way of a rule that was taken less than `least`
  // times, and every operation with a rule that never ran.
  std::vector<std::string> Missing(int least) const;

 private:
  void AddOperation(const Module& module, const StagePlan& stage, InstructionId id);

  std::map<std::string, RuleCoverage> rules_;  // by opcode, with the form: "scatter (add)"
  std::map<std::string, int> local_forms_;     // of split factors
  std::map<std::string, int> reshard_steps_;   // by kind, combined ones as "kind (combined)"
};

}  // namespace minka
