// What XLA's CPU compiler makes of a computation: which instructions run as one, and in which
// order.
#pragma once

#include <vector>

#include "minka/analysis/fusion_groups.h"
#include "minka/ir/module.h"

namespace minka {

// Instructions that run as one (fusion_groups.h), or one that moves nothing.
struct CpuUnit {
  enum class Kind : uint8_t {
    kLeaf,  // parameter or constant
    kView,  // reshape, opt-barrier: result i is operand i, or operand 0
    kRun,
  };
  Kind kind = Kind::kRun;
  InstructionId root = -1;  // whose results it leaves
  // Values that it reads, once each.
  std::vector<Value> reads;
  // By read: is every use on the way to the root elementwise, so that the result may take the
  // place of what is read?
  std::vector<bool> elementwise;
};

struct CpuOrder {
  std::vector<CpuUnit> units;
  std::vector<int> unit_of;  // by instruction that is a root; -1: inside others
  std::vector<int> order;    // of units, as they run; what no result needs is left out
};

// The order is that of DFSMemoryScheduler: depth first from the results, of operands the one first
// above which values have most readers, then that with most bytes.
CpuOrder OrderForCpu(const Computation& computation, bool is_entry, FusionRules rules);

}  // namespace minka
