#include "minka/ir/window.h"

#include <gtest/gtest.h>

#include <limits>
#include <set>
#include <utility>
#include <vector>

namespace minka {
namespace {

constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();

// (position, window element, base element) of every product, one after another.
struct Tap {
  int64_t position, element, base;
  auto operator<=>(const Tap&) const = default;
};

std::set<Tap> Taps(int64_t base_size, const WindowDim& window) {
  std::set<Tap> taps;
  for (int64_t position = 0; position < *NumWindowPositions(base_size, window); ++position) {
    for (int64_t element = 0; element < window.size; ++element) {
      const int64_t place =
          position * window.stride + element * window.window_dilation - window.padding_low;
      if (place < 0 || place > (base_size - 1) * window.base_dilation) continue;
      if (place % window.base_dilation != 0) continue;
      const int64_t met = window.reversal ? window.size - 1 - element : element;
      taps.insert({position, met, place / window.base_dilation});
    }
  }
  return taps;
}

TEST(NumWindowPositions, FollowHlo) {
  EXPECT_EQ(NumWindowPositions(8, {.size = 3}), 6);
  EXPECT_EQ(NumWindowPositions(8, {.size = 3, .stride = 2, .padding_low = 1, .padding_high = 1}),
            4);
  EXPECT_EQ(NumWindowPositions(4, {.size = 3, .base_dilation = 2}), 5);
  EXPECT_EQ(NumWindowPositions(8, {.size = 3, .window_dilation = 3}), 2);
  EXPECT_EQ(NumWindowPositions(2, {.size = 3}), 0);
  EXPECT_EQ(NumWindowPositions(0, {.size = 1}), 0);
  EXPECT_EQ(NumWindowPositions(8, {.size = 3, .padding_low = -2}), 4);
}

TEST(NumWindowPositions, ImpossibleAndHugeWindowsHaveNone) {
  EXPECT_EQ(NumWindowPositions(8, {.size = 0}), std::nullopt);
  EXPECT_EQ(NumWindowPositions(8, {.stride = 0}), std::nullopt);
  EXPECT_EQ(NumWindowPositions(8, {.window_dilation = -1}), std::nullopt);
  EXPECT_EQ(NumWindowPositions(8, {.base_dilation = 0}), std::nullopt);
  EXPECT_EQ(NumWindowPositions(8, {.padding_low = -9}), std::nullopt);
  EXPECT_EQ(NumWindowPositions(8, {.padding_low = kLargest, .padding_high = kLargest}),
            std::nullopt);
  EXPECT_EQ(NumWindowPositions(int64_t{1} << 55, {.base_dilation = kLargest}), std::nullopt);
  EXPECT_EQ(NumWindowPositions(8, {.size = kLargest, .window_dilation = kLargest}), 0);
  EXPECT_EQ(NumWindowPositions(8, {.padding_low = -kLargest - 1}), std::nullopt);
}

// Calls `visit` for many small windows.
template <typename Visit>
void ForManyWindows(Visit visit) {
  for (int64_t base = 1; base <= 8; ++base) {
    for (int64_t size = 1; size <= 5; ++size) {
      for (int64_t stride = 1; stride <= 3; ++stride) {
        for (int64_t low = -1; low <= 3; ++low) {
          for (int64_t high = -2; high <= 3; ++high) {
            for (int64_t dilations = 0; dilations < 9; ++dilations) {
              for (const bool reversal : {false, true}) {
                const WindowDim window{.size = size,
                                       .stride = stride,
                                       .padding_low = low,
                                       .padding_high = high,
                                       .window_dilation = 1 + dilations % 3,
                                       .base_dilation = 1 + dilations / 3,
                                       .reversal = reversal};
                if (NumWindowPositions(base, window)) visit(base, window);
              }
            }
          }
        }
      }
    }
  }
}

TEST(NumWindowTaps, CountWhatMeetsTheBase) {
  ForManyWindows([](int64_t base, const WindowDim& window) {
    ASSERT_EQ(NumWindowTaps(base, window), static_cast<double>(Taps(base, window).size()));
  });
  EXPECT_GT(NumWindowTaps(int64_t{1} << 40, {.size = int64_t{1} << 30}), 1e18);
}

// What each of two halves computes alone, shifted to its place, is what the whole computes.
TEST(BlocksOf, HalvesComputeWhatTheWholeDoes) {
  int num_blocked[4] = {};
  ForManyWindows([&](int64_t base, const WindowDim& window) {
    const BlockedWindow blocked = BlocksOf(base, window);
    ++num_blocked[static_cast<int>(blocked.blocks)];
    if (blocked.blocks == WindowBlocks::kNone || blocked.num_blocks % 2 != 0) return;
    WindowDim half = window;
    if (blocked.blocks == WindowBlocks::kSum) half.size /= 2;
    const int64_t positions = *NumWindowPositions(base, window);
    const int64_t half_positions = *NumWindowPositions(base / 2, half);
    const bool sums = blocked.blocks == WindowBlocks::kSum;
    ASSERT_EQ(half_positions, sums ? positions : positions / 2);
    std::set<Tap> joined;
    for (const int64_t part : {0, 1}) {
      for (Tap tap : Taps(base / 2, half)) {
        tap.base += part * base / 2;
        (sums ? tap.element : tap.position) += part * (sums ? half.size : half_positions);
        joined.insert(tap);
      }
    }
    ASSERT_EQ(joined, Taps(base, window))
        << "base " << base << ", size " << window.size << ", stride " << window.stride
        << ", padding " << window.padding_low << "_" << window.padding_high << ", dilations "
        << window.base_dilation << " and " << window.window_dilation;
  });
  EXPECT_GT(num_blocked[1], 20);
  EXPECT_GT(num_blocked[2], 20);
  EXPECT_GT(num_blocked[3], 20);
}

TEST(BlocksOf, FindsTheFormsOfConvolutionNetworks) {
  using enum WindowBlocks;
  // 1x1 kernels, forward and the gradient of the input; kernels as large as their stride.
  EXPECT_EQ(BlocksOf(8, {}), (BlockedWindow{kForward, 8}));
  EXPECT_EQ(BlocksOf(8, {.size = 2, .stride = 2}), (BlockedWindow{kForward, 4}));
  // Stride 2 without a remainder that matters.
  EXPECT_EQ(BlocksOf(8, {.size = 1, .stride = 2}), (BlockedWindow{kForward, 4}));
  // Gradient by the input of these.
  EXPECT_EQ(BlocksOf(4, {.size = 2, .padding_low = 1, .padding_high = 1, .base_dilation = 2}),
            (BlockedWindow{kBackward, 4}));
  EXPECT_EQ(BlocksOf(4, {.padding_high = 1, .base_dilation = 2}), (BlockedWindow{kBackward, 4}));
  // Gradient by the kernel: the window is the gradient of the output.
  EXPECT_EQ(BlocksOf(8, {.size = 8}), (BlockedWindow{kSum, 8}));
  EXPECT_EQ(BlocksOf(8, {.size = 4, .padding_high = -1, .window_dilation = 2}),
            (BlockedWindow{kSum, 4}));
  // Overlapping windows need neighbours.
  EXPECT_EQ(BlocksOf(8, {.size = 3, .padding_low = 1, .padding_high = 1}).blocks, kNone);
}

}  // namespace
}  // namespace minka
