#include "minka/analysis/heap_packing.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

namespace minka {
namespace {

constexpr int64_t kAlignment = 64;

int64_t Aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

struct PlacedBuffer {
  int64_t offset = 0, end_offset = 0;  // bytes
  int begin = 0, end = 0;              // times at which it lives, see HeapBuffer
};

// The buffers that are placed, by offset in windows of time: of some length, and of twice, four
// times it and so on, each beginning where the one before it has its middle. So a buffer lies
// within some window of not much more than its life.
class PlacedBuffers {
 public:
  explicit PlacedBuffers(std::span<const HeapBuffer> buffers) {
    int last = 0;
    for (const HeapBuffer& buffer : buffers) last = std::max(last, buffer.end);
    half_length_ = last / kMostWindows + 1;
    for (int half = half_length_;; half *= 2) {
      windows_.emplace_back(last / half + 1);
      if (half > last) break;
    }
  }

  // The offset of the smallest hole beside those that live at the same time into which `bytes` fit;
  // behind them all if there is none.
  int64_t BestOffset(const HeapBuffer& buffer, int64_t bytes) {
    int64_t best = -1, best_size = 0, top = 0;
    for (const PlacedBuffer& placed : Around(buffer).Sorted()) {
      if (placed.end < buffer.begin || buffer.end < placed.begin) continue;
      const int64_t hole = placed.offset - top;
      if (hole >= bytes && (best < 0 || hole < best_size)) {
        best = top;
        best_size = hole;
      }
      top = std::max(top, placed.end_offset);
    }
    return best < 0 ? top : best;
  }

  void Add(const PlacedBuffer& placed) {
    int half = half_length_;
    for (std::vector<Window>& windows : windows_) {
      for (int number = std::max(0, placed.begin / half - 1); number <= placed.end / half; ++number)
        windows[number].Add(placed);
      half *= 2;
    }
  }

 private:
  // Of the shortest: heaps of 4,000 to 40,000 buffers are packed as fast by 256, and more slowly by
  // 16, where few live long.
  static constexpr int kMostWindows = 64;

  // Those that live in some time.
  class Window {
   public:
    void Add(const PlacedBuffer& placed) { placed_.push_back(placed); }

    // By offset.
    std::span<const PlacedBuffer> Sorted() {
      const auto added = placed_.begin() + num_sorted_;
      if (added != placed_.end()) {
        std::ranges::sort(added, placed_.end(), {}, &PlacedBuffer::offset);
        std::ranges::inplace_merge(placed_, added, {}, &PlacedBuffer::offset);
        num_sorted_ = std::ssize(placed_);
      }
      return placed_;
    }

   private:
    std::vector<PlacedBuffer> placed_;
    ptrdiff_t num_sorted_ = 0;  // of the first ones
  };

  // The shortest window that has all of its life.
  Window& Around(const HeapBuffer& buffer) {
    int half = half_length_;
    size_t length = 0;
    while (buffer.end / half > buffer.begin / half + 1) {
      half *= 2;
      ++length;
    }
    return windows_[length][buffer.begin / half];
  }

  int half_length_ = 1;                       // of the shortest windows
  std::vector<std::vector<Window>> windows_;  // by length
};

int64_t HeapBytesInOrder(std::span<const HeapBuffer> buffers, std::span<const int> order) {
  PlacedBuffers placed(buffers);
  int64_t heap = 0;
  for (const int i : order) {
    const HeapBuffer& buffer = buffers[i];
    const int64_t bytes = Aligned(buffer.bytes), offset = placed.BestOffset(buffer, bytes);
    heap = std::max(heap, offset + bytes);
    placed.Add({offset, offset + bytes, buffer.begin, buffer.end});
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
