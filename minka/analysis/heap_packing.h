// Where XLA's buffer assignment puts what lives for a while: each buffer at one offset, none upon
// another that lives at the same time.
#pragma once

#include <cstdint>
#include <span>

namespace minka {

// Lives at the times begin to end, both included.
struct HeapBuffer {
  int begin = 0, end = 0;
  int64_t bytes = 0;
};

// The heap's size by best fit in decreasing order: of bytes, or of the time lived, whichever needs
// less (XLA's GlobalDecreasingSizeBestFitHeap, spatial and temporal). Offsets are multiples of 64.
int64_t PackedHeapBytes(std::span<const HeapBuffer> buffers);

}  // namespace minka
