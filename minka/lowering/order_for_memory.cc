#include "minka/lowering/order_for_memory.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "minka/ir/rewriter.h"
#include "minka/lowering/last_reads.h"
#include "minka/sharding/called_plan.h"

namespace minka {
namespace {

class EarlyOrder {
 public:
  explicit EarlyOrder(const Computation& computation)
      : computation_(computation),
        uses_(computation),
        root_of_(computation.num_instructions(), -1),
        behind_(computation.num_instructions()),
        num_long_before_(computation.num_instructions() + 1) {
    std::iota(behind_.begin(), behind_.end(), 0);
    for (InstructionId id = 0; id < computation.num_instructions(); ++id) {
      const bool is_long = IsHeavy(instruction(id)) || IsControlFlow(instruction(id).opcode);
      num_long_before_[id + 1] = num_long_before_[id] + (is_long ? 1 : 0);
    }
  }

  // The instructions as they are to stand.
  std::vector<InstructionId> Make() && {
    const LastReads reads(computation_, uses_);
    for (InstructionId id = 0; id < computation_.num_instructions(); ++id) {
      const bool may_move = IsHeavy(instruction(id)) || instruction(id).opcode == Opcode::kReduce;
      if (may_move && reads.FreesMemory(id)) Move(id);
    }
    std::vector<InstructionId> order(computation_.num_instructions());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, {}, [&](InstructionId id) { return behind_[id]; });
    return order;
  }

 private:
  const Instruction& instruction(InstructionId id) const { return computation_.instructions[id]; }

  // What may stand anywhere without taking memory: parameters, constants, and broadcasts of them.
  bool IsAnywhere(InstructionId id) const {
    switch (instruction(id).opcode) {
      case Opcode::kParameter:
      case Opcode::kConstant:
      case Opcode::kIota:
        return true;
      case Opcode::kBroadcast:
        return IsAnywhere(instruction(id).operands[0].instruction);
      default:
        return false;
    }
  }

  void Move(InstructionId root) {
    // What it alone needs, and the last of what else it reads. Readers are met before what they
    // read.
    std::vector<InstructionId> tree, anywhere;
    InstructionId last = -1;
    std::set<InstructionId, std::greater<>> met = {root};
    while (!met.empty()) {
      const InstructionId id = *met.begin();
      met.erase(met.begin());
      if (IsAnywhere(id)) {
        anywhere.push_back(id);
      } else if (id == root || IsNeededAloneBy(root, id)) {
        root_of_[id] = root;
        tree.push_back(id);
        for (const Value& operand : instruction(id).operands) met.insert(operand.instruction);
      } else {
        last = std::max(last, behind_[id]);
      }
    }
    if (last < 0 || num_long_before_[root] == num_long_before_[last + 1]) return;
    for (const InstructionId id : tree) behind_[id] = std::min(behind_[id], last);
    for (InstructionId id : anywhere) {
      behind_[id] = std::min(behind_[id], last);
      while (instruction(id).opcode == Opcode::kBroadcast) {
        id = instruction(id).operands[0].instruction;
        behind_[id] = std::min(behind_[id], last);
      }
    }
  }

  // A light one that only the root's tree reads.
  bool IsNeededAloneBy(InstructionId root, InstructionId id) const {
    const Instruction& light = instruction(id);
    const bool is_light =
        IsElementwise(light.opcode) || IsView(light) || light.opcode == Opcode::kBroadcast;
    const Value value{id, 0};
    return is_light && light.results.size() == 1 && !uses_.is_result(value) &&
           std::ranges::all_of(uses_.uses(value),
                               [&](const Use& use) { return root_of_[use.user] == root; });
  }

  const Computation& computation_;
  const UseTable uses_;
  std::vector<InstructionId> root_of_;  // by instruction: whose tree it is in
  // By instruction: the one behind which it is to stand, itself if it stays.
  std::vector<InstructionId> behind_;
  std::vector<int> num_long_before_;  // dots, convolutions, loops and branches
};

}  // namespace

Module OrderForMemory(Module module) {
  for (Computation& computation : module.computations) {
    const std::vector<InstructionId> order = EarlyOrder(computation).Make();
    if (std::ranges::is_sorted(order)) continue;
    Rewriter rewriter(computation);
    for (const InstructionId id : order) rewriter.Move(id, std::move(computation.instructions[id]));
    computation = std::move(rewriter).Finish();
  }
  return module;
}

}  // namespace minka
