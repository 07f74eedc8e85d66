// Bytes that a program takes on one device when XLA's CPU compiler has compiled it, without
// compiling it: its fusions, its order of operations and its placing of buffers are imitated.
#pragma once

#include <cstdint>

#include "minka/ir/module.h"

namespace minka {

struct XlaCpuMemory {
  int64_t argument_bytes = 0;
  int64_t output_bytes = 0;  // results that are not written over arguments
  int64_t temp_bytes = 0;
  int64_t total_bytes() const { return argument_bytes + output_bytes + temp_bytes; }
  // More than what is compiled needs: what the imitation leaves out is less.
  int64_t upper_bound_bytes() const;
};

XlaCpuMemory XlaCpuMemoryOf(const Module& module);

}  // namespace minka
