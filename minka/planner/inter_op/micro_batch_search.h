// How many micro-batches a pipeline has: the more, the less its meshes wait, and the less a device
// computes at a time.
//
// Estimates and plans cost time, so a number is estimated only while what is known of others lets
// it be the fastest (or beside another one), and planned only while its estimate does. Known of
// others is: a step in fewer micro-batches has no more work in all, needs no less memory, and
// saving that takes no less (where it splits no more evenly); each micro-batch more takes some
// work; between two numbers steps hardly take less than in even parts of both, and beyond a number
// that is slower than another one they hardly take less than by it.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace minka {

// What is faster by no more than this part is not looked for.
inline constexpr double kNearlyEqual = 0.01;

// By what layers take, whatever memory that needs.
struct CountEstimate {
  double step_time_us = 0;  // of the fastest pipeline
  double work_us = 0;       // all micro-batches on its busiest stage, where that has least to do
  // For how long its busiest stage waits, if it still does where more micro-batches follow: where
  // stages may hold all that there are, they would fill that time.
  double waits_us = 0;
  // What one that is as fast, or nearly, needs of its memory limits at least; 0: there are none.
  double part_of_limits = 0;
};

struct CountPlan {
  double step_time_us = 0;
  bool fits = true;
};

enum class CountState { kUnknown, kEstimated, kEstimatedToFit, kTooLarge, kPlanned, kFailed };

// What became of a number of micro-batches.
struct TriedCount {
  int64_t num_micro_batches = 1;
  CountState state = CountState::kUnknown;
  double at_least_us = 0;         // a step, by its estimates or by what is known of others
  std::optional<CountPlan> plan;  // kPlanned
  absl::Status failure;           // kFailed
};

struct CountSearch {
  std::vector<int64_t> counts;  // ascending; the last one is the batch, or as if it were
  // Those that examples of a micro-batch are split among: of the mesh or, of pipelines, of a host,
  // in which most stages lie.
  int num_devices = 1;
  // One for each, in their order, of one or two numbers that may be looked at side by side. First
  // asked for: one in the middle, by itself unless there are two, or the smallest.
  std::function<std::vector<absl::StatusOr<CountEstimate>>(std::span<const int64_t> counts)>
      estimate;
  // The step time of the fastest that fits into memory, of a number with an estimate; nullopt: none
  // does.
  std::function<absl::StatusOr<std::optional<double>>(int64_t count)> estimate_fitting;
  // Of a number of which none does: what any needs of the limits at least.
  std::function<double(int64_t count)> least_part = [](int64_t) { return 1; };
  // Of a number with an estimate. What does not fit has no larger micro-batches planned, either;
  // Aborted: none is faster than a plan, so that what is estimated to take longer is not looked
  // for.
  std::function<absl::StatusOr<CountPlan>(int64_t count)> plan;
  std::function<bool()> is_over = [] { return false; };  // asked before each of these
  // Steps wait for nothing, so that the smallest number is likely to be the fastest that fits.
  bool smallest_first = false;
  // What is estimated to take longer is not looked for, nor, where this is finite, what is too
  // large.
  double faster_than_us = std::numeric_limits<double>::infinity();
};

// By count. The fastest plan that fits is within a hundredth of the fastest there is, as far as
// estimates and what is known of others are right. Where by their estimates none fits, the largest
// number is planned, unless faster_than_us is finite.
std::vector<TriedCount> SearchCounts(const CountSearch& search);

}  // namespace minka
