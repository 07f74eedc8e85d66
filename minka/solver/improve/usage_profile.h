// Bytes over the limit at every time, under changes of whole ranges: a segment tree. every change
// costs O(log times).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "minka/solver/reduce/core.h"

namespace minka {

class UsageProfile {
 public:
  // Starts with nothing in use: -limit_bytes[t] at every t.
  explicit UsageProfile(std::span<const int64_t> limit_bytes);

  void Add(TimeRange range, int64_t bytes);
  // Adds what a node uses with choice `to` instead of `from`; -1 stands for nothing.
  void Move(const Core& core, int32_t node, int32_t from, int32_t to);

  // Largest bytes over the limit, at most 0 if the limit holds; the smallest int64 without times.
  int64_t Excess() const { return most_.empty() ? INT64_MIN : most_[1]; }
  // The first time with the largest excess.
  int32_t WorstTime() const;

 private:
  int32_t num_leaves_ = 0;  // a power of two
  std::vector<int64_t>
      most_;  // per tree node: largest excess below it, its own pending sums included
  std::vector<int64_t> pending_;  // per tree node: added to everything below it
};

}  // namespace minka
