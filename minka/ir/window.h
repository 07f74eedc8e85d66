// Arithmetic of sliding windows: how many positions there are, which of them meet elements, and
// when a dimension can be cut into blocks that know nothing of each other.
#pragma once

#include <cstdint>
#include <optional>

#include "minka/ir/module.h"

namespace minka {

// How often the window fits on a base of `base_size` elements. nullopt: size, stride or a dilation
// is below 1, the padding crops more than there is, or there are more than 2^56 positions.
std::optional<int64_t> NumWindowPositions(int64_t base_size, const WindowDim& window);

// Pairs of a position and a window element that meet an element of the base and neither padding nor
// a hole: the multiplications of a convolution along the dimension. An upper bound for windows too
// large to go through. Precondition: NumWindowPositions() has a value.
double NumWindowTaps(int64_t base_size, const WindowDim& window);

// How base elements, window elements and positions fall into equal blocks: a program of some
// neighbouring blocks has the same window (its size aside) on the blocks' elements alone.
enum class WindowBlocks : uint8_t {
  kNone,
  kForward,   // num_blocks positions, each on base elements of its own (pooling without overlap)
  kBackward,  // num_blocks base elements, each met by positions of its own (the gradient of that)
  kSum,       // num_blocks window elements, each on base elements of its own: positions sum over
              // the blocks (the gradient by a kernel; a window that covers the whole base)
};
struct BlockedWindow {
  WindowBlocks blocks = WindowBlocks::kNone;
  int64_t num_blocks = 1;
  bool operator==(const BlockedWindow&) const = default;
};
// Precondition: NumWindowPositions() has a value.
BlockedWindow BlocksOf(int64_t base_size, const WindowDim& window);

}  // namespace minka
