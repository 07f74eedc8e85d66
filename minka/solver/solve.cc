#include "minka/solver/solve.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include "minka/base/check.h"
#include "minka/base/status.h"
#include "minka/solver/bound_ascent.h"
#include "minka/solver/core_graph.h"
#include "minka/solver/evaluate.h"
#include "minka/solver/primal.h"
#include "minka/solver/reduce.h"

namespace minka {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kFirstRound = 2'000'000;
constexpr int64_t kMostWorkToExplain = 200'000'000;
constexpr int64_t kLargestRound = 60'000'000;

double Gap(int64_t cost, int64_t lower_bound) {
  if (cost <= lower_bound) return 0;
  return (static_cast<double>(cost) - static_cast<double>(lower_bound)) / static_cast<double>(cost);
}

// One solve: rounds in which one thread raises the bound and another looks for choices, with all
// exchange between rounds.
class Solver {
 public:
  Solver(const SolverProblem& problem, const SolveParameters& parameters, Clock::time_point start)
      : problem_(problem), parameters_(parameters), start_(start) {}

  absl::StatusOr<SolveResult> Run() {
    reduction_ = Reduce(problem_);
    work_ = reduction_.core.algebra.work();
    DescribeCore();
    if (reduction_.core.infeasible) return WithoutChoice();
    const CoreGraph graph(reduction_.core);
    BoundAscent ascent(graph);
    PrimalSearch primal(graph, parameters_.seed);
    WarmStart(ascent, primal);
    SearchInRounds(ascent, primal);
    if (result_.status == SolveStatus::kInfeasible) return ExplainInfeasible(graph);
    return Finish(ascent);
  }

 private:
  double Seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

  bool Interrupted() const {
    return (parameters_.cancelled != nullptr &&
            parameters_.cancelled->load(std::memory_order_relaxed)) ||
           Seconds() >= parameters_.time_limit_seconds;
  }

  void WarmStart(BoundAscent& ascent, PrimalSearch& primal) {
    const Core& core = reduction_.core;
    if (static_cast<int32_t>(parameters_.initial_choice.size()) == problem_.num_nodes())
      primal.StartFrom(Restrict(reduction_, parameters_.initial_choice));
    if (parameters_.initial_prices.empty() || core.times.empty()) return;
    std::vector<double> prices(core.times.size(), 0);
    for (const TimePrice& at : parameters_.initial_prices) {
      const auto it = std::ranges::lower_bound(core.times, at.time);
      if (it != core.times.end()) prices[it - core.times.begin()] += std::max(0.0, at.price);
    }
    ascent.StartFrom(prices);
  }

  void SearchInRounds(BoundAscent& ascent, PrimalSearch& primal) {
    const auto stop = [this] { return Interrupted(); };
    int64_t quantum = kFirstRound;
    ascent.Run(quantum, stop);
    while (true) {
      Report(ascent, primal);
      if (ShouldStop()) return;
      const PrimalInput input = {ascent.messages(), ascent.best_prices(), lower_bound_};
      const int64_t left = parameters_.work_limit ? *parameters_.work_limit - work_ : INT64_MAX;
      const int64_t round = std::max<int64_t>(1, std::min(quantum, left / 2));
      const int64_t before = ascent.work() + primal.work();
      // Only what this round began with may decide, so that the answer does not depend on the
      // threads' pace.
      const auto bound_stop = [&, cost = best_cost_] {
        return Interrupted() || (cost && Gap(*cost, ascent.bound()) <= parameters_.gap);
      };
      if (parameters_.num_threads > 1) {
        std::thread bound_thread([&] { ascent.Run(round, bound_stop); });
        primal.Run(input, round, stop);
        bound_thread.join();
      } else {
        primal.Run(input, round, stop);
        ascent.Run(round, bound_stop);
      }
      searched_ = true;
      work_ += ascent.work() + primal.work() - before;
      quantum = std::min(kLargestRound, quantum * 3 / 2);
    }
  }

  void Report(const BoundAscent& ascent, const PrimalSearch& primal) {
    bool improved = false;
    if (ascent.bound() > lower_bound_) {
      lower_bound_ = ascent.bound();
      improved = true;
    }
    if (primal.complete()) {
      complete_ = true;
      if (primal.best()) lower_bound_ = primal.best()->cost;
    }
    if (primal.best() && (!best_cost_ || primal.best()->cost < *best_cost_)) {
      best_cost_ = primal.best()->cost;
      best_choice_ = primal.best()->choice;
      result_.seconds_to_best = Seconds();
      if (!result_.seconds_to_first) result_.seconds_to_first = Seconds();
      improved = true;
    }
    if (!improved || !parameters_.on_progress) return;
    parameters_.on_progress({.seconds = Seconds(),
                             .work = work_,
                             .cost = best_cost_,
                             .lower_bound = static_cast<double>(lower_bound_),
                             .gap = best_cost_ ? Gap(*best_cost_, lower_bound_) : 1});
  }

  bool ShouldStop() {
    if (!best_cost_ && (complete_ || LimitIsBelowLeastUsage()))
      return StopWith(SolveStatus::kInfeasible);
    if (best_cost_ && *best_cost_ <= lower_bound_) return StopWith(SolveStatus::kOptimal);
    if (best_cost_ && Gap(*best_cost_, lower_bound_) <= parameters_.gap)
      return StopWith(SolveStatus::kGapReached);
    if (parameters_.cancelled != nullptr && parameters_.cancelled->load())
      return StopWith(SolveStatus::kCancelled);
    // Not before the first look for a choice: a stalled machine should not leave the caller without
    // one.
    if (Seconds() >= parameters_.time_limit_seconds && searched_)
      return StopWith(SolveStatus::kTimeLimit);
    if (parameters_.work_limit && work_ >= *parameters_.work_limit)
      return StopWith(SolveStatus::kWorkLimit);
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

  bool LimitIsBelowLeastUsage() const {
    return std::ranges::any_of(reduction_.core.limit_bytes,
                               [](int64_t bytes) { return bytes < 0; });
  }

  SolveResult WithoutChoice() {
    result_.status = SolveStatus::kInfeasible;
    result_.infeasibility = Infeasibility{.without_limit = true};
    result_.work = work_;
    result_.seconds = Seconds();
    return std::move(result_);
  }

  absl::StatusOr<SolveResult> ExplainInfeasible(const CoreGraph& graph) {
    if (graph.core().limit_bytes.empty()) return WithoutChoice();
    Infeasibility why;
    const std::vector<int64_t>& limits = graph.core().limit_bytes;
    why.tightest_time = graph.core().times[std::ranges::min_element(limits) - limits.begin()];
    const std::optional<std::vector<int32_t>> choice = SmallestExcess(
        graph, parameters_.seed, std::min(kMostWorkToExplain, 10'000 + 200 * graph.num_cells()));
    if (choice) {
      result_.choice = Expand(reduction_, *choice);
      ASSIGN_OR_RETURN(const Evaluation evaluation, Evaluate(problem_, result_.choice));
      result_.cost = evaluation.cost;
      result_.peak_usage_bytes = evaluation.peak_usage_bytes;
      why.smallest_known_limit_bytes = evaluation.peak_usage_bytes;
      if (!LimitIsBelowLeastUsage()) why.tightest_time = evaluation.peak_time;
    }
    result_.infeasibility = why;
    result_.work = work_;
    result_.seconds = Seconds();
    return std::move(result_);
  }

  absl::StatusOr<SolveResult> Finish(const BoundAscent& ascent) {
    const Core& core = reduction_.core;
    result_.lower_bound = lower_bound_;
    for (size_t t = 0; t < core.times.size(); ++t) {
      const double price = ascent.best_prices()[t];
      if (price <= 0) continue;
      result_.prices.push_back({core.times[t], price});
      result_.memory_price = std::max(result_.memory_price, price);
    }
    if (best_cost_) {
      result_.choice = Expand(reduction_, best_choice_);
      ASSIGN_OR_RETURN(const Evaluation evaluation, Evaluate(problem_, result_.choice));
      MINKA_CHECK(evaluation.feasible() && evaluation.cost <= *best_cost_,
                  "the core's answer costs {}, the problem's {}", *best_cost_, evaluation.cost);
      result_.cost = evaluation.cost;
      result_.peak_usage_bytes = evaluation.peak_usage_bytes;
      result_.gap = Gap(result_.cost, lower_bound_);
    }
    result_.work = work_;
    result_.seconds = Seconds();
    return std::move(result_);
  }

  const SolverProblem& problem_;
  const SolveParameters& parameters_;
  const Clock::time_point start_;
  Reduction reduction_;
  SolveResult result_;
  int64_t lower_bound_ = 0;
  std::optional<int64_t> best_cost_;
  std::vector<int32_t> best_choice_;
  bool complete_ = false;
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
