// Which instructions a backend runs as one loop, so that values between them never reach memory.
//
// For GPUs the rules stand in cuda_fusions.cc. Those for processors follow XLA:CPU's instruction
// fusion. From consumers to producers, an instruction joins
// the group of its readers if
//   - it is elementwise, broadcast, iota, reshape, transpose, slice, pad, concatenate, reverse,
//     dynamic-slice or reduce, and no result of the computation,
//   - all its readers are in one group and take producers in: these opcodes, and a reduce its input
//     if that is elementwise, broadcast, iota or reshape,
//   - and no reader would repeat it: expensive ones (integer division, root, transcendental,
//   reduce)
//     are not read through a broadcast.
// A cheap instruction whose readers all take it in, in at most max_copies groups (any number for
// broadcast and iota), is repeated in each of them; one that reads no more than it writes, if
// wanted, also where only some readers take it in. A reshape that does not join its readers is a
// view of its operand and belongs to that operand's group. Dots, collectives, control flow and all
// others are alone.
#pragma once

#include <vector>

#include "minka/base/platform.h"
#include "minka/ir/module.h"

namespace minka {

inline constexpr int kMaxCopies = 4;

struct FusionPartition {
  // By instruction: its group. Groups are numbered from 0 in the order of their first instruction.
  std::vector<int> group;
  // By instruction: repeated in every group that reads it (constants always), so that its result is
  // never written; `group` is then that of its first reader.
  std::vector<bool> repeated;
  // By instruction: written for readers that do not take it in, and computed again by those that
  // do, which read what it reads.
  std::vector<bool> also_repeated;
  // By instruction: the groups that one which is repeated stands in; else empty.
  std::vector<std::vector<int>> copies;
  int num_groups = 0;

  // Is `value` written to memory: a result, or read by another group?
  bool IsMaterialised(const UseTable& uses, Value value) const;
};

// May the reader compute what it reads as `operand` by itself, as far as opcodes tell?
bool TakesIn(const Instruction& reader, int operand, Opcode producer);

struct FusionRules {
  Platform platform = Platform::kCpu;  // the other rules' numbers are for processors
  int max_copies = kMaxCopies;
  // Sets `also_repeated`. What is read then lives as long as in XLA; without, there are about as
  // many groups as XLA has fusions.
  bool repeats_for_some = false;
  // Instructions of several programs (StepPart) are never in one group; a loop over micro-batches
  // is a program, what is around it another.
  bool keeps_programs = false;
};

FusionPartition PartitionIntoFusions(const Computation& computation, FusionRules rules = {});
FusionPartition PartitionForCuda(const Computation& computation, FusionRules rules);

// Are instructions of the two parts in one program, and in the same loop over micro-batches?
bool RunAsOne(const StepPart& a, const StepPart& b);

}  // namespace minka
