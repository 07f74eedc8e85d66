// The rows of the acceptance table: small programs with known best plans (the tests of Alpa,
// OSDI'22), what minka's plan may cost and how many collectives it may need.
//
// Costs are Alpa's: communication only, alpha and beta per mesh axis; every dot is divided over
// every axis.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/ir/step.h"
#include "minka/lowering/spmd.h"
#include "minka/plan/plan.h"
#include "minka/planner/intra_op/intra_op.h"

namespace minka {

struct AcceptanceRow {
  std::string name;
  std::string mesh;
  std::function<absl::StatusOr<Step>()> program;
  Method method = Method::kShard;
  std::vector<double> alpha = {1, 1}, beta = {1, 1};  // by mesh axis
  // Alpa's expected objective, and the same without what only breaks ties: minka's may not be
  // larger.
  double alpa_objective = 0, bound = 0;
  // Collectives at most by HLO name, those of one scalar left out; kinds not listed: none. Binds
  // for plans that are not cheaper than the bound. Unset: not stated.
  std::optional<std::map<std::string, int>> max_collectives;
  std::map<std::string, std::string> shardings;  // parameter name -> sharding
  std::vector<std::string> pins;
  SearchLimits limits;
  // State whose name matches and which has at least so many dimensions is split over every axis.
  std::string split_state;
  int split_rank = 1;
  bool forbids_gathers = false;  // an all-gather costs 1e8
  bool truncates_costs = false;  // each collective costs a whole number, rounded down
  bool flattens_mesh = false;    // an all-reduce over all axes costs what it would over one
  std::string why_cheaper;       // for rows whose plan costs less than the bound
  bool compiles = false;         // on 4 devices, by the CPU plugin
};

std::vector<AcceptanceRow> AcceptanceRows();

// What minka makes of a row.
struct AcceptanceResult {
  Step prepared;
  Plan plan;
  SpmdProgram program;
  double objective = 0;                    // of the plan, by the row's formulas
  std::map<std::string, int> collectives;  // of the lowered program, by HLO name, without scalars
};

absl::StatusOr<AcceptanceResult> PlanAndLower(const AcceptanceRow& row);

}  // namespace minka
