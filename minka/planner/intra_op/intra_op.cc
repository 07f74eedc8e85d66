#include "minka/planner/intra_op/intra_op.h"

#include <algorithm>
#include <chrono>

#include "minka/base/check.h"
#include "minka/base/status.h"
#include "minka/planner/intra_op/choices.h"
#include "minka/planner/intra_op/decode.h"
#include "minka/planner/intra_op/formulation.h"
#include "minka/planner/intra_op/memory_estimate.h"
#include "minka/planner/intra_op/reshard_costs.h"
#include "minka/solver/solve.h"

namespace minka {
namespace {

// The solver counts copies for one operation nowhere; the estimate of the decoded plan does. So
// often the limit given to the solver is lowered by what the estimate exceeds it.
constexpr int kMaxMemoryRounds = 4;

SolveParameters ParametersFor(const IntraOpOptions& options) {
  SolveParameters parameters;
  parameters.gap = options.gap;
  parameters.time_limit_seconds = options.time_limit_seconds;
  parameters.num_threads = options.num_threads;
  parameters.initial_choice = options.initial_choice;
  if (options.on_progress) {
    parameters.on_progress = [&options](const SolveProgress& progress) {
      options.on_progress(progress.seconds, progress.gap);
    };
  }
  return parameters;
}

absl::Status DoesNotFit(int64_t limit, std::optional<int64_t> smallest) {
  if (!smallest) {
    return ResourceExhausted(
        "no plan fits into {} bytes per device, and none was found for a larger limit either",
        limit);
  }
  return ResourceExhausted(
      "no plan fits into {} bytes per device; the smallest limit known to work is {} bytes ({:.1f} "
      "MiB)",
      limit, *smallest, static_cast<double>(*smallest) / (1 << 20));
}

}  // namespace

std::string_view MethodName(Method method) {
  switch (method) {
    case Method::kShard:
      return "shard";
    case Method::kData:
      return "data";
  }
  MINKA_CHECK(false);
}

absl::StatusOr<Method> ParseMethod(std::string_view name) {
  if (name == "shard") return Method::kShard;
  if (name == "data") return Method::kData;
  return InvalidArgument("unknown method \"{}\"; known: data, shard", name);
}

absl::StatusOr<IntraOpResult> PlanMesh(const Step& step, const Mesh& mesh, const CostModel& cost,
                                       const IntraOpOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  const StepFacts facts(step);
  ASSIGN_OR_RETURN(ChoiceTables tables,
                   EnumerateChoices(step, mesh, cost.forbids_replicated_dots(), options));
  ReshardCosts reshards(mesh, cost, tables.shardings,
                        /*complete_only=*/options.method == Method::kData);
  Formulation formulation = Formulate(facts, tables, reshards, mesh, cost, options);

  IntraOpResult result;
  const SolveParameters parameters = ParametersFor(options);
  std::optional<int64_t> limit = options.memory_limit_bytes;
  for (int round = 0;; ++round) {
    ASSIGN_OR_RETURN(const SolveResult solved, Solve(formulation.problem, parameters));
    if (solved.status == SolveStatus::kInfeasible || solved.choice.empty()) {
      if (!options.memory_limit_bytes) {
        return InternalError("the solver found no plan ({})", SolveStatusName(solved.status));
      }
      return DoesNotFit(
          *options.memory_limit_bytes,
          solved.infeasibility ? solved.infeasibility->smallest_known_limit_bytes : std::nullopt);
    }
    result.stage = DecodeChoices(facts, tables, formulation, reshards, mesh, cost, solved.choice,
                                 /*save_memory=*/options.memory_limit_bytes.has_value());
    const MemoryEstimate memory = EstimateMemory(facts, result.stage);
    result.stage.peak_memory_bytes = memory.peak_bytes;
    result.objective = static_cast<double>(solved.cost) / formulation.units_per_cost;
    // The bound holds for the limit that was asked for: a lowered limit only raises the optimum.
    if (round == 0)
      result.lower_bound = static_cast<double>(solved.lower_bound) / formulation.units_per_cost;
    result.memory_price = solved.memory_price / formulation.units_per_cost;
    result.stop_reason = std::string(SolveStatusName(solved.status));
    result.choice = solved.choice;
    if (!limit || memory.peak_bytes <= *options.memory_limit_bytes) break;
    if (round + 1 == kMaxMemoryRounds)
      return DoesNotFit(*options.memory_limit_bytes, memory.peak_bytes);
    *limit -= memory.peak_bytes - *options.memory_limit_bytes;
    if (*limit < 0) return DoesNotFit(*options.memory_limit_bytes, memory.peak_bytes);
    formulation.problem.set_usage_limit(limit);
  }
  result.lower_bound = std::min(result.lower_bound, result.objective);
  result.gap =
      result.objective > 0 ? (result.objective - result.lower_bound) / result.objective : 0;
  result.num_nodes = formulation.problem.num_nodes();
  result.num_edges = static_cast<int>(formulation.problem.edges().size());
  result.num_choices_cut = tables.num_cut;
  result.notes = tables.notes;
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace minka
