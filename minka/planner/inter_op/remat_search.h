// Which layers a plan rematerialises: the fastest choice found that fits.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>

#include "minka/ir/step.h"
#include "minka/plan/plan.h"
#include "minka/planner/intra_op/search_result.h"

namespace minka {

// The best plan under one choice. It need not fit; where the method can trade time for memory, an
// refusal says which limit would do.
using PlanWithRemat = std::function<SearchResult<Plan>(const RematChoice& choice,
                                                       std::optional<int64_t> memory_limit_bytes)>;

struct RematSearchOptions {
  // As EffectiveRemat gives it for kAll: layers that may be rematerialised. Empty: none.
  RematChoice candidates;
  std::optional<int64_t> memory_limit_bytes;  // per device
  double gap = 0.002;  // no further choice is tried for a smaller part of the objective
  std::function<bool()> is_over = [] { return false; };  // asked before each further choice
};

// What a note of plans says where several choices were tried.
inline constexpr std::string_view kBoundOfOneChoice = "bound and gap are those of the one taken";

// Tries choices by planning them. Nothing is recomputed where that fits and memory costs no time.
// Else ever more layers are, from the first one on: the first layers' values are kept longest, and
// a layer's copies are there when everything behind it is gone. Two rows of choices are searched
// for the least recomputation whose fastest plan, planned without a limit (which is quick), fits:
//
//   first layers dots, then all:  -  d  dd  ddd  add  aad  aaa
//   first layers all:             -  a  aa  aaa
//
// Below it, plans under the limit are tried as long as they get faster. Of the plans that fit, the
// one with the smallest objective is returned; its gap is empty if more than one choice was
// planned. If none fits, the one that needs least, or the error that names the smallest limit.
SearchResult<Plan> SearchRemat(const PlanWithRemat& plan, const RematSearchOptions& options);

// Sets in `choice` what the n-th choice of the first row above has of these layers, n up to twice
// their number.
void RecomputeFirst(std::span<const size_t> layers, int n, RematChoice& choice);

}  // namespace minka
