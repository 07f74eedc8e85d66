#include "model_problems.h"

#include <memory>

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
#include "minka/solver/evaluate.h"
#include "minka/solver/solve.h"

namespace minka {
namespace {

absl::StatusOr<SolverProblem> Pose(const Step& step, const Mesh& mesh, const CostModel& cost,
                                   const IntraOpOptions& options) {
  const StepFacts facts(step);
  ASSIGN_OR_RETURN(ChoiceTables tables,
                   EnumerateChoices(step, mesh, cost.forbids_replicated_dots(), options));
  ReshardCosts reshards(mesh, cost, tables.shardings);
  return Formulate(facts, tables, reshards, mesh, cost, options).problem;
}

}  // namespace

std::vector<ModelCase> ModelCases() {
  std::vector<ModelCase> cases;
  for (const std::string model : {"gpt-125m", "gpt-350m", "gpt-760m", "gpt-1.3b", "gpt-2.6b",
                                  "gpt-6.7b", "gpt-15b", "gpt-39b", "gpt-76b", "gpt-175b"})
    for (const std::string mesh :
         {"data=2,model=4", "data=8,model=8", "x=2,y=2,z=2", "x=4,y=4,z=4"})
      cases.push_back({model, mesh});
  for (const std::string model : {"gpt-tiny", "moe-tiny", "moe-380m"})
    for (const std::string mesh : {"data=2,model=4", "x=2,y=2,z=2"}) cases.push_back({model, mesh});
  cases.push_back({"gpt-125m", "data=2,model=4", true});
  cases.push_back({"gpt-2.6b", "data=2,model=4", true});
  cases.push_back({"gpt-39b", "data=8,model=8", true});
  return cases;
}

absl::StatusOr<NamedProblem> MakeModelProblem(const ModelCase& model_case) {
  ASSIGN_OR_RETURN(const TracedStep traced, TraceModel(model_case.model));
  ASSIGN_OR_RETURN(const Step step, Prepare(traced.step));
  ASSIGN_OR_RETURN(const Mesh mesh, Mesh::Parse(model_case.mesh));
  const std::unique_ptr<CostModel> cost =
      MakeRooflineCostModel(Cluster::Local(mesh.num_devices()), mesh);
  IntraOpOptions options;
  if (model_case.tight) options.memory_limit_bytes = INT64_MAX / 4;
  ASSIGN_OR_RETURN(SolverProblem problem, Pose(step, mesh, *cost, options));
  std::string name = fmt::format("{} {}", model_case.model, model_case.mesh);
  if (model_case.tight) {
    // No plan fits into nothing; the answer names a limit that works.
    problem.set_usage_limit(0);
    ASSIGN_OR_RETURN(const SolveResult none, Solve(problem, {}));
    if (!none.infeasibility || !none.infeasibility->smallest_known_limit_bytes)
      return InternalError("{}: no limit that works was found", name);
    problem.set_usage_limit(*none.infeasibility->smallest_known_limit_bytes / 10 * 11);
    name += " tight";
  }
  return NamedProblem{std::move(name), std::move(problem)};
}

}  // namespace minka
