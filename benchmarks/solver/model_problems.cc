#include "model_problems.h"

#include <cmath>
#include <memory>
#include <utility>

#include "fmt/format.h"
#include "minka/base/status.h"
#include "minka/cluster/cluster.h"
#include "minka/cost/cost_model.h"
#include "minka/driver/prepare.h"
#include "minka/models/registry.h"
#include "minka/planner/intra_op/choices.h"
#include "minka/planner/intra_op/formulation.h"
#include "minka/planner/intra_op/intra_op.h"
#include "minka/planner/intra_op/reshard_costs.h"
#include "minka/solver/model/evaluate.h"
#include "minka/solver/solve.h"

namespace minka {
namespace {

absl::StatusOr<SolverProblem> Pose(const Step& step, const Mesh& mesh, const CostModel& cost,
                                   const IntraOpOptions& options) {
  const StepFacts facts(step, cost.platform());
  ASSIGN_OR_RETURN(ChoiceTables tables,
                   EnumerateChoices(step, mesh, cost.forbids_replicated_dots(), options));
  ReshardCosts reshards(mesh, cost, tables.shardings);
  return Formulate(facts, tables, reshards, mesh, cost, options).problem;
}

}  // namespace

std::string ModelCase::name() const {
  return fmt::format("{} {}{}{}", model, mesh, tight ? " tight" : "",
                     one_layer ? " one layer" : "");
}

std::vector<ModelCase> ModelCases() {
  std::vector<ModelCase> cases;
  for (const std::string model : {"gpt-125m", "gpt-350m", "gpt-760m", "gpt-1.3b", "gpt-2.6b",
                                  "gpt-6.7b", "gpt-15b", "gpt-39b", "gpt-76b", "gpt-175b"})
    for (const std::string mesh :
         {"data=2,model=4", "data=8,model=8", "x=2,y=2,z=2", "x=4,y=4,z=4"})
      cases.push_back({model, mesh});
  for (const std::string model : {"gpt-tiny", "moe-tiny", "moe-380m", "wresnet-250m"})
    for (const std::string mesh : {"data=2,model=4", "x=2,y=2,z=2"}) cases.push_back({model, mesh});
  cases.push_back({"gpt-125m", "data=2,model=4", true});
  cases.push_back({"gpt-2.6b", "data=2,model=4", true});
  cases.push_back({"gpt-39b", "data=8,model=8", true});
  cases.push_back({"moe-380m", "data=2,model=4", true});
  cases.push_back({"wresnet-250m", "data=2,model=4", true});
  for (const std::string model : {"gpt-125m", "gpt-39b"})
    cases.push_back({.model = model, .mesh = "data=2,model=4", .one_layer = true});
  return cases;
}

absl::StatusOr<NamedProblem> MakeModelProblem(const ModelCase& model_case) {
  ModelOptions model_options;
  if (model_case.one_layer) model_options.num_layers = 1;
  ASSIGN_OR_RETURN(const TracedStep traced, TraceModel(model_case.model, model_options));
  ASSIGN_OR_RETURN(const Step step, Prepare(traced.step));
  ASSIGN_OR_RETURN(const Mesh mesh, Mesh::Parse(model_case.mesh));
  const std::unique_ptr<CostModel> cost =
      MakeRooflineCostModel(Cluster::Local(mesh.num_devices()), mesh);
  IntraOpOptions options;
  if (model_case.tight || model_case.one_layer) options.search.memory_limit_bytes = INT64_MAX / 4;
  ASSIGN_OR_RETURN(SolverProblem problem, Pose(step, mesh, *cost, options));
  if (model_case.one_layer) problem.set_usage_limit(std::nullopt);
  if (model_case.tight) {
    // No plan fits into nothing; the answer names a limit that works.
    problem.set_usage_limit(0);
    ASSIGN_OR_RETURN(const SolveResult none, Solve(problem, {}));
    if (!none.infeasibility || !none.infeasibility->smallest_known_limit_bytes)
      return InternalError("{}: no limit that works was found", model_case.name());
    problem.set_usage_limit(*none.infeasibility->smallest_known_limit_bytes / 10 * 11);
  }
  return NamedProblem{model_case.name(), std::move(problem)};
}

SolverProblem AtMemoryPrice(const SolverProblem& problem, double price) {
  std::vector<std::vector<int64_t>> costs;
  for (NodeId node = 0; node < problem.num_nodes(); ++node)
    costs.emplace_back(problem.costs(node).begin(), problem.costs(node).end());
  for (size_t u = 0; u < problem.usages().size(); ++u) {
    const std::span<const int64_t> bytes = problem.usage_row(problem.usages()[u].row);
    std::vector<int64_t>& of_node = costs[problem.usage_node(u)];
    for (size_t k = 0; k < bytes.size(); ++k)
      if (of_node[k] != kForbidden)
        of_node[k] += std::llround(price * static_cast<double>(bytes[k]));
  }
  SolverProblem priced;
  for (NodeId node = 0; node < problem.num_nodes(); ++node) {
    priced.AddNode(costs[node]);
    priced.SetMultiplicity(node, problem.multiplicity(node));
  }
  for (ProblemEdge edge : problem.edges()) {
    const CostTable table = problem.table(edge.table);
    edge.table = priced.AddTable(table.num_rows, table.num_columns, table.cells);
    priced.AddEdge(edge);
  }
  return priced;
}

}  // namespace minka
