// What is left of a problem after the exact reductions, laid out for speed: nodes and times
// renumbered, forbidden choices gone, multiplicities folded into the costs, memory that no choice
// can change taken out of the limit.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "minka/solver/reduce/table_algebra.h"

namespace minka {

// Row index is a's choice, column index b's; a < b.
struct CoreEdge {
  int32_t a = 0;
  int32_t b = 0;
  TableId table = 0;
};

// Positions in Core::limit_bytes, half open.
struct TimeRange {
  int32_t begin = 0;
  int32_t end = 0;
  friend auto operator<=>(const TimeRange&, const TimeRange&) = default;
};

// Bytes of each choice during some disjoint or overlapping ranges (overlaps count twice).
struct CoreUsage {
  RowId row = 0;
  std::vector<TimeRange> ranges;
};

struct Core {
  TableAlgebra algebra;
  std::vector<RowId> cost_rows;                // per node
  std::vector<CoreEdge> edges;                 // at most one per pair
  std::vector<std::vector<CoreUsage>> usages;  // per node
  int64_t base_cost = 0;                       // what reductions have already paid
  std::vector<int64_t> limit_bytes;            // per time that can bind; may be negative
  std::vector<int64_t> times;                  // the problem's time of each
  bool infeasible = false;                     // a node lost its last choice

  int32_t num_nodes() const { return static_cast<int32_t>(cost_rows.size()); }
  std::span<const int64_t> costs(int32_t node) const { return algebra.row(cost_rows[node]); }
  int32_t num_choices(int32_t node) const { return static_cast<int32_t>(costs(node).size()); }
  // Whether even the choices of least memory exceed the limit.
  bool limit_is_below_least_usage() const {
    return std::ranges::any_of(limit_bytes, [](int64_t bytes) { return bytes < 0; });
  }
};

}  // namespace minka
