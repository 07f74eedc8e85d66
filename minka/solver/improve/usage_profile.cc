#include "minka/solver/improve/usage_profile.h"

#include <algorithm>
#include <bit>

namespace minka {

UsageProfile::UsageProfile(std::span<const int64_t> limit_bytes) {
  if (limit_bytes.empty()) return;
  num_leaves_ = static_cast<int32_t>(std::bit_ceil(limit_bytes.size()));
  // Times that do not exist can never be the worst.
  constexpr int64_t kNever = INT64_MIN / 2;
  most_.assign(2 * static_cast<size_t>(num_leaves_), kNever);
  pending_.assign(most_.size(), 0);
  for (size_t t = 0; t < limit_bytes.size(); ++t) most_[num_leaves_ + t] = -limit_bytes[t];
  for (int32_t i = num_leaves_ - 1; i >= 1; --i)
    most_[i] = std::max(most_[2 * i], most_[2 * i + 1]);
}

void UsageProfile::Add(TimeRange range, int64_t bytes) {
  if (bytes == 0 || range.begin >= range.end) return;
  int32_t left = range.begin + num_leaves_;
  int32_t right = range.end + num_leaves_;
  const int32_t first = left;
  const int32_t last = right - 1;
  for (; left < right; left /= 2, right /= 2) {
    if (left & 1) {
      most_[left] += bytes;
      pending_[left++] += bytes;
    }
    if (right & 1) {
      most_[--right] += bytes;
      pending_[right] += bytes;
    }
  }
  for (int32_t i = first / 2; i >= 1; i /= 2)
    most_[i] = std::max(most_[2 * i], most_[2 * i + 1]) + pending_[i];
  for (int32_t i = last / 2; i >= 1; i /= 2)
    most_[i] = std::max(most_[2 * i], most_[2 * i + 1]) + pending_[i];
}

void UsageProfile::Move(const Core& core, int32_t node, int32_t from, int32_t to) {
  if (from == to) return;
  for (const CoreUsage& usage : core.usages[node]) {
    const std::span<const int64_t> row = core.algebra.row(usage.row);
    const int64_t bytes = (to < 0 ? 0 : row[to]) - (from < 0 ? 0 : row[from]);
    if (bytes == 0) continue;
    for (const TimeRange& range : usage.ranges) Add(range, bytes);
  }
}

int32_t UsageProfile::WorstTime() const {
  int32_t i = 1;
  while (i < num_leaves_) i = most_[2 * i] >= most_[2 * i + 1] ? 2 * i : 2 * i + 1;
  return i - num_leaves_;
}

}  // namespace minka
