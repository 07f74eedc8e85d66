// Finds a cheap choice for every node and a lower bound that proves how far from the optimum it can
// be at most.
//
//   ASSIGN_OR_RETURN(SolveResult result, Solve(problem, {.gap = 0.01, .work_limit =
//   2'000'000'000})); result.choice, result.cost, result.lower_bound, result.gap,
//   result.memory_price
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/solver/model/problem.h"
#include "minka/solver/model/way.h"

namespace minka {

enum class SolveStatus {
  kOptimal,
  kGapReached,
  kCutoff,
  kWorkLimit,
  kTimeLimit,
  kCancelled,
  kInfeasible
};

// "optimal", "gap_reached", "cutoff", "work_limit", "time_limit", "cancelled", "infeasible".
std::string_view SolveStatusName(SolveStatus status);

// The price of memory at one time: cost saved per byte that the limit is raised there.
struct TimePrice {
  int64_t time = 0;
  double price = 0;
  friend bool operator==(const TimePrice&, const TimePrice&) = default;
};

struct SolveProgress {
  double seconds = 0;
  int64_t work = 0;
  std::optional<int64_t> cost;  // of the best feasible choice so far
  double lower_bound = 0;
  double gap = 1;
};

struct SolveParameters {
  // Stop once (cost - lower_bound) / cost is at most this; 0: not before the optimum is proved.
  double gap = 0;
  // Stop once no choice can cost less than this, with the best so far.
  std::optional<int64_t> cutoff;
  // A clock is an outer guard: an answer that it stopped may differ from run to run.
  double time_limit_seconds = 60;
  // A work unit is about one table cell read, roughly a nanosecond of one thread. Unset: no limit.
  std::optional<int64_t> work_limit;
  // The answer is a function of problem, parameters, seed and thread count unless the clock or a
  // cancellation stopped it.
  int num_threads = 1;
  uint64_t seed = 1;
  // Warm start, both optional: a choice (ignored where it does not fit) and the prices of an
  // earlier result.
  std::vector<int32_t> initial_choice;
  std::vector<TimePrice> initial_prices;
  // Ways not to be used: what they are worth is seen by what is lost.
  WaySet left_out;
  // Called from the solving threads, one call at a time, whenever bound or best choice improved.
  std::function<void(const SolveProgress&)> on_progress;
  // Polled; set it (also from a signal handler) to stop with the best so far.
  const std::atomic<bool>* cancelled = nullptr;
};

// Why no choice fits, or none was found that does, as far as it is known.
struct Infeasibility {
  // No choice avoids the forbidden entries, whatever the limit.
  bool without_limit = false;
  // The time where even the smallest usages are furthest above the limit (or where the best choice
  // peaks).
  int64_t tightest_time = 0;
  // A limit at which a choice is known, and that choice. Unset if none was found.
  std::optional<int64_t> smallest_known_limit_bytes;
  std::vector<int32_t> choice;
};

// Sizes after the exact reductions.
struct CoreSize {
  int32_t num_nodes = 0;
  int32_t num_edges = 0;
  int64_t num_cells = 0;
  int64_t num_times = 0;  // times at which the limit can bind
};

struct SolveResult {
  SolveStatus status = SolveStatus::kInfeasible;
  // One per node; empty if no feasible one was found.
  std::vector<int32_t> choice;
  int64_t cost = 0;
  // No choice costs less. Integer arithmetic throughout: never above the optimum.
  int64_t lower_bound = 0;
  double gap = 1;  // (cost - lower_bound) / cost; 0 if both are 0; 1 without a choice
  int64_t peak_usage_bytes = 0;
  // Largest over time, per byte; 0 if the limit does not bind.
  double memory_price = 0;
  std::vector<TimePrice> prices;  // times with a price above 0, ascending
  double seconds = 0;
  std::optional<double> seconds_to_first;  // to the first feasible choice
  double seconds_to_best = 0;
  int64_t work = 0;
  WayRecords ways;  // what each did; on the problem itself, not on one that it was started from
  CoreSize core;
  std::optional<Infeasibility> infeasibility;  // where no choice is known that fits
};

// Error: the problem does not pass its Check(), or a parameter makes no sense. Stopping early is a
// result, not an error.
absl::StatusOr<SolveResult> Solve(const SolverProblem& problem,
                                  const SolveParameters& parameters = {});

}  // namespace minka
