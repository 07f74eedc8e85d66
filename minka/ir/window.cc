#include "minka/ir/window.h"

#include <algorithm>

namespace minka {
namespace {

// Products of 63-bit fields stay exact.
using Wide = __int128;

constexpr int64_t kMaxPositions = int64_t{1} << 56;
constexpr int64_t kMaxPairs = int64_t{1} << 20;

Wide Dilated(int64_t size, int64_t dilation) {
  return size == 0 ? Wide{0} : Wide{size - 1} * dilation + 1;
}

Wide FloorDivide(Wide a, Wide b) { return a / b - (a % b != 0 && a < 0 ? 1 : 0); }

// How many positions lay window element `element` on an element of the base.
double NumHits(int64_t base_size, const WindowDim& window, int64_t positions, int64_t element) {
  const Wide start = Wide{element} * window.window_dilation - window.padding_low;
  const Wide last_place = Wide{base_size - 1} * window.base_dilation;
  // start + position * stride lies in [0, last_place].
  const Wide first = std::max<Wide>(0, -FloorDivide(start, window.stride));
  const Wide last = std::min<Wide>(positions - 1, FloorDivide(last_place - start, window.stride));
  if (first > last) return 0;
  if (window.base_dilation == 1) return static_cast<double>(last - first + 1);
  double hits = 0;
  for (Wide position = first; position <= last; ++position) {
    hits += (start + position * window.stride) % window.base_dilation == 0 ? 1 : 0;
  }
  return hits;
}

}  // namespace

std::optional<int64_t> NumWindowPositions(int64_t base_size, const WindowDim& window) {
  if (base_size < 0 || window.size < 1 || window.stride < 1 || window.window_dilation < 1 ||
      window.base_dilation < 1) {
    return std::nullopt;
  }
  const Wide padded = Dilated(base_size, window.base_dilation) + Wide{window.padding_low} +
                      Wide{window.padding_high};
  const Wide laid = Dilated(window.size, window.window_dilation);
  if (padded < 0) return std::nullopt;
  const Wide positions = padded < laid ? Wide{0} : (padded - laid) / window.stride + 1;
  if (positions > kMaxPositions) return std::nullopt;
  return static_cast<int64_t>(positions);
}

double NumWindowTaps(int64_t base_size, const WindowDim& window) {
  const int64_t positions = NumWindowPositions(base_size, window).value_or(0);
  if (base_size == 0 || positions == 0) return 0;
  if (window.size > kMaxPairs / positions) {
    return static_cast<double>(window.size) * static_cast<double>(positions) /
           static_cast<double>(window.base_dilation);
  }
  double taps = 0;
  for (int64_t element = 0; element < window.size; ++element) {
    taps += NumHits(base_size, window, positions, element);
  }
  return taps;
}

BlockedWindow BlocksOf(int64_t base_size, const WindowDim& window) {
  const int64_t positions = NumWindowPositions(base_size, window).value_or(0);
  if (base_size < 1 || positions < 1) return {};
  const Wide laid = Dilated(window.size, window.window_dilation);
  const Wide cropped = -Wide{window.padding_high};  // at the high end
  if (window.base_dilation == 1 && window.padding_low == 0) {
    const Wide stride = window.stride;
    if (laid <= stride && cropped >= 0 && cropped <= stride - laid && positions > 1 &&
        Wide{positions} * stride == base_size) {
      return {WindowBlocks::kForward, positions};
    }
    const Wide step = window.size == 1 ? Wide{base_size} : Wide{window.window_dilation};
    if (!window.reversal && cropped >= 0 && cropped < step && window.size > 1 &&
        step * window.size == base_size) {
      return {WindowBlocks::kSum, window.size};
    }
  }
  if (window.stride == 1 && base_size > 1 && laid <= window.base_dilation &&
      window.padding_low == laid - 1 && window.padding_high == window.base_dilation - 1) {
    return {WindowBlocks::kBackward, base_size};
  }
  return {};
}

}  // namespace minka
