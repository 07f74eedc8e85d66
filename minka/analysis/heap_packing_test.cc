#include "minka/analysis/heap_packing.h"

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace minka {
namespace {

TEST(PackedHeapBytes, WhatLivesApartSharesItsPlace) {
  EXPECT_EQ(PackedHeapBytes({}), 0);
  const std::vector<HeapBuffer> apart = {{0, 1, 640}, {2, 3, 640}, {4, 4, 128}};
  EXPECT_EQ(PackedHeapBytes(apart), 640);
  const std::vector<HeapBuffer> touching = {{0, 2, 640}, {2, 3, 640}};
  EXPECT_EQ(PackedHeapBytes(touching), 1280);
}

TEST(PackedHeapBytes, OffsetsAreAligned) {
  const std::vector<HeapBuffer> buffers = {{0, 3, 4}, {0, 3, 4}, {1, 2, 65}};
  EXPECT_EQ(PackedHeapBytes(buffers), 64 + 64 + 128);
}

TEST(PackedHeapBytes, TheSmallestHoleThatFitsIsTaken) {
  // At time 2 the holes of the second (192 bytes) and the fourth (128) are free; what needs 128
  // takes the smaller one, so that 192 bytes still fit.
  const std::vector<HeapBuffer> buffers = {{0, 9, 256}, {0, 1, 192}, {0, 9, 224},
                                           {0, 1, 128}, {0, 9, 200}, {2, 9, 128}};
  const int64_t before = 256 + 192 + 256 + 128 + 256;
  EXPECT_EQ(PackedHeapBytes(buffers), before);
}

std::vector<HeapBuffer> RandomBuffers(int count) {
  std::vector<HeapBuffer> buffers;
  uint64_t state = 1;
  const auto next = [&](int bound) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<int>((state >> 33) % bound);
  };
  for (int i = 0; i < count; ++i) {
    const int begin = next(1000);
    buffers.push_back({begin, begin + next(i % 5 == 0 ? 500 : 10), 64 * (1 + next(50))});
  }
  return buffers;
}

// Of buffers whose sizes are multiples of 64, each at the offset of the smallest hole.
int64_t BytesByTryingAllOffsets(const std::vector<HeapBuffer>& in_order) {
  std::vector<std::pair<HeapBuffer, int64_t>> placed;  // with its offset
  int64_t heap = 0;
  for (const HeapBuffer& buffer : in_order) {
    std::vector<bool> taken;  // by 64 bytes
    for (const auto& [other, offset] : placed) {
      if (other.end < buffer.begin || buffer.end < other.begin) continue;
      taken.resize(std::max<size_t>(taken.size(), (offset + other.bytes) / 64));
      std::fill_n(taken.begin() + offset / 64, other.bytes / 64, true);
    }
    auto best = static_cast<int64_t>(taken.size()), best_size = int64_t{1} << 60, hole = int64_t{0};
    for (size_t i = 0; i < taken.size(); ++i) {
      hole = taken[i] ? 0 : hole + 1;
      const bool ends = i + 1 < taken.size() && taken[i + 1];
      if (!ends || hole * 64 < buffer.bytes || hole >= best_size) continue;
      best_size = hole;
      best = static_cast<int64_t>(i) + 1 - hole;
    }
    placed.emplace_back(buffer, best * 64);
    heap = std::max(heap, best * 64 + buffer.bytes);
  }
  return heap;
}

TEST(PackedHeapBytes, IsThatOfTheBetterOrder) {
  std::vector<HeapBuffer> buffers = RandomBuffers(700);
  const auto length = [](const HeapBuffer& buffer) { return buffer.end - buffer.begin; };
  std::ranges::stable_sort(buffers, [&](const HeapBuffer& a, const HeapBuffer& b) {
    return std::pair(a.bytes, length(a)) > std::pair(b.bytes, length(b));
  });
  const int64_t by_size = BytesByTryingAllOffsets(buffers);
  std::ranges::stable_sort(buffers, std::ranges::greater(), length);
  const int64_t by_length = BytesByTryingAllOffsets(buffers);
  EXPECT_NE(by_size, by_length);
  EXPECT_EQ(PackedHeapBytes(buffers), std::min(by_size, by_length));
}

TEST(PackedHeapBytes, IsNeverBelowWhatLivesAtOneTime) {
  const std::vector<HeapBuffer> buffers = RandomBuffers(500);
  int64_t most = 0, all = 0;
  for (int time = 0; time < 1600; ++time) {
    int64_t live = 0;
    for (const HeapBuffer& buffer : buffers) {
      if (buffer.begin <= time && time <= buffer.end) live += buffer.bytes;
    }
    most = std::max(most, live);
  }
  for (const HeapBuffer& buffer : buffers) all += buffer.bytes;
  const int64_t packed = PackedHeapBytes(buffers);
  EXPECT_GE(packed, most);
  EXPECT_LE(packed, most + most / 4);
  EXPECT_LT(packed, all / 4);
}

}  // namespace
}  // namespace minka
