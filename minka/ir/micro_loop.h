// The loop over micro-batches in a step that was rewritten for them (lowering/micro_batches.h).
//
// The entry computation of such a module has the operations of one micro-batch among its own. What
// runs once per micro-batch says so in the frontend attribute `minka.micro`:
//
//   index   a scalar s32 that stands for the number of the micro-batch
//   body    an operation on one micro-batch
//   sum     the sum of its operand over all micro-batches (an accumulator)
//   stack   its operand's update written at the number of the micro-batch (all slices together)
//
// In order: what the loop reads, the loop, what reads its sums and stacks.
#pragma once

#include <cstdint>
#include <vector>

#include "minka/ir/module.h"

namespace minka {

inline constexpr char kMicroAttribute[] = "minka.micro";
inline constexpr char kNumMicroBatchesAttribute[] = "minka.num_micro_batches";

enum class LoopRole : uint8_t { kOutside, kIndex, kBody, kSum, kStack };

struct MicroLoop {
  int64_t num_micro_batches = 1;
  std::vector<LoopRole> roles;       // by instruction of the entry computation; empty: no loop
  InstructionId begin = 0, end = 0;  // of the instructions inside; equal: there is no loop

  bool exists() const { return begin < end; }
  bool IsInside(InstructionId id) const {
    return id < static_cast<InstructionId>(roles.size()) && roles[id] != LoopRole::kOutside;
  }
  // Sums and stacks are there once the loop is over.
  bool LeavesLoop(InstructionId id) const {
    return id < static_cast<InstructionId>(roles.size()) &&
           (roles[id] == LoopRole::kSum || roles[id] == LoopRole::kStack);
  }
  // Does the value exist during one micro-batch only?
  bool IsTransient(InstructionId id) const { return IsInside(id) && !LeavesLoop(id); }
  int64_t RunsOf(InstructionId id) const { return IsInside(id) ? num_micro_batches : 1; }
};

// No loop for a module without the attributes.
MicroLoop FindMicroLoop(const Module& module);

}  // namespace minka
