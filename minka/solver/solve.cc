#include "minka/solver/solve.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include "minka/base/check.h"
#include "minka/base/status.h"
#include "minka/solver/bound/lift.h"
#include "minka/solver/core_search.h"
#include "minka/solver/improve/decoding.h"
#include "minka/solver/model/evaluate.h"
#include "minka/solver/reduce/reduce.h"
#include "minka/solver/reduce/repeated_layers.h"

namespace minka {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kFirstRound = 2'000'000;
constexpr int64_t kSmallestRound = 50'000;
constexpr int64_t kFirstSweeps = 60;
constexpr int64_t kMostWorkToExplain = 200'000'000;
constexpr int64_t kLargestRound = 60'000'000;

// A problem of repeated layers is solved with few of them first.
constexpr int32_t kFewestNodesToShorten = 3000;
constexpr int32_t kShortLayers = 6;
constexpr double kShortGapShare = 0.75;
constexpr double kLeastShortGap = 1e-4;
constexpr double kShortTimeShare = 0.25;
constexpr int64_t kMostSweepsOnShort = 200;           // its work in all is that of so many sweeps
constexpr int64_t kLeastWorkOnShort = 2'500'000'000;  // unless that is less

// One solve: reduce, search the core in rounds, expand.
class Solver {
 public:
  Solver(const SolverProblem& problem, const SolveParameters& parameters, Clock::time_point start)
      : problem_(problem),
        parameters_(parameters),
        start_(start),
        work_limit_(parameters.work_limit.value_or(INT64_MAX)) {}

  absl::StatusOr<SolveResult> Run() {
    std::optional<ShortenedProblem> shortened = ShortenIfWorthwhile();
    std::optional<Solver> short_solver;
    SolveParameters short_parameters;
    if (shortened) {
      short_parameters = ParametersForShort();
      short_solver.emplace(shortened->problem(), short_parameters, start_);
    }
    // Both are functions of the problem alone, so the answer does not depend on their pace.
    std::thread short_thread;
    if (short_solver && parameters_.num_threads > 1)
      short_thread = std::thread([&] { short_solver->ReduceAndSearchBriefly(); });
    ReduceProblem();
    if (short_thread.joinable())
      short_thread.join();
    else if (short_solver)
      short_solver->ReduceAndSearchBriefly();
    if (reduction_.core.infeasible) return WithoutChoice();
    WarmStart();
    if (shortened) StartFromShort(*shortened, *short_solver);
    SearchInRounds();
    if (!best_cost_) return ExplainInfeasible(search_->graph());
    return Finish();
  }

 private:
  double Seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

  bool Interrupted() const {
    return (parameters_.cancelled != nullptr &&
            parameters_.cancelled->load(std::memory_order_relaxed)) ||
           Seconds() >= parameters_.time_limit_seconds;
  }

  void ReduceProblem() {
    reduction_ = Reduce(problem_);
    work_ = reduction_.core.algebra.work();
    DescribeCore();
    if (!reduction_.core.infeasible)
      search_.emplace(reduction_.core, parameters_.seed, parameters_.left_out);
  }

  // For a problem that another is started from: what takes longer is better found out there.
  void ReduceAndSearchBriefly() {
    ReduceProblem();
    if (reduction_.core.infeasible) return;
    const int64_t sweeps = kMostSweepsOnShort * search_->ascent().messages().sweep_work();
    work_limit_ = std::min(work_limit_, work_ + std::max(kLeastWorkOnShort, sweeps));
    SearchInRounds();
  }

  // Memory couples all layers, so problems with a limit are searched as they are.
  std::optional<ShortenedProblem> ShortenIfWorthwhile() const {
    if (parameters_.left_out.test(static_cast<size_t>(Way::kShortening)) ||
        problem_.usage_limit() || problem_.num_nodes() < kFewestNodesToShorten ||
        !parameters_.initial_choice.empty())
      return std::nullopt;
    return CutRepeatedLayers(problem_, kShortLayers);
  }

  SolveParameters ParametersForShort() const {
    SolveParameters parameters = parameters_;
    parameters.cutoff.reset();
    parameters.gap = std::max(kLeastShortGap, kShortGapShare * parameters_.gap);
    parameters.time_limit_seconds = kShortTimeShare * parameters_.time_limit_seconds;
    if (parameters_.work_limit) parameters.work_limit = *parameters_.work_limit / 4;
    parameters.on_progress = nullptr;
    return parameters;
  }

  void StartFromShort(const ShortenedProblem& shortened, const Solver& solved) {
    work_ += solved.work_;
    result_.ways[Way::kShortening] = {.num_runs = 1, .work = solved.work_};
    if (solved.reduction_.core.infeasible) return;
    search_->StartFromMessages(LiftMessages(shortened, solved.reduction_,
                                            solved.search_->ascent().messages(), reduction_,
                                            search_->graph()));
    if (!solved.search_->best()) return;
    const std::vector<int32_t> choice =
        LiftChoice(problem_, shortened, Expand(solved.reduction_, solved.search_->best()->choice));
    if (!choice.empty()) search_->StartFrom(Restrict(reduction_, choice));
  }

  void WarmStart() {
    const Core& core = reduction_.core;
    if (static_cast<int32_t>(parameters_.initial_choice.size()) == problem_.num_nodes())
      search_->StartFrom(Restrict(reduction_, parameters_.initial_choice));
    if (parameters_.initial_prices.empty() || core.times.empty()) return;
    std::vector<int64_t> times;
    std::vector<double> prices;
    for (const TimePrice& at : parameters_.initial_prices) {
      times.push_back(at.time);
      prices.push_back(at.price);
    }
    search_->StartFromPrices(PricesAtTimes(core.times, times, prices));
  }

  void SearchInRounds() {
    const auto stop = [this] { return Interrupted(); };
    int64_t quantum = std::clamp(kFirstSweeps * search_->ascent().messages().sweep_work(),
                                 kSmallestRound, kFirstRound);
    const int64_t before = search_->work();
    const int64_t work_before = work_;
    search_->FirstBound(quantum, stop);
    while (true) {
      work_ = work_before + search_->work() - before;
      Report();
      if (ShouldStop()) return;
      search_->Round({.work = std::max<int64_t>(1, std::min(quantum, (work_limit_ - work_) / 2)),
                      .in_parallel = parameters_.num_threads > 1,
                      .gap = parameters_.gap},
                     stop);
      searched_ = true;
      quantum = std::min(kLargestRound, quantum * 3 / 2);
    }
  }

  void Report() {
    bool improved = false;
    if (search_->bound() > lower_bound_) {
      lower_bound_ = search_->bound();
      improved = true;
    }
    if (search_->best() && (!best_cost_ || search_->best()->cost < *best_cost_)) {
      best_cost_ = search_->best()->cost;
      result_.seconds_to_best = Seconds();
      if (!result_.seconds_to_first) result_.seconds_to_first = Seconds();
      improved = true;
    }
    if (!improved || !parameters_.on_progress) return;
    parameters_.on_progress({.seconds = Seconds(),
                             .work = work_,
                             .cost = best_cost_,
                             .lower_bound = static_cast<double>(lower_bound_),
                             .gap = best_cost_ ? RelativeGap(*best_cost_, lower_bound_) : 1});
  }

  bool ShouldStop() {
    if (!best_cost_ && (search_->complete() || reduction_.core.limit_is_below_least_usage()))
      return StopWith(SolveStatus::kInfeasible);
    if (parameters_.cutoff && lower_bound_ >= *parameters_.cutoff)
      return StopWith(SolveStatus::kCutoff);
    if (best_cost_ && *best_cost_ <= lower_bound_) return StopWith(SolveStatus::kOptimal);
    if (best_cost_ && RelativeGap(*best_cost_, lower_bound_) <= parameters_.gap)
      return StopWith(SolveStatus::kGapReached);
    if (parameters_.cancelled != nullptr && parameters_.cancelled->load())
      return StopWith(SolveStatus::kCancelled);
    // Not before the first look for a choice: a stalled machine should not leave the caller without
    // one.
    if (Seconds() >= parameters_.time_limit_seconds && searched_)
      return StopWith(SolveStatus::kTimeLimit);
    if (work_ >= work_limit_) return StopWith(SolveStatus::kWorkLimit);
    return false;
  }

  bool StopWith(SolveStatus status) {
    result_.status = status;
    return true;
  }

  void DescribeCore() {
    const Core& core = reduction_.core;
    result_.core.num_nodes = core.num_nodes();
    result_.core.num_edges = static_cast<int32_t>(core.edges.size());
    for (const CoreEdge& edge : core.edges)
      result_.core.num_cells += static_cast<int64_t>(core.algebra.table(edge.table).cells.size());
    result_.core.num_times = static_cast<int64_t>(core.times.size());
  }

  SolveResult WithoutChoice() {
    result_.status = SolveStatus::kInfeasible;
    result_.infeasibility = Infeasibility{.without_limit = true};
    result_.work = work_;
    result_.seconds = Seconds();
    return std::move(result_);
  }

  absl::StatusOr<SolveResult> ExplainInfeasible(const CoreGraph& graph) {
    const bool is_proved = result_.status == SolveStatus::kInfeasible;
    if (graph.core().limit_bytes.empty()) return is_proved ? WithoutChoice() : Finish();
    result_.lower_bound = lower_bound_;
    Infeasibility why;
    const std::vector<int64_t>& limits = graph.core().limit_bytes;
    why.tightest_time = graph.core().times[std::ranges::min_element(limits) - limits.begin()];
    const std::optional<std::vector<int32_t>> choice = SmallestExcess(
        graph, parameters_.seed, std::min(kMostWorkToExplain, 10'000 + 200 * graph.num_cells()));
    if (choice) {
      why.choice = Expand(reduction_, *choice);
      ASSIGN_OR_RETURN(const Evaluation evaluation, Evaluate(problem_, why.choice));
      why.smallest_known_limit_bytes = evaluation.peak_usage_bytes;
      if (!reduction_.core.limit_is_below_least_usage()) why.tightest_time = evaluation.peak_time;
    }
    result_.infeasibility = why;
    result_.work = work_;
    result_.seconds = Seconds();
    return std::move(result_);
  }

  absl::StatusOr<SolveResult> Finish() {
    const Core& core = reduction_.core;
    result_.lower_bound = lower_bound_;
    result_.ways += search_->records();
    for (size_t t = 0; t < core.times.size(); ++t) {
      const double price = search_->ascent().best_prices()[t];
      if (price <= 0) continue;
      result_.prices.push_back({core.times[t], price});
      result_.memory_price = std::max(result_.memory_price, price);
    }
    if (best_cost_) {
      result_.choice = Expand(reduction_, search_->best()->choice);
      ASSIGN_OR_RETURN(const Evaluation evaluation, Evaluate(problem_, result_.choice));
      MINKA_CHECK(evaluation.feasible() && evaluation.cost <= *best_cost_,
                  "the core's answer costs {}, the problem's {}", *best_cost_, evaluation.cost);
      result_.cost = evaluation.cost;
      result_.peak_usage_bytes = evaluation.peak_usage_bytes;
      result_.gap = RelativeGap(result_.cost, lower_bound_);
    }
    result_.work = work_;
    result_.seconds = Seconds();
    return std::move(result_);
  }

  const SolverProblem& problem_;
  const SolveParameters& parameters_;
  const Clock::time_point start_;
  int64_t work_limit_;
  Reduction reduction_;
  std::optional<CoreSearch> search_;  // of reduction_.core
  SolveResult result_;
  int64_t lower_bound_ = 0;
  std::optional<int64_t> best_cost_;
  bool searched_ = false;
  int64_t work_ = 0;
};

}  // namespace

std::string_view SolveStatusName(SolveStatus status) {
  switch (status) {
    case SolveStatus::kOptimal:
      return "optimal";
    case SolveStatus::kGapReached:
      return "gap_reached";
    case SolveStatus::kCutoff:
      return "cutoff";
    case SolveStatus::kWorkLimit:
      return "work_limit";
    case SolveStatus::kTimeLimit:
      return "time_limit";
    case SolveStatus::kCancelled:
      return "cancelled";
    case SolveStatus::kInfeasible:
      return "infeasible";
  }
  return "";
}

absl::StatusOr<SolveResult> Solve(const SolverProblem& problem, const SolveParameters& parameters) {
  const Clock::time_point start = Clock::now();
  RETURN_IF_ERROR(problem.Check());
  if (parameters.num_threads < 1)
    return InvalidArgument("num_threads must be at least 1, not {}", parameters.num_threads);
  if (!(parameters.gap >= 0))
    return InvalidArgument("gap must be at least 0, not {}", parameters.gap);
  return Solver(problem, parameters, start).Run();
}

}  // namespace minka
