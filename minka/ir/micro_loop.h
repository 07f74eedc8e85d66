// The loop over micro-batches in a step that was rewritten for them (lowering/micro_batches.h).
//
// Such a step is three computations, one behind the other in its entry:
//
//   front    runs once and makes what the others read
//   body     runs for each micro-batch; it begins with its parameter, the number of the micro-batch
//   behind   runs once and reads what the micro-batches have come to together
//
// Typed accumulators lead from the body to what is behind it. All else in the body exists during
// one micro-batch only. Which instruction is what stands in StepPart::loop, so that whatever copies
// or rewrites instructions keeps it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "minka/ir/module.h"

namespace minka {

enum class LoopPart : uint8_t { kFront, kInside, kBehind };

// What the micro-batches come to together, in the type of its instruction.
struct Accumulator {
  enum class Kind : uint8_t {
    kSum,    // of terms
    kStack,  // of slices, each written at the number of its micro-batch; the instruction is a
             // dynamic-update-slice, whose operand 0 is what the stack begins with
  };
  Kind kind = Kind::kSum;
  // For the micro-batch: what it gives. For who reads it behind the body: all together.
  InstructionId id = -1;
  Value term;  // what the instruction makes it of
};

struct MicroLoop {
  int64_t num_micro_batches = 1;
  InstructionId begin = 0, end = 0;       // of the body; equal: there is no loop
  std::vector<InstructionId> indices;     // the body's parameter; programs may repeat it; ascending
  std::vector<Accumulator> accumulators;  // ascending

  bool exists() const { return begin < end; }
  bool IsInside(InstructionId id) const { return begin <= id && id < end; }
  // Without a loop everything is behind it.
  LoopPart PartOf(InstructionId id) const;
  bool IsIndex(InstructionId id) const { return std::ranges::binary_search(indices, id); }
  // nullptr: it is none.
  const Accumulator* FindAccumulator(InstructionId id) const;
  bool IsSum(InstructionId id) const { return IsAccumulator(id, Accumulator::Kind::kSum); }
  bool IsStack(InstructionId id) const { return IsAccumulator(id, Accumulator::Kind::kStack); }
  bool LeavesLoop(InstructionId id) const { return FindAccumulator(id) != nullptr; }
  // Does the value exist during one micro-batch only?
  bool IsTransient(InstructionId id) const { return IsInside(id) && !LeavesLoop(id); }
  int64_t RunsOf(InstructionId id) const { return IsInside(id) ? num_micro_batches : 1; }

 private:
  bool IsAccumulator(InstructionId id, Accumulator::Kind kind) const {
    const Accumulator* accumulator = FindAccumulator(id);
    return accumulator != nullptr && accumulator->kind == kind;
  }
};

// Of the entry computation.
MicroLoop FindMicroLoop(const Module& module);

// The text form: the frontend attributes `minka.num_micro_batches` of the module and `minka.micro`
// ("index", "body", "sum", "stack") of instructions. Reading takes them out of the module;
// InvalidArgument where they make no loop.
inline constexpr char kNumMicroBatchesAttribute[] = "minka.num_micro_batches";
void WriteLoopAttributes(Module& module);
absl::Status ReadLoopAttributes(Module& module);

}  // namespace minka
