#include "minka/solver/highs_oracle.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <set>
#include <vector>

#include "interfaces/highs_c_api.h"

namespace minka {
namespace {

// Row-wise; every choice is a binary column, every allowed pair of an edge a continuous one
// (integral once the choices are).
struct MixedIntegerProgram {
  std::vector<double> cost;
  std::vector<double> upper;
  std::vector<HighsInt> integrality;
  std::vector<HighsInt> row_start;
  std::vector<HighsInt> column;
  std::vector<double> value;
  std::vector<double> row_lower;
  std::vector<double> row_upper;
  std::vector<int32_t> first_choice;  // column of each node's first choice

  int32_t AddColumn(double column_cost, double column_upper, bool integer) {
    cost.push_back(column_cost);
    upper.push_back(column_upper);
    integrality.push_back(integer ? kHighsVarTypeInteger : kHighsVarTypeContinuous);
    return static_cast<int32_t>(cost.size()) - 1;
  }
  void BeginRow(double lower, double upper_limit) {
    row_start.push_back(static_cast<HighsInt>(column.size()));
    row_lower.push_back(lower);
    row_upper.push_back(upper_limit);
  }
  void Add(int32_t at, double coefficient) {
    column.push_back(at);
    value.push_back(coefficient);
  }
};

void AddNodes(const SolverProblem& problem, MixedIntegerProgram& program) {
  for (NodeId node = 0; node < problem.num_nodes(); ++node) {
    program.first_choice.push_back(static_cast<int32_t>(program.cost.size()));
    program.BeginRow(1, 1);
    for (const int64_t cost : problem.costs(node)) {
      const bool allowed = cost != kForbidden;
      const double scaled = allowed ? static_cast<double>(cost * problem.multiplicity(node)) : 0;
      program.Add(program.AddColumn(scaled, allowed ? 1 : 0, true), 1);
    }
  }
}

void AddEdge(const SolverProblem& problem, const ProblemEdge& edge, MixedIntegerProgram& program) {
  const int32_t rows = problem.num_choices(edge.a);
  const int32_t columns = problem.num_choices(edge.b);
  std::vector<std::vector<int32_t>> by_row(rows);
  std::vector<std::vector<int32_t>> by_column(columns);
  for (int32_t i = 0; i < rows; ++i) {
    for (int32_t j = 0; j < columns; ++j) {
      const int64_t cost = problem.EdgeCost(edge, i, j);
      if (cost == kForbidden) continue;
      const int32_t pair =
          program.AddColumn(static_cast<double>(cost * edge.multiplicity), 1, false);
      by_row[i].push_back(pair);
      by_column[j].push_back(pair);
    }
  }
  const auto tie = [&](NodeId node, const std::vector<std::vector<int32_t>>& pairs) {
    for (size_t k = 0; k < pairs.size(); ++k) {
      program.BeginRow(0, 0);
      program.Add(program.first_choice[node] + static_cast<int32_t>(k), -1);
      for (const int32_t pair : pairs[k]) program.Add(pair, 1);
    }
  };
  tie(edge.a, by_row);
  tie(edge.b, by_column);
}

// The usage can only grow where an interval begins.
void AddLimit(const SolverProblem& problem, MixedIntegerProgram& program) {
  if (!problem.usage_limit()) return;
  std::set<int64_t> begins;
  for (const NodeUsage& usage : problem.usages()) begins.insert(usage.interval.begin);
  for (const int64_t time : begins) {
    std::map<int32_t, double> bytes;
    for (size_t u = 0; u < problem.usages().size(); ++u) {
      const NodeUsage& usage = problem.usages()[u];
      if (time < usage.interval.begin || time >= usage.interval.end) continue;
      const auto row = problem.usage_row(usage.row);
      for (size_t k = 0; k < row.size(); ++k)
        bytes[program.first_choice[problem.usage_node(u)] + static_cast<int32_t>(k)] +=
            static_cast<double>(row[k]);
    }
    program.BeginRow(-HUGE_VAL, static_cast<double>(*problem.usage_limit()));
    for (const auto& [at, amount] : bytes)
      if (amount != 0) program.Add(at, amount);
  }
}

}  // namespace

OracleAnswer SolveWithHighs(const SolverProblem& problem, double time_limit_seconds) {
  const auto start = std::chrono::steady_clock::now();
  MixedIntegerProgram program;
  AddNodes(problem, program);
  for (const ProblemEdge& edge : problem.edges()) AddEdge(problem, edge, program);
  AddLimit(problem, program);
  const auto num_columns = static_cast<HighsInt>(program.cost.size());
  const auto num_rows = static_cast<HighsInt>(program.row_lower.size());
  const std::vector<double> lower(program.cost.size(), 0);
  void* const highs = Highs_create();
  Highs_setBoolOptionValue(highs, "output_flag", 0);
  Highs_setIntOptionValue(highs, "threads", 1);
  Highs_setDoubleOptionValue(highs, "mip_rel_gap", 0);
  Highs_setDoubleOptionValue(highs, "mip_abs_gap", 0.5);
  Highs_setDoubleOptionValue(highs, "time_limit", time_limit_seconds);
  Highs_passMip(highs, num_columns, num_rows, static_cast<HighsInt>(program.value.size()),
                kHighsMatrixFormatRowwise, kHighsObjSenseMinimize, 0, program.cost.data(),
                lower.data(), program.upper.data(), program.row_lower.data(),
                program.row_upper.data(), program.row_start.data(), program.column.data(),
                program.value.data(), program.integrality.data());
  Highs_run(highs);
  OracleAnswer answer;
  const HighsInt status = Highs_getModelStatus(highs);
  answer.finished = status == kHighsModelStatusOptimal || status == kHighsModelStatusInfeasible;
  if (status == kHighsModelStatusOptimal)
    answer.cost = std::llround(Highs_getObjectiveValue(highs));
  Highs_destroy(highs);
  answer.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return answer;
}

}  // namespace minka
