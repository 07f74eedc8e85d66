// Which times matter for the memory limit. Of all times only the maximal live sets can be the first
// to break the limit, and of those only the ones where the largest usages together exceed it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "minka/solver/model/problem.h"
#include "minka/solver/reduce/core.h"

namespace minka {

// Smallest and largest bytes that one usage can take.
struct UsageBounds {
  TimeInterval interval;
  int64_t smallest_bytes = 0;
  int64_t largest_bytes = 0;
};

// Ascending times such that usages within `limit_bytes` at all of them are within it everywhere.
std::vector<int64_t> BindingTimes(std::span<const UsageBounds> usages, int64_t limit_bytes);

// The positions of `times` that lie in the interval.
TimeRange RangeOfTimes(std::span<const int64_t> times, TimeInterval interval);

}  // namespace minka
