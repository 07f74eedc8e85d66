#include "minka/lowering/join_barriers.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <queue>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "minka/ir/rewriter.h"

namespace minka {
namespace {

// Instructions that become one: a barrier's lanes, or any other instruction alone.
struct Unit {
  std::vector<InstructionId> members;
  int num_waiting = 0;         // operands' units that are not written yet
  std::vector<int> followers;  // once per operand
};

// A barrier in the order of its first lanes.
struct Barrier {
  std::string text;
  std::vector<InstructionId> lanes;
};

std::vector<Barrier> FindBarriers(const Computation& entry) {
  std::vector<Barrier> barriers;
  std::map<std::string, size_t> by_text;
  for (InstructionId id = 0; id < entry.num_instructions(); ++id) {
    const Instruction& instruction = entry.instructions[id];
    const auto tag = instruction.frontend_attributes.find(kBarrierAttribute);
    if (instruction.opcode != Opcode::kOptBarrier || tag == instruction.frontend_attributes.end()) {
      continue;
    }
    const auto [found, added] = by_text.try_emplace(tag->second, barriers.size());
    if (added) barriers.push_back({.text = tag->second});
    barriers[found->second].lanes.push_back(id);
  }
  return barriers;
}

constexpr int kAlone = -1;

// `barrier_of`: by instruction, the barrier that it becomes one with, or kAlone.
std::vector<Unit> MakeUnits(const Computation& entry, const std::vector<int>& barrier_of,
                            std::vector<int>& unit_of) {
  std::vector<Unit> units;
  std::map<int, int> unit_of_barrier;
  unit_of.clear();
  for (InstructionId id = 0; id < entry.num_instructions(); ++id) {
    int unit = static_cast<int>(units.size());
    if (barrier_of[id] != kAlone) {
      unit = unit_of_barrier.try_emplace(barrier_of[id], unit).first->second;
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

bool HasOrder(const Computation& entry, const std::vector<int>& barrier_of) {
  std::vector<int> unit_of;
  const std::vector<Unit> units = MakeUnits(entry, barrier_of, unit_of);
  return Order(units).size() == units.size();
}

// Barriers as MakeUnits wants them: all, or, where they depend on each other in a circle, one after
// the other as far as they do not.
std::vector<int> ChooseBarriers(const Computation& entry, std::vector<BarrierApart>& apart) {
  const std::vector<Barrier> barriers = FindBarriers(entry);
  std::vector<int> barrier_of(entry.num_instructions(), kAlone);
  const auto set = [&](int barrier, int value) {
    for (const InstructionId lane : barriers[barrier].lanes) barrier_of[lane] = value;
  };
  const auto num_barriers = static_cast<int>(barriers.size());
  for (int barrier = 0; barrier < num_barriers; ++barrier) set(barrier, barrier);
  if (HasOrder(entry, barrier_of)) return barrier_of;
  std::ranges::fill(barrier_of, kAlone);
  for (int barrier = 0; barrier < num_barriers; ++barrier) {
    set(barrier, barrier);
    if (HasOrder(entry, barrier_of)) continue;
    set(barrier, kAlone);
    const std::vector<InstructionId>& lanes = barriers[barrier].lanes;
    BarrierApart& left = apart.emplace_back(BarrierApart{
        .barrier = barriers[barrier].text, .num_lanes = static_cast<int>(lanes.size())});
    for (const InstructionId lane : lanes) {
      barrier_of[lane] = barrier;
      if (HasOrder(entry, barrier_of)) continue;
      barrier_of[lane] = kAlone;
      ++left.num_apart;
    }
  }
  return barrier_of;
}

Instruction Joined(const Rewriter& rewriter, const std::vector<InstructionId>& lanes) {
  Instruction joined = rewriter.Translated(lanes[0]);
  joined.frontend_attributes.erase(kBarrierAttribute);
  for (size_t i = 1; i < lanes.size(); ++i) {
    const Instruction lane = rewriter.Translated(lanes[i]);
    joined.operands.insert(joined.operands.end(), lane.operands.begin(), lane.operands.end());
    joined.results.insert(joined.results.end(), lane.results.begin(), lane.results.end());
  }
  return joined;
}

void WriteJoined(Rewriter& rewriter, const std::vector<InstructionId>& lanes) {
  const std::vector<Value> results = rewriter.Append(Joined(rewriter, lanes));
  auto next = results.begin();
  for (const InstructionId lane : lanes) {
    const auto end = next + std::ssize(rewriter.source().instructions[lane].results);
    rewriter.Map(lane, {next, end});
    next = end;
  }
}

void JoinBarriersOf(Computation& computation, std::vector<BarrierApart>& apart) {
  const Computation source = computation;
  std::vector<int> unit_of;
  const std::vector<Unit> units = MakeUnits(source, ChooseBarriers(source, apart), unit_of);
  if (units.size() == source.instructions.size()) return;
  Rewriter rewriter(source);
  for (const int unit : Order(units)) {
    const std::vector<InstructionId>& members = units[unit].members;
    if (members.size() == 1) {
      rewriter.Copy(members[0]);
    } else {
      WriteJoined(rewriter, members);
    }
  }
  computation = std::move(rewriter).Finish();
}

}  // namespace

JoinedBarriers JoinBarriers(Module module) {
  JoinedBarriers out = {.module = std::move(module)};
  for (Computation& computation : out.module.computations) JoinBarriersOf(computation, out.apart);
  return out;
}

std::vector<std::string> NotesOnBarriers(const std::vector<BarrierApart>& apart) {
  std::vector<std::string> notes;
  for (const BarrierApart& barrier : apart) {
    notes.push_back(
        fmt::format("of barrier \"{}\", {} of {} lanes stay apart, because some wait for others: "
                    "what is behind one need not wait for all, so memory may be held for longer",
                    barrier.barrier, barrier.num_apart, barrier.num_lanes));
  }
  return notes;
}

}  // namespace minka
