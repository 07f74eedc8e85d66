// Which operations free memory by being done: dots, convolutions and reductions that are the last
// to read their operands.
#pragma once

#include <limits>
#include <vector>

#include "minka/ir/module.h"

namespace minka {

// A dot or convolution: so long that it matters what memory is held while it runs.
bool IsHeavy(const Instruction& instruction);

// Another order or type of the same elements: XLA takes it into the dot that reads it.
bool IsView(const Instruction& instruction);

// Takes no memory by being early: there all the time, or made anew by every reader.
bool IsFree(const Instruction& instruction);

class LastReads {
 public:
  // Both must live as long.
  LastReads(const Computation& computation, const UseTable& uses);

  static constexpr InstructionId kNever = std::numeric_limits<InstructionId>::max();
  // The first heavy instruction that needs this one's results; kNever: the results of the
  // computation alone do.
  InstructionId Demand(InstructionId id) const { return demand_[id]; }

  // Does the dot, convolution or reduction, if it is done as late as it may be, keep more bytes
  // until then than its result has? Of reductions any but those of several results.
  bool FreesMemory(InstructionId id) const;

  // What the value is a view of.
  Value Source(Value value) const;

 private:
  InstructionId FirstDemand(InstructionId id) const;
  InstructionId TimeOf(InstructionId user) const;
  bool IsReadLastBy(Value value, InstructionId id) const;

  const Computation& computation_;
  const UseTable& uses_;
  std::vector<InstructionId> demand_;  // by instruction
};

}  // namespace minka
