#include "minka/analysis/heap_packing.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

namespace minka {
namespace {

constexpr int64_t kAlignment = 64;

int64_t Aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

struct Chunk {
  int64_t begin = 0, end = 0;  // bytes
};

// The offset of the smallest hole between `taken` chunks into which `bytes` fit; behind them all if
// there is none.
int64_t BestOffset(std::vector<Chunk>& taken, int64_t bytes) {
  std::ranges::sort(taken, {}, &Chunk::begin);
  int64_t best = -1, best_size = 0, top = 0;
  for (const Chunk& chunk : taken) {
    const int64_t hole = chunk.begin - top;
    if (hole >= bytes && (best < 0 || hole < best_size)) {
      best = top;
      best_size = hole;
    }
    top = std::max(top, chunk.end);
  }
  return best < 0 ? top : best;
}

// The buffers that are placed, by time: short ones stand in few slots.
class PlacedBuffers {
 public:
  explicit PlacedBuffers(std::span<const HeapBuffer> buffers)
      : buffers_(buffers), seen_(buffers.size(), -1) {
    for (const HeapBuffer& buffer : buffers) last_ = std::max(last_, buffer.end);
    slots_.resize(kNumSlots);
  }

  void Add(int i) {
    for (int slot = SlotOf(buffers_[i].begin); slot <= SlotOf(buffers_[i].end); ++slot) {
      slots_[slot].push_back(i);
    }
  }

  // Calls `visit` with each that lives at the same time as `i`.
  template <typename Visit>
  void ForEachBeside(int i, Visit visit) {
    const HeapBuffer& buffer = buffers_[i];
    for (int slot = SlotOf(buffer.begin); slot <= SlotOf(buffer.end); ++slot) {
      for (const int j : slots_[slot]) {
        if (std::exchange(seen_[j], i) == i) continue;
        if (buffers_[j].begin <= buffer.end && buffer.begin <= buffers_[j].end) visit(j);
      }
    }
  }

 private:
  static constexpr int kNumSlots = 256;
  int SlotOf(int time) const {
    return static_cast<int>(int64_t{time} * kNumSlots / (int64_t{last_} + 1));
  }

  std::span<const HeapBuffer> buffers_;
  int last_ = 0;
  std::vector<std::vector<int>> slots_;
  std::vector<int> seen_;  // by buffer, for whom last
};

int64_t HeapBytesInOrder(std::span<const HeapBuffer> buffers, std::span<const int> order) {
  std::vector<int64_t> offsets(buffers.size());
  PlacedBuffers placed(buffers);
  std::vector<Chunk> taken;
  int64_t heap = 0;
  for (const int i : order) {
    taken.clear();
    placed.ForEachBeside(
        i, [&](int j) { taken.push_back({offsets[j], offsets[j] + Aligned(buffers[j].bytes)}); });
    offsets[i] = BestOffset(taken, Aligned(buffers[i].bytes));
    heap = std::max(heap, offsets[i] + Aligned(buffers[i].bytes));
    placed.Add(i);
  }
  return heap;
}

}  // namespace

int64_t PackedHeapBytes(std::span<const HeapBuffer> buffers) {
  std::vector<int> order(buffers.size());
  std::iota(order.begin(), order.end(), 0);
  const auto length = [&](int i) { return buffers[i].end - buffers[i].begin; };
  std::ranges::stable_sort(order, [&](int a, int b) {
    return std::pair(-buffers[a].bytes, -length(a)) < std::pair(-buffers[b].bytes, -length(b));
  });
  const int64_t by_size = HeapBytesInOrder(buffers, order);
  std::ranges::stable_sort(order, [&](int a, int b) { return length(a) > length(b); });
  return std::min(by_size, HeapBytesInOrder(buffers, order));
}

}  // namespace minka
