#include "minka/lowering/order_for_memory.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "minka/ir/rewriter.h"
#include "minka/lowering/last_reads.h"

namespace minka {
namespace {

class EarlyOrder {
 public:
  explicit EarlyOrder(const Computation& computation)
      : computation_(computation),
        uses_(computation),
        behind_(computation.num_instructions()),
        num_heavy_before_(computation.num_instructions() + 1) {
    std::iota(behind_.begin(), behind_.end(), 0);
    for (InstructionId id = 0; id < computation.num_instructions(); ++id) {
      num_heavy_before_[id + 1] = num_heavy_before_[id] + (IsHeavy(instruction(id)) ? 1 : 0);
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

  // What stands anywhere without taking memory: constants, and what is made of them alone.
  bool IsAnywhere(InstructionId id) const {
    return IsFree(instruction(id)) &&
           std::ranges::all_of(instruction(id).operands, [&](const Value& operand) {
             return IsAnywhere(operand.instruction);
           });
  }

  void Move(InstructionId root) {
    // What it alone needs, and the last of what else it reads.
    std::vector<InstructionId> tree = {root}, anywhere;
    InstructionId last = 0;
    for (size_t i = 0; i < tree.size(); ++i) {
      for (const Value& operand : instruction(tree[i]).operands) {
        const InstructionId id = operand.instruction;
        if (IsAnywhere(id)) {
          anywhere.push_back(id);
        } else if (IsNeededAloneBy(tree, id)) {
          if (std::ranges::find(tree, id) == tree.end()) tree.push_back(id);
        } else {
          last = std::max(last, behind_[id]);
        }
      }
    }
    if (num_heavy_before_[root] == num_heavy_before_[last + 1]) return;
    for (const InstructionId id : tree) behind_[id] = last;
    for (size_t i = 0; i < anywhere.size(); ++i) {
      InstructionId& behind = behind_[anywhere[i]];
      behind = std::min(behind, last);
      for (const Value& operand : instruction(anywhere[i]).operands) {
        anywhere.push_back(operand.instruction);
      }
    }
  }

  // Light ones that nothing outside the tree reads.
  bool IsNeededAloneBy(const std::vector<InstructionId>& tree, InstructionId id) const {
    const Instruction& light = instruction(id);
    const bool is_light =
        IsElementwise(light.opcode) || IsView(light) || light.opcode == Opcode::kBroadcast;
    const Value value{id, 0};
    return is_light && light.results.size() == 1 && !uses_.is_result(value) &&
           std::ranges::all_of(uses_.uses(value), [&](const Use& use) {
             return std::ranges::find(tree, use.user) != tree.end();
           });
  }

  const Computation& computation_;
  const UseTable uses_;
  // By instruction: the one behind which it is to stand, itself if it stays.
  std::vector<InstructionId> behind_;
  std::vector<int> num_heavy_before_;
};

}  // namespace

Module OrderForMemory(const Module& module) {
  Module out = module;
  for (Computation& computation : out.computations) {
    const Computation source = computation;
    const std::vector<InstructionId> order = EarlyOrder(source).Make();
    if (std::ranges::is_sorted(order)) continue;
    Rewriter rewriter(source);
    for (const InstructionId id : order) rewriter.Copy(id);
    computation = std::move(rewriter).Finish();
  }
  return out;
}

}  // namespace minka
