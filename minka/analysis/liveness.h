// From where to where each value of a computation must be kept, in instruction order.
#pragma once

#include <vector>

#include "minka/ir/module.h"

namespace minka {

// Positions are instruction ids; both ends are included.
struct LiveRange {
  InstructionId definition = 0;
  InstructionId last_use = 0;  // its definition: nobody reads it; num_instructions: a result
  bool operator==(const LiveRange&) const = default;
};

class Liveness {
 public:
  explicit Liveness(const Computation& computation);
  const LiveRange& range(Value value) const { return ranges_[value.instruction][value.result]; }

 private:
  std::vector<std::vector<LiveRange>> ranges_;  // by instruction and result
};

// Bytes of the values that are live at each instruction, its own results included; parameters count
// throughout, because the caller owns them.
std::vector<int64_t> LiveBytes(const Computation& computation, const Liveness& liveness);

}  // namespace minka
