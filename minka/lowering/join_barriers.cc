#include "minka/lowering/join_barriers.h"

#include <algorithm>
#include <functional>
#include <map>
#include <queue>
#include <string>
#include <vector>

namespace minka {
namespace {

// Instructions that become one: a barrier's lanes, or any other instruction alone.
struct Unit {
  std::vector<InstructionId> members;
  int num_waiting = 0;         // operands' units that are not written yet
  std::vector<int> followers;  // once per operand
};

std::vector<Unit> MakeUnits(const Computation& entry, std::vector<int>& unit_of) {
  std::vector<Unit> units;
  std::map<std::string, int> barriers;
  for (InstructionId id = 0; id < entry.num_instructions(); ++id) {
    const Instruction& instruction = entry.instructions[id];
    const auto tag = instruction.frontend_attributes.find(kBarrierAttribute);
    int unit = static_cast<int>(units.size());
    if (instruction.opcode == Opcode::kOptBarrier && tag != instruction.frontend_attributes.end()) {
      unit = barriers.try_emplace(tag->second, unit).first->second;
    }
    if (unit == static_cast<int>(units.size())) units.emplace_back();
    units[unit].members.push_back(id);
    unit_of.push_back(unit);
  }
  for (InstructionId id = 0; id < entry.num_instructions(); ++id) {
    for (const Value operand : entry.instructions[id].operands) {
      units[unit_of[operand.instruction]].followers.push_back(unit_of[id]);
      ++units[unit_of[id]].num_waiting;
    }
  }
  return units;
}

// Units in an order in which operands come first, by the last member's position where there is a
// choice; shorter than `units` if they depend on each other in a circle.
std::vector<int> Order(std::vector<Unit> units) {
  using Entry = std::pair<InstructionId, int>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> ready;
  const auto push = [&](int unit) { ready.emplace(units[unit].members.back(), unit); };
  for (int unit = 0; unit < static_cast<int>(units.size()); ++unit) {
    if (units[unit].num_waiting == 0) push(unit);
  }
  std::vector<int> order;
  while (!ready.empty()) {
    const int unit = ready.top().second;
    ready.pop();
    order.push_back(unit);
    for (const int follower : units[unit].followers) {
      if (--units[follower].num_waiting == 0) push(follower);
    }
  }
  return order;
}

Instruction Joined(const Computation& entry, const std::vector<InstructionId>& members) {
  Instruction joined = entry.instructions[members[0]];
  joined.frontend_attributes.erase(kBarrierAttribute);
  for (size_t i = 1; i < members.size(); ++i) {
    const Instruction& lane = entry.instructions[members[i]];
    joined.operands.insert(joined.operands.end(), lane.operands.begin(), lane.operands.end());
    joined.results.insert(joined.results.end(), lane.results.begin(), lane.results.end());
  }
  return joined;
}

void JoinBarriersOf(Computation& computation) {
  const Computation entry = computation;
  std::vector<int> unit_of;
  const std::vector<Unit> units = MakeUnits(entry, unit_of);
  const std::vector<int> order = Order(units);
  if (order.size() < units.size() || units.size() == entry.instructions.size()) return;
  std::vector<Instruction>& instructions = computation.instructions;
  instructions.clear();
  std::vector<Value> first_result(entry.num_instructions());  // what result 0 became
  for (const int unit : order) {
    const std::vector<InstructionId>& members = units[unit].members;
    const auto id = static_cast<InstructionId>(instructions.size());
    int32_t result = 0;
    for (const InstructionId member : members) {
      first_result[member] = {id, result};
      result += static_cast<int32_t>(entry.instructions[member].results.size());
    }
    instructions.push_back(members.size() > 1 ? Joined(entry, members)
                                              : entry.instructions[members[0]]);
    for (Value& operand : instructions.back().operands) {
      operand = {first_result[operand.instruction].instruction,
                 first_result[operand.instruction].result + operand.result};
    }
  }
  const auto moved = [&](Value value) {
    return Value{first_result[value.instruction].instruction,
                 first_result[value.instruction].result + value.result};
  };
  for (Value& result : computation.results) result = moved(result);
  for (InstructionId& parameter : computation.parameters) {
    parameter = first_result[parameter].instruction;
  }
}

}  // namespace

Module JoinBarriers(const Module& module) {
  Module out = module;
  for (Computation& computation : out.computations) JoinBarriersOf(computation);
  return out;
}

}  // namespace minka
