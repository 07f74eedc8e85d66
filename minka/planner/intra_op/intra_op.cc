#include "minka/planner/intra_op/intra_op.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iterator>
#include <mutex>

#include "minka/base/check.h"
#include "minka/base/status.h"
#include "minka/ir/micro_loop.h"
#include "minka/planner/intra_op/choices.h"
#include "minka/planner/intra_op/constraints.h"
#include "minka/planner/intra_op/decode.h"
#include "minka/planner/intra_op/formulation.h"
#include "minka/planner/intra_op/memory_estimate.h"
#include "minka/planner/intra_op/op_costs.h"
#include "minka/planner/intra_op/reshard_costs.h"
#include "minka/planner/intra_op/restrictions.h"
#include "minka/solver/model/evaluate.h"
#include "minka/solver/solve.h"

namespace minka {
namespace {

// The solver counts copies for one operation nowhere; the estimate of the decoded plan does. So
// often the limit given to the solver is lowered by what the estimate exceeds it.
constexpr int kMaxMemoryRounds = 4;

// Sums of so many doubles may differ by so much of themselves.
constexpr double kRounding = 1e-9;
// What it takes to make the problem of an operation and to read its answer, in the solver's work.
constexpr int64_t kWorkPerOperation = 40'000;
// A search that was begun may spend so much in any case, so that it has some answer.
constexpr int64_t kLeastWork = 50'000'000;

SolveParameters ParametersFor(const IntraOpOptions& options) {
  SolveParameters parameters;
  parameters.gap = options.search.gap;
  parameters.time_limit_seconds = options.search.time_limit_seconds;
  parameters.num_threads = options.search.num_threads;
  parameters.initial_choice = options.initial_choice;
  parameters.cancelled = options.cancelled;
  if (options.on_progress) {
    parameters.on_progress = [&options](const SolveProgress& progress) {
      options.on_progress(progress.seconds, progress.gap);
    };
  }
  return parameters;
}

bool SavesMemory(const IntraOpOptions& options) {
  return options.search.memory_limit_bytes ||
         (options.method == Method::kZero3 && options.search.limits.combine_gathers_bytes == 0);
}

ReshardLimits LimitsFor(const Mesh& mesh, const StepFacts& facts, const IntraOpOptions& options) {
  ReshardLimits limits{.no_all_gather = options.search.limits.no_all_gather,
                       .no_all_to_all = options.search.limits.no_all_to_all,
                       .discourages_gathers_of_activations = IsDataParallel(options.method),
                       .discourages_gathers_of_state = options.method == Method::kData,
                       .prefers_scattered_gradients = options.search.limits.prefer_reduce_scatter,
                       .saves_memory = SavesMemory(options),
                       .num_combinable = facts.NumEnteringApply()};
  if (const int axis = mesh.FindAxis(options.search.limits.batch_axis); axis >= 0) {
    limits.batch_axes = AxisSet::Of(axis);
  }
  return limits;
}

Refusal DoesNotFit(int64_t limit, int64_t smallest, bool is_proved) {
  return NoPlanFits(limit, "the smallest limit known to work is", smallest, is_proved);
}

// Why the solver has no choice, where memory is not the reason.
absl::Status FoundNothing(SolveStatus status, const Mesh& mesh, const IntraOpOptions& options) {
  if (status == SolveStatus::kCutoff) {
    return MakeError(
        absl::StatusCode::kAborted,
        fmt::format("no plan on the mesh {} has an objective below {:.6g}, the best so far",
                    mesh.ToString(), *options.cutoff));
  }
  if (status != SolveStatus::kInfeasible) {
    const std::optional<int64_t> limit = options.search.memory_limit_bytes;
    const bool by_clock = status == SolveStatus::kTimeLimit;
    return ResourceExhausted(
        "no plan{} was found on the mesh {} within {}; raise {}",
        limit ? fmt::format(" that fits into {} bytes per device", *limit) : "", mesh.ToString(),
        by_clock ? "--time-limit" : "its share of --work-limit",
        fmt::format("{}{}", by_clock ? "it" : "that", limit ? " or --memory-limit" : ""));
  }
  std::string asked = fmt::format("method {}", MethodName(options.method));
  for (const Constraint& constraint : ConstraintsOf(options.search)) {
    asked += fmt::format(", {}", constraint.flag);
  }
  return FailedPrecondition("no plan on the mesh {} obeys all that is asked: {}", mesh.ToString(),
                            asked);
}

std::string NoteOnCut(const std::map<std::string, CutChoices>& cut) {
  std::string counts;
  for (const auto& [opcode, choices] : cut) {
    counts += fmt::format("{}{} of {} of {}", counts.empty() ? "" : ", ", choices.num_cut,
                          choices.num_choices, opcode);
  }
  return fmt::format("choices not tried, which lower bound and gap leave out: {}", counts);
}

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Solves with what is left of budget, but at least so much, and of time, and takes from the budget.
absl::StatusOr<SolveResult> SolveWithin(const SolverProblem& problem, SolveParameters parameters,
                                        WorkBudget* budget, int64_t least_work,
                                        Clock::time_point start) {
  parameters.time_limit_seconds =
      std::max(0.0, parameters.time_limit_seconds - SecondsSince(start));
  if (budget != nullptr) parameters.work_limit = std::max(least_work, budget->left());
  ASSIGN_OR_RETURN(SolveResult solved, Solve(problem, parameters));
  if (budget != nullptr) budget->Take(solved.work);
  return solved;
}

// Does the solver, for want of a choice, leave open whether the limit is the reason?
bool MayLackMemory(const SolveResult& solved) {
  return solved.choice.empty() && solved.infeasibility && !solved.infeasibility->without_limit;
}

}  // namespace

Refusal NoPlanFits(int64_t limit, std::string_view what, int64_t smallest, bool is_proved) {
  return {.why = ResourceExhausted("no plan {} into {} bytes per device; {} {} bytes ({:.1f} MiB)",
                                   is_proved ? "fits" : "was found that fits", limit, what,
                                   smallest, static_cast<double>(smallest) / (1 << 20)),
          .smallest_limit_bytes = smallest};
}

std::string_view MethodName(Method method) {
  switch (method) {
    case Method::kShard:
      return "shard";
    case Method::kData:
      return "data";
    case Method::kZero2:
      return "zero2";
    case Method::kZero3:
      return "zero3";
  }
  MINKA_CHECK(false);
}

absl::StatusOr<Method> ParseMethod(std::string_view name) {
  for (const Method method : {Method::kShard, Method::kData, Method::kZero2, Method::kZero3}) {
    if (name == MethodName(method)) return method;
  }
  return InvalidArgument("unknown method \"{}\"; known: data, zero2, zero3, shard", name);
}

std::string NoteOnPlanByRules(Method method) {
  return fmt::format("the plan is that of method {}, which is predicted to be faster",
                     MethodName(method));
}

namespace {

absl::StatusOr<int64_t> PeakMemory(const StepFacts& facts, const StagePlan& stage,
                                   const IntraOpOptions& options) {
  if (options.peak_memory_bytes) return options.peak_memory_bytes(stage);
  return EstimateMemory(facts, stage).peak_bytes;
}

}  // namespace

struct MeshProblem::Parts {
  Parts(const Step& step, const Mesh& of_mesh, const CostModel& cost, ChoiceTables enumerated,
        const IntraOpOptions& options)
      : mesh(of_mesh),
        cost(cost),
        facts(step, cost.platform()),
        tables(std::move(enumerated)),
        reshards(mesh, cost, tables.shardings, LimitsFor(mesh, facts, options),
                 options.reshard_costs),
        formulation(Formulate(facts, tables, reshards, mesh, cost, options)) {}

  ReshardTimes TimesOfReshards(std::span<const int32_t> choice) {
    const std::lock_guard lock(mutex);
    return ReshardTimesOf(formulation, tables, reshards, choice);
  }

  const Mesh mesh;
  const CostModel& cost;
  const StepFacts facts;
  ChoiceTables tables;
  ReshardCosts reshards;  // what it remembers is guarded by mutex
  const Formulation formulation;
  std::mutex mutex;
};

MeshProblem::MeshProblem(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
MeshProblem::MeshProblem(MeshProblem&&) noexcept = default;
MeshProblem& MeshProblem::operator=(MeshProblem&&) noexcept = default;
MeshProblem::~MeshProblem() = default;

absl::StatusOr<MeshProblem> MeshProblem::Create(const Step& step, const Mesh& mesh,
                                                const CostModel& cost,
                                                const IntraOpOptions& options) {
  ASSIGN_OR_RETURN(ChoiceTables tables,
                   EnumerateChoices(step, mesh, cost.forbids_replicated_dots(), options));
  return MeshProblem(std::make_unique<Parts>(step, mesh, cost, std::move(tables), options));
}

SearchResult<IntraOpResult> MeshProblem::Search(const IntraOpOptions& options) const {
  const Clock::time_point start = Clock::now();
  const Mesh& mesh = parts_->mesh;
  const CostModel& cost = parts_->cost;
  const StepFacts& facts = parts_->facts;
  const ChoiceTables& tables = parts_->tables;
  const Formulation& formulation = parts_->formulation;
  ChargedProblem charged = ChargeMemory(facts, formulation, options.memory_price);
  charged.problem.set_usage_limit(options.search.memory_limit_bytes);

  if (options.budget != nullptr) {
    options.budget->Take(kWorkPerOperation * facts.entry.num_instructions());
  }

  IntraOpResult result;
  SolveParameters parameters = ParametersFor(options);
  if (options.cutoff) {
    parameters.cutoff = static_cast<int64_t>(
        std::min(*options.cutoff * formulation.units_per_cost, std::ldexp(1.0, 62)));
  }
  std::optional<int64_t> limit = options.search.memory_limit_bytes;
  double search_bound = 0, penalties = 0, saved = 0;
  std::optional<IntraOpResult> least;  // where none fits, of those found
  int64_t least_work = kLeastWork;
  for (int round = 0;; ++round) {
    ASSIGN_OR_RETURN(SolveResult solved,
                     SolveWithin(charged.problem, parameters, options.budget, least_work, start));
    // A lowered limit is searched as long as the limit itself, from its prices.
    least_work = std::max(least_work, solved.work);
    parameters.initial_prices = solved.prices;
    // The choice of a problem of which no answer is known is the one that needs least.
    const bool is_least = solved.infeasibility.has_value();
    if (is_least && !solved.infeasibility->choice.empty()) {
      solved.choice = solved.infeasibility->choice;
      ASSIGN_OR_RETURN(const Evaluation evaluation, Evaluate(charged.problem, solved.choice));
      solved.cost = evaluation.cost;
    }
    const bool is_proved = round == 0 && solved.status == SolveStatus::kInfeasible;
    const auto does_not_fit = [&] {
      return DoesNotFit(*options.search.memory_limit_bytes, least->stage.peak_memory_bytes,
                        is_proved);
    };
    if (solved.choice.empty() && least) {
      if (!options.takes_least) return does_not_fit();
      break;
    }
    if (limit && MayLackMemory(solved)) {
      charged.problem.set_usage_limit(std::nullopt);
      parameters.initial_prices.clear();
      ASSIGN_OR_RETURN(solved,
                       SolveWithin(charged.problem, parameters, options.budget, least_work, start));
    }
    if (solved.choice.empty()) return FoundNothing(solved.status, mesh, options);
    result.stage =
        DecodeChoices(facts, tables, formulation, parts_->reshards, mesh, cost, solved.choice,
                      {.save_memory = SavesMemory(options),
                       .combine_gathers_bytes = options.search.limits.combine_gathers_bytes});
    ASSIGN_OR_RETURN(const int64_t peak, PeakMemory(facts, result.stage, options));
    result.stage.peak_memory_bytes = peak;
    // Whoever has no more penalties and costs less would have been better in the search.
    const ReshardTimes reshard_times = parts_->TimesOfReshards(solved.choice);
    penalties = reshard_times.penalties;
    result.objective = reshard_times.time;
    for (const OpPlan& op : result.stage.ops) result.objective += op.cost_us;
    saved = result.objective - result.stage.step_time_us;
    // The bound holds for the limit that was asked for: a lowered limit only raises the optimum.
    if (round == 0)
      search_bound = static_cast<double>(solved.lower_bound) / formulation.units_per_cost;
    const double held = charged.HeldCost(solved.choice);
    result.priced_lower_bound = search_bound;
    result.lower_bound = std::max(0.0, search_bound - penalties - held);
    result.memory_price = solved.memory_price / formulation.units_per_cost;
    result.stop_reason = is_least ? "least_memory" : std::string(SolveStatusName(solved.status));
    result.choice = solved.choice;
    if (!limit || peak <= *options.search.memory_limit_bytes) break;
    if (!least || peak < least->stage.peak_memory_bytes) least = result;
    *limit -= peak - *options.search.memory_limit_bytes;
    if (is_least || round + 1 == kMaxMemoryRounds || *limit < 0) {
      if (!options.takes_least) return does_not_fit();
      break;
    }
    charged.problem.set_usage_limit(limit);
  }
  const std::optional<int64_t> asked = options.search.memory_limit_bytes;
  if (asked && result.stage.peak_memory_bytes > *asked) {
    result = *std::move(least);
    result.lower_bound = result.priced_lower_bound = 0;
    saved = result.objective - result.stage.step_time_us;
  }
  MINKA_CHECK(result.lower_bound <= result.objective * (1 + kRounding),
              "a plan of objective {} is below the lower bound {}", result.objective,
              result.lower_bound);
  result.lower_bound = std::min(result.lower_bound, result.objective);
  result.gap =
      result.objective > 0 ? (result.objective - result.lower_bound) / result.objective : 0;
  result.num_nodes = charged.problem.num_nodes();
  result.num_edges = static_cast<int>(charged.problem.edges().size());
  result.notes = tables.notes;
  if (!tables.cut.empty()) result.notes.push_back(NoteOnCut(tables.cut));
  if (std::abs(saved) > kRounding * result.objective) {
    result.notes.push_back(fmt::format(
        "the step time is {:.4g} % {} the objective: versions that readers share, into how many "
        "instructions collectives are combined and how long devices wait at them behind much work "
        "are in neither objective nor bound",
        100 * std::abs(saved) / result.objective, saved > 0 ? "below" : "above"));
  }
  std::ranges::copy(NotesOnTrips(facts.step.module), std::back_inserter(result.notes));
  if (IsDataParallel(options.method) && penalties > 1e-3 * result.objective) {
    result.notes.push_back(
        fmt::format("method {} avoids gathers and moves that this plan cannot do without; what the "
                    "search charges for them beyond their time is in neither objective nor bound",
                    MethodName(options.method)));
  }
  result.seconds = SecondsSince(start);
  return result;
}

namespace {

SearchResult<IntraOpResult> PlanOnce(const Step& step, const Mesh& mesh, const CostModel& cost,
                                     const IntraOpOptions& options) {
  if (options.problem != nullptr) return options.problem->Search(options);
  const Clock::time_point start = Clock::now();
  ASSIGN_OR_RETURN(const MeshProblem problem, MeshProblem::Create(step, mesh, cost, options));
  IntraOpOptions left = options;
  const double seconds = SecondsSince(start);
  left.search.time_limit_seconds = std::max(0.0, options.search.time_limit_seconds - seconds);
  SearchResult<IntraOpResult> result = problem.Search(left);
  if (result.ok()) result->seconds += seconds;
  return result;
}

// One over the part of the work left that a plan by rules may take: rules leave little to choose,
// but penalties that are hard to bound. A ResNet50 by zero3: its plan after half a second, a gap of
// 1.4 % after one, of 0.5 % after 47.
constexpr int64_t kSearchesByRules = 16;

SearchResult<IntraOpResult> SearchByRules(const Step& step, const Mesh& mesh, const CostModel& cost,
                                          const IntraOpOptions& options) {
  // Data parallelism has nothing to give up for memory: it is planned as it is and said not to fit.
  // Only what micro-batches accumulate depends on the limit.
  IntraOpOptions planned = options;
  planned.search.memory_limit_bytes.reset();
  if (options.method == Method::kData || !FindMicroLoop(step.module).exists()) {
    return PlanOnce(step, mesh, cost, planned);
  }
  if (options.search.memory_limit_bytes) {
    const Clock::time_point start = Clock::now();
    auto result = PlanOnce(step, mesh, cost, planned);
    planned.search.time_limit_seconds -= SecondsSince(start);
    if (!result.ok() || result->stage.peak_memory_bytes <= *options.search.memory_limit_bytes) {
      return result;
    }
  }
  planned.scatters_accumulators = true;
  return PlanOnce(step, mesh, cost, planned);
}

SearchResult<IntraOpResult> PlanByRules(const Step& step, const Mesh& mesh, const CostModel& cost,
                                        const IntraOpOptions& options) {
  if (options.budget == nullptr) return SearchByRules(step, mesh, cost, options);
  WorkBudget budget(std::max<int64_t>(1, options.budget->left() / kSearchesByRules));
  IntraOpOptions limited = options;
  limited.budget = &budget;
  SearchResult<IntraOpResult> result = SearchByRules(step, mesh, cost, limited);
  options.budget->Take(budget.spent());
  return result;
}

// Plans by rules are among the search's answers: it leaves out what each group of combined
// collectives costs by itself, and within its gap it may stop at a slower one.
void TakePlanByRules(const Step& step, const Mesh& mesh, const CostModel& cost,
                     const IntraOpOptions& options, IntraOpResult& result) {
  const std::optional<int64_t> limit = options.search.memory_limit_bytes;
  for (const Method method : {Method::kData, Method::kZero2, Method::kZero3}) {
    IntraOpOptions by_rules = options;
    by_rules.method = method;
    by_rules.cutoff.reset();
    by_rules.initial_choice.clear();
    const bool memory_decides =
        limit && method != Method::kData && FindMicroLoop(step.module).exists();
    const bool is_put_off = options.peak_memory_bytes && !memory_decides;
    if (is_put_off) by_rules.peak_memory_bytes = [](const StagePlan&) { return 0; };
    SearchResult<IntraOpResult> other = PlanByRules(step, mesh, cost, by_rules);
    if (!other.ok()) continue;
    result.seconds += other->seconds;
    const bool is_faster = other->stage.step_time_us < result.stage.step_time_us;
    if (!is_faster && other->objective >= result.lower_bound) continue;
    if (is_put_off) {
      // Seldom needed, and what takes longest.
      const absl::StatusOr<int64_t> peak = options.peak_memory_bytes(other->stage);
      if (!peak.ok()) continue;
      other->stage.peak_memory_bytes = *peak;
    }
    if (limit && other->stage.peak_memory_bytes > *limit) continue;
    // Under a limit on memory the search leaves out plans that it counts as too large, and copies
    // made in front of a loop. Then only both searches together bound what there is.
    if (other->objective < result.lower_bound) {
      if (other->objective * (1 + kRounding) < result.lower_bound) {
        result.notes.push_back(
            fmt::format("method {} has a plan that the search left out, below its bound of {:.6g}; "
                        "lower bound and gap are of both",
                        MethodName(method), result.lower_bound));
      }
      result.lower_bound = other->lower_bound;
    }
    if (!is_faster) continue;
    result.stage = std::move(other->stage);
    result.objective = other->objective;
    result.notes.push_back(NoteOnPlanByRules(method));
  }
  result.gap =
      result.objective > 0 ? (result.objective - result.lower_bound) / result.objective : 0;
}

}  // namespace

SearchResult<IntraOpResult> PlanMesh(const Step& step, const Mesh& mesh, const CostModel& cost,
                                     const IntraOpOptions& options) {
  if (IsDataParallel(options.method)) return PlanByRules(step, mesh, cost, options);
  ASSIGN_OR_RETURN(IntraOpResult result, PlanOnce(step, mesh, cost, options));
  if (options.tries_rules && cost.shares_latency())
    TakePlanByRules(step, mesh, cost, options, result);
  return result;
}

}  // namespace minka
