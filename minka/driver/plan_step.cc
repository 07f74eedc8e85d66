#include "minka/driver/plan_step.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>

#include "minka/analysis/xla_cpu_memory.h"
#include "minka/base/check.h"
#include "minka/base/status.h"
#include "minka/driver/fit_by_layers.h"
#include "minka/driver/mesh_shapes.h"
#include "minka/driver/plan_in_micro_batches.h"
#include "minka/driver/plan_stage.h"
#include "minka/driver/prepare.h"
#include "minka/driver/prepared_steps.h"
#include "minka/lowering/rematerialize.h"
#include "minka/lowering/spmd.h"
#include "minka/planner/inter_op/remat_search.h"
#include "minka/planner/intra_op/constraints.h"
#include "minka/planner/intra_op/describe.h"
#include "minka/planner/intra_op/restrictions.h"
#include "minka/report/format.h"

namespace minka {
namespace {

using Clock = std::chrono::steady_clock;

// Axes that the search tells apart, see mesh_shapes.h: beyond, an operation has too many
// strategies.
constexpr int kMaxAxesApart = 3;

// What is searched at a time: a method on a mesh, or on that mesh with axes joined.
struct Target {
  Mesh mesh;
  Method method = Method::kShard;
  std::optional<JoinedAxes> joined;

  const Mesh& searched_mesh() const { return joined ? joined->mesh : mesh; }
};

SearchResult<Plan> PlanPrepared(const Step& step, const PlanRequest& request, const Target& target,
                                const IntraOpOptions& options) {
  const Mesh& mesh = target.searched_mesh();
  ASSIGN_OR_RETURN(const std::unique_ptr<CostModel> cost,
                   MakeCostModel(request.cost_model, request.cluster, mesh));
  IntraOpOptions with_memory = options;
  const Platform platform = request.cluster.platform();
  if (platform == Platform::kCpu) {
    with_memory.peak_memory_bytes = [&](const StagePlan& stage) -> absl::StatusOr<int64_t> {
      ASSIGN_OR_RETURN(const SpmdProgram program, LowerSpmd(step.module, stage, platform));
      return XlaCpuMemoryOf(program.module).upper_bound_bytes();
    };
  }
  ASSIGN_OR_RETURN(IntraOpResult result, PlanMesh(step, mesh, *cost, with_memory));
  if (target.joined) {
    result.stage = WithAxesApart(std::move(result.stage), target.mesh, *target.joined);
  }
  Plan plan = PlanOf(step, target.method, *cost, std::move(result));
  plan.options = request.options;
  if (const auto& calibration = request.cost_model.calibration; calibration) {
    if (std::string note = DisturbanceNote(*calibration); !note.empty()) {
      plan.notes.push_back(std::move(note));
    }
  }
  plan.per_micro_batch = plan.num_micro_batches > 1 && request.micro_batches.per_micro_batch;
  plan.narrow_sums = plan.num_micro_batches > 1 && request.micro_batches.narrow_sums;
  return plan;
}

bool Fits(const Plan& plan, const SearchOptions& options) {
  return !options.memory_limit_bytes || plan.peak_memory_bytes <= *options.memory_limit_bytes;
}

// Without a batch input, a method or limit that splits the batch would have nothing to split.
absl::Status CheckBatchIsKnown(const Step& step, Method method, const SearchLimits& limits) {
  const bool is_known = std::ranges::any_of(step.parameters, [](const ParameterInfo& info) {
    return info.role == ParameterRole::kBatch && info.batch_dim >= 0;
  });
  if (is_known || (!IsDataParallel(method) && limits.batch_axis.empty())) return absl::OkStatus();
  const bool by_method = IsDataParallel(method);
  return InvalidArgument(
      "{} splits the batch, but nothing says which inputs of {} are batches; name them with "
      "--batch-input PARAM[:DIM], or {}",
      by_method ? fmt::format("method {}", MethodName(method))
                : fmt::format("--batch-axis {}", limits.batch_axis),
      step.module.name, by_method ? "search with method shard" : "drop --batch-axis");
}

// No plan of the meshes and methods tried costs less than the least of their bounds; where a search
// ended because nothing there could be better, than the best less the gap. None is known where a
// candidate chose what to compute again, or has no plan although there may be one; but `fitted`,
// plans of method shard, says what bounds all of those.
void SetGapsOfWholeSearch(std::vector<PlanCandidate>& candidates, double search_gap,
                          const std::optional<FittedMeshes>& fitted) {
  double least = std::numeric_limits<double>::infinity();
  for (const PlanCandidate& candidate : candidates) {
    const bool is_fitted = fitted && candidate.method == Method::kShard;
    if (!absl::IsAborted(candidate.status) || is_fitted) continue;
    for (const PlanCandidate& other : candidates) {
      if (other.fits) least = std::min(least, other.plan.objective * (1 - search_gap));
    }
  }
  bool is_known = !fitted || fitted->lower_bound;
  if (is_known && fitted) least = std::min(least, *fitted->lower_bound);
  for (const PlanCandidate& candidate : candidates) {
    if (fitted && candidate.method == Method::kShard) continue;
    const bool is_bounded = candidate.status.ok() && candidate.plan.gap;
    if (is_bounded) least = std::min(least, candidate.plan.lower_bound);
    if (!is_bounded && (candidate.status.ok() || absl::IsResourceExhausted(candidate.status)))
      is_known = false;
  }
  for (PlanCandidate& candidate : candidates) {
    Plan& plan = candidate.plan;
    if (!candidate.status.ok()) continue;
    // What does not fit may be faster than what does.
    const bool is_bounded = is_known && (candidate.fits || !fitted);
    if (!is_bounded) plan.gap.reset();
    if (plan.gap && plan.objective > 0) plan.gap = (plan.objective - least) / plan.objective;
  }
}

// Does the first say what limit would do, and the second a larger one, or only that its does not?
bool NeedsLess(const PlanCandidate& a, const PlanCandidate& b) {
  if (!a.smallest_limit_bytes) return false;
  if (b.smallest_limit_bytes) return *a.smallest_limit_bytes < *b.smallest_limit_bytes;
  return absl::IsResourceExhausted(b.status);
}

// The number of the fastest that fits; -1: none does.
int Fastest(const std::vector<PlanCandidate>& candidates) {
  int best = -1;
  for (size_t i = 0; i < candidates.size(); ++i) {
    const bool is_better =
        candidates[i].fits &&
        (best < 0 || candidates[i].plan.step_time_us < candidates[best].plan.step_time_us);
    if (is_better) best = static_cast<int>(i);
  }
  return best;
}

// Of candidates of which none fits: the one that says best what would do. A refusal that names the
// smallest limit, else the first refusal, else the plan that needs least.
size_t NearestToFit(const std::vector<PlanCandidate>& candidates) {
  std::optional<size_t> refused;
  size_t smallest = 0;
  for (size_t i = 0; i < candidates.size(); ++i) {
    const PlanCandidate& candidate = candidates[i];
    if (candidate.plan.peak_memory_bytes < candidates[smallest].plan.peak_memory_bytes)
      smallest = i;
    if (candidate.status.ok()) continue;
    if (!refused || NeedsLess(candidate, candidates[*refused])) refused = i;
  }
  return refused.value_or(smallest);
}

PlanCandidate CandidateOf(const Mesh& mesh, Method method, SearchResult<Plan> plan,
                          const SearchOptions& search) {
  PlanCandidate candidate{.mesh = mesh,
                          .method = method,
                          .status = plan.status(),
                          .smallest_limit_bytes = plan.status().smallest_limit_bytes};
  if (!plan.ok()) return candidate;
  candidate.plan = *std::move(plan);
  candidate.fits = Fits(candidate.plan, search);
  return candidate;
}

Refusal RefusalOf(const PlanCandidate& candidate) {
  return {.why = candidate.status, .smallest_limit_bytes = candidate.smallest_limit_bytes};
}

// One over the part of the work left that a search under a limit may take, where several choices
// of what to recompute are tried.
constexpr int64_t kSearchesOfTarget = 2;
// The same of searches at a price of memory, without a limit.
constexpr int64_t kSearchesThatFit = 4;
// What all of these may spend before none is begun that layers do not ask for.
constexpr int64_t kWorkToFit = 3'000'000'000;
// See SearchOnBest: gaps at which plans by rules and a search are not worth their time. Of 12
// models on four and eight devices at 0.6 to 0.92 of the memory that they would take, a search made
// plans faster whose gap was 6.6 % and more (bert-base 301 -> 289 ms a step, unet-470m 159 -> 154),
// rules from 4.8 % on (gpt-tiny 1.77 -> 1.75 ms); at 2.4 to 3.6 % all gained 0.1 % once.
constexpr double kNearEnoughForRules = 0.03, kNearEnoughForSearch = 0.05;
constexpr int kMostSearchedAgain = 14'000;          // operations
constexpr int64_t kWorkSearchingAgain = 1'400'000;  // for each
// One over the part of that which plans by a rule may take.
constexpr int64_t kSearchesPerRule = 2;
// See SearchOnMeshes: the gap at which no search is worth its time, and what all may spend. Of
// eight models of 8,000 to 20,000 operations on 8 to 32 devices, it made six faster by 0.03 to 0.9
// %, whose gap was 0.8 to 3.6 %; at 0.35 and 0.37 %, searches of every mesh to the end gained
// nothing.
constexpr double kNearEnoughOnMeshes = 0.005;
constexpr int64_t kWorkOnMeshes = 2'000'000'000;

// What a search under a limit may spend that is one of several: as much again as it takes to make
// its problem, or as small ones need.
int64_t WorkUnderLimit(const Step& prepared) {
  constexpr int64_t kPerOperation = 80'000, kLeast = 100'000'000;
  return kLeast + kPerOperation * prepared.module.entry_computation().num_instructions();
}

absl::Status NothingIsFaster(const PlanRequest& request) {
  return MakeError(absl::StatusCode::kAborted,
                   fmt::format("no plan takes less than {}", FormatTime(*request.faster_than_us)));
}

// Plans meshes by methods, one after the other: all share work and time, and none is searched on
// once nothing there can be better than the best so far.
class Planner {
 public:
  Planner(const PlanRequest& request, PreparedSteps& steps, const RematChoice& remat,
          int num_targets, WorkBudget& budget)
      : request_(request),
        steps_(steps),
        remat_(remat),
        budget_(budget),
        rules_budget_(budget.left() / 2),
        num_targets_(num_targets) {
    if (request.has_plan_to_beat()) best_objective_ = request.faster_than_us;
  }

  PlanCandidate PlanOn(const Mesh& mesh, Method method) {
    ++number_;
    SearchResult<Plan> plan =
        IsOver() && number_ > 1 ? ResourceExhausted("not searched: {} was spent before",
                                                    WorkIsSpent() ? "--work-limit" : "--time-limit")
        : NumAxesThatSplit(mesh) <= kMaxAxesApart
            ? PlanTarget(request_.search, {mesh, method, {}}, Share())
            : PlanWithJoinedAxes(mesh, method);
    return CandidateOf(mesh, method, std::move(plan), request_.search);
  }

  // By method shard; see there.
  absl::StatusOr<std::optional<FittedMeshes>> FitMeshes(const std::vector<Mesh>& meshes,
                                                        StagePlanner& stages) {
    const int64_t spent_before = budget_.spent();
    const auto is_over = [&] { return budget_.spent() - spent_before > kWorkToFit || IsOver(); };
    // With less than one of them takes, plans of large steps can be many times slower.
    int64_t work_of_way = 0;
    const auto plan_way = [&](const WayToFit& way) -> SearchResult<Plan> {
      ASSIGN_OR_RETURN(const Step* prepared, steps_.With(way.remat, request_.micro_batches));
      const Target target{way.mesh, Method::kShard, {}};
      int64_t work = std::max(budget_.left() / kSearchesThatFit, work_of_way);
      if (way.limit_bytes) work = std::min(work, WorkUnderLimit(*prepared));
      if (work > budget_.left()) return ResourceExhausted("not searched: too little work is left");
      WorkBudget budget(std::max<int64_t>(1, work));
      IntraOpOptions options = OptionsFor(request_.search, target, budget);
      options.search.memory_limit_bytes = way.limit_bytes.value_or(kUnreachedLimit);
      options.memory_price = way.memory_price;
      options.cutoff.reset();  // which does not count what memory costs
      options.tries_rules = false;
      LeaveOutUnusual(options);  // as layers do
      SearchResult<Plan> plan = PlanPrepared(*prepared, request_, target, options);
      budget_.Take(budget.spent());
      if (plan.ok()) plan->remat = way.remat;
      if (!way.limit_bytes) work_of_way = std::max(work_of_way, budget.spent());
      return plan;
    };
    ASSIGN_OR_RETURN(
        std::optional<FittedMeshes> fitted,
        FitByLayers(request_, steps_, stages,
                    {.meshes = meshes, .remat = remat_, .plan = plan_way, .is_over = is_over}));
    if (fitted) number_ += static_cast<int>(meshes.size());
    if (!fitted || Fastest(fitted->candidates) < 0) return fitted;
    if (fitted->estimates.empty()) {
      SearchOnBest(*fitted);
    } else {
      SearchOnMeshes(*fitted);
    }
    RETURN_IF_ERROR(CheckNotCancelled(request_));
    return fitted;
  }

 private:
  // Where the best plan is far from its bound, a search by plans of the whole step alone follows on
  // its mesh, if that is quick: layers estimate small steps badly, and know no plans by rules.
  void SearchOnBest(FittedMeshes& fitted) {
    PlanCandidate& best = fitted.candidates[Fastest(fitted.candidates)];
    const int num_instructions = steps_.simplified().module.entry_computation().num_instructions();
    if (num_instructions > kMostSearchedAgain) return;
    // Rules first, which are tried at smaller gaps.
    for (const Method method : {Method::kData, Method::kZero2, Method::kZero3, Method::kShard}) {
      const double near = IsDataParallel(method) ? kNearEnoughForRules : kNearEnoughForSearch;
      if (IsNear(fitted.lower_bound, near, best.plan.objective) || IsOver()) return;
      if (!CheckBatchIsKnown(steps_.simplified(), method, request_.search.limits).ok()) continue;
      SearchResult<Plan> plan = SearchAgain({best.mesh, method, {}}, best.plan.step_time_us);
      if (!IsFaster(plan, best)) continue;
      if (method != Method::kShard) plan->notes.push_back(NoteOnPlanByRules(method));
      TakeInstead(*std::move(plan), fitted, best);
    }
  }

  // Where the limit does not bind: by plans of the whole step, of which layers leave something out,
  // on the meshes on which they may be faster.
  void SearchOnMeshes(FittedMeshes& fitted) {
    const double best_us = fitted.candidates[Fastest(fitted.candidates)].plan.objective;
    best_objective_ = std::min(best_us, best_objective_.value_or(best_us));
    if (IsNear(fitted.lower_bound, kNearEnoughOnMeshes, *best_objective_)) return;
    const int64_t spent_before = budget_.spent();
    for (MeshEstimate& on : fitted.estimates) {
      const int64_t work = kWorkOnMeshes - (budget_.spent() - spent_before);
      if (work <= 0 || IsOver()) break;
      if (IsNear(on.least_us, request_.search.gap, *best_objective_)) continue;
      const double cutoff_us = (1 - request_.search.gap) * *best_objective_;
      PlanCandidate& at = *std::ranges::find(fitted.candidates, on.mesh, &PlanCandidate::mesh);
      SearchResult<Plan> plan = PlanTarget(request_.search, {on.mesh, Method::kShard, {}}, work);
      RaiseBound(plan, cutoff_us, on, fitted.estimates);
      if (IsFaster(plan, at)) {
        fitted.lower_bound = std::min(LeastUs(fitted.estimates), plan->objective);
        at = {.mesh = on.mesh, .fits = true};
        TakeInstead(*std::move(plan), fitted, at);
      } else if (!plan.ok() && !at.status.ok()) {
        at.status = plan.status().why;
      }
    }
    fitted.lower_bound = std::min(LeastUs(fitted.estimates),
                                  fitted.candidates[Fastest(fitted.candidates)].plan.objective);
    for (PlanCandidate& candidate : fitted.candidates) {
      if (candidate.fits) candidate.plan.lower_bound = *fitted.lower_bound;
    }
  }

  // By what a search of the whole step found on a mesh, nothing at or above the cutoff. A plan that
  // takes less than layers say shows how much they count too much, there and elsewhere.
  static void RaiseBound(const SearchResult<Plan>& plan, double cutoff_us, MeshEstimate& on,
                         std::vector<MeshEstimate>& all) {
    if (plan.ok() && plan->objective < on.least_us) {
      const double counted_more = on.least_us / plan->objective;
      for (MeshEstimate& each : all) each.least_us /= counted_more;
      on.least_us = plan->lower_bound;
    } else if (plan.ok() && plan->gap) {
      on.least_us = std::max(on.least_us, plan->lower_bound);
    } else if (!plan.ok() && absl::IsAborted(plan.status().why)) {
      on.least_us = std::max(on.least_us, cutoff_us);
    }
  }

  static double LeastUs(const std::vector<MeshEstimate>& estimates) {
    return std::ranges::min_element(estimates, {}, &MeshEstimate::least_us)->least_us;
  }

  static bool IsNear(std::optional<double> least_us, double near, double objective) {
    return least_us && *least_us >= (1 - near) * objective;
  }

  // Does it fit, and take less than what the candidate has?
  bool IsFaster(const SearchResult<Plan>& plan, const PlanCandidate& than) const {
    return plan.ok() && Fits(*plan, request_.search) &&
           (!than.fits || plan->step_time_us < than.plan.step_time_us);
  }

  SearchResult<Plan> SearchAgain(const Target& target, double best_us) {
    const int64_t work =
        kWorkSearchingAgain * steps_.simplified().module.entry_computation().num_instructions();
    if (!IsDataParallel(target.method)) return PlanTarget(request_.search, target, work);
    // Beside the work that is left, which the search may need.
    WorkBudget budget(
        std::max<int64_t>(1, std::min(work / kSearchesPerRule, rules_budget_.left())));
    SearchResult<Plan> plan = PlanWithRematFor(request_.search, target, budget, best_us);
    rules_budget_.Take(budget.spent());
    return plan;
  }

  // As an answer of method shard.
  static void TakeInstead(Plan plan, FittedMeshes& fitted, PlanCandidate& best) {
    if (fitted.lower_bound && plan.objective < *fitted.lower_bound) fitted.lower_bound.reset();
    if (fitted.lower_bound) {
      plan.lower_bound = *fitted.lower_bound;
      plan.gap = plan.sharding_gap;  // there is one, see SetGapsOfWholeSearch
      std::erase_if(plan.notes, [](const std::string& note) {
        return note.find(kBoundOfOneChoice) != std::string::npos;
      });
      plan.notes.emplace_back(kLeftOutByLayers);
    } else if (plan.objective > 0) {
      plan.lower_bound = std::min(plan.lower_bound, best.plan.lower_bound);
      plan.sharding_gap = (plan.objective - plan.lower_bound) / plan.objective;
    }
    plan.method = MethodName(Method::kShard);
    best.plan = std::move(plan);
  }

  double Seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }
  // What is left then is too little for a mesh of a large step, and small ones never come so far.
  bool WorkIsSpent() const { return budget_.left() <= request_.search.work_limit / 32; }
  bool IsOver() const {
    return WorkIsSpent() || Seconds() >= request_.search.time_limit_seconds ||
           !CheckNotCancelled(request_).ok();
  }
  // Of the work left: the likeliest meshes come first, and most need less.
  int64_t Share() const { return number_ < num_targets_ ? budget_.left() / 4 * 3 : budget_.left(); }

  IntraOpOptions OptionsFor(const SearchOptions& search, const Target& target,
                            WorkBudget& budget) const {
    IntraOpOptions options{.method = target.method, .search = search, .budget = &budget};
    options.search.time_limit_seconds =
        std::max(0.0, request_.search.time_limit_seconds - Seconds());
    const bool has_penalties = IsDataParallel(target.method) || search.limits.prefer_reduce_scatter;
    if (best_objective_ && !has_penalties) {
      options.cutoff = *best_objective_ * (1 - search.gap);
    }
    options.cancelled = request_.cancelled;
    if (request_.on_progress) {
      const std::string what = fmt::format(
          "{} on {}{}", MethodName(target.method), target.searched_mesh().ToString(),
          num_targets_ > 1 && number_ > 0 ? fmt::format(" ({} of {})", number_, num_targets_) : "");
      request_.on_progress(what, Seconds(), 1);
      options.on_progress = [this, what](double, double gap) {
        request_.on_progress(what, Seconds(), gap);
      };
    }
    return options;
  }

  SearchResult<Plan> PlanTarget(const SearchOptions& search, const Target& target, int64_t work) {
    WorkBudget budget(std::max<int64_t>(1, std::min(work, budget_.left())));
    SearchResult<Plan> plan = PlanWithRematFor(search, target, budget);
    budget_.Take(budget.spent());
    const bool is_best = plan.ok() && Fits(*plan, search) &&
                         (!best_objective_ || plan->objective < *best_objective_);
    if (is_best) best_objective_ = plan->objective;
    return plan;
  }

  // By rules nothing is computed again where a step without takes `most_us`.
  SearchResult<Plan> PlanWithRematFor(const SearchOptions& search, const Target& target,
                                      WorkBudget& budget,
                                      std::optional<double> most_us = std::nullopt) {
    std::map<RematChoice, SearchResult<Plan>> without_limit;
    const auto plan_once = [&](const RematChoice& remat, std::optional<int64_t> limit,
                               WorkBudget& of_search) -> SearchResult<Plan> {
      ASSIGN_OR_RETURN(const Step* prepared, steps_.With(remat, request_.micro_batches));
      IntraOpOptions options = OptionsFor(search, target, of_search);
      options.search.memory_limit_bytes = limit;
      ASSIGN_OR_RETURN(Plan plan, PlanPrepared(*prepared, request_, target, options));
      plan.remat = remat;
      return plan;
    };
    bool is_slower = false;
    // A plan that fits by itself needs no limit, and is found sooner without; but of a plan by
    // rules the limit says how micro-batches are summed.
    const PlanWithRemat plan_with = [&](const RematChoice& remat,
                                        std::optional<int64_t> limit) -> SearchResult<Plan> {
      if (IsDataParallel(target.method)) {
        SearchResult<Plan> plan = plan_once(remat, limit, budget);
        // In micro-batches the limit says how they are summed, which may be slower.
        const bool is_free = remat.empty() && request_.micro_batches.num_micro_batches == 1;
        is_slower =
            is_slower || (is_free && plan.ok() && most_us && plan->step_time_us >= *most_us);
        return plan;
      }
      auto found = without_limit.find(remat);
      if (found == without_limit.end()) {
        found = without_limit.emplace(remat, plan_once(remat, std::nullopt, budget)).first;
      }
      const SearchResult<Plan>& free = found->second;
      if (!limit || !free.ok() || free->peak_memory_bytes <= *limit) return free;
      if (request_.remat || remat_.empty()) return plan_once(remat, limit, budget);
      WorkBudget of_search(std::max<int64_t>(1, budget.left() / kSearchesOfTarget));
      SearchResult<Plan> plan = plan_once(remat, limit, of_search);
      budget.Take(of_search.spent());
      return plan;
    };
    if (request_.remat) return plan_with(remat_, search.memory_limit_bytes);
    return SearchRemat(plan_with,
                       {.candidates = remat_,
                        .memory_limit_bytes = search.memory_limit_bytes,
                        .gap = search.gap,
                        .is_over = [&] { return is_slower || budget.left() == 0 || IsOver(); }});
  }

  SearchResult<Plan> PlanWithJoinedAxes(const Mesh& mesh, Method method) {
    RETURN_IF_ERROR(CheckCompatible({.method = method, .search = request_.search}, mesh));
    if (request_.cost_model.kind == CostModelKind::kAlpa) {
      return InvalidArgument(
          "the mesh {} has {} axes; cost model alpa prices at most {}, roofline up to {}",
          mesh.ToString(), NumAxesThatSplit(mesh), kMaxAxesApart, kMaxMeshAxes);
    }
    const SearchOptions& search = request_.search;
    const bool names_axes = !search.pins.empty() || !search.limits.batch_axis.empty();
    const bool equal_links = request_.cluster.has_equal_links() && !names_axes;
    // Data parallelism treats the mesh as one axis anyway.
    const int max_axes = IsDataParallel(method) && !names_axes ? 1 : kMaxAxesApart;
    std::vector<PlanCandidate> candidates;
    absl::Status apart;
    const std::vector<JoinedAxes> ways = JoinNeighbours(mesh, max_axes, equal_links);
    auto left = static_cast<int64_t>(ways.size());
    const int64_t before = budget_.spent(), share = Share();
    for (const JoinedAxes& joined : ways) {
      const int64_t share_left = share - (budget_.spent() - before);
      const int64_t work = --left > 0 ? share_left / 2 : share_left;
      if (!candidates.empty() && (work <= 0 || IsOver())) break;
      absl::StatusOr<SearchOptions> options = OnJoinedAxes(search, mesh, joined);
      if (options.status().code() == absl::StatusCode::kFailedPrecondition) {
        apart.Update(options.status());
        continue;
      }
      RETURN_IF_ERROR(options.status());
      candidates.push_back(CandidateOf(joined.mesh, method,
                                       PlanTarget(*options, {mesh, method, joined}, work), search));
    }
    if (candidates.empty()) {
      return WithContext(apart,
                         fmt::format("neighbours of the {} axes of {} are joined to {}",
                                     NumAxesThatSplit(mesh), mesh.ToString(), kMaxAxesApart));
    }
    return BestOfJoined(mesh, std::move(candidates));
  }

  // The best, with the bound that holds for all.
  static SearchResult<Plan> BestOfJoined(const Mesh& mesh, std::vector<PlanCandidate> candidates) {
    const int fastest = Fastest(candidates);
    PlanCandidate& best = candidates[fastest < 0 ? NearestToFit(candidates) : fastest];
    if (!best.status.ok()) return RefusalOf(best);
    Plan plan = std::move(best.plan);
    for (const PlanCandidate& candidate : candidates) {
      if (candidate.status.ok()) {
        plan.lower_bound = std::min(plan.lower_bound, candidate.plan.lower_bound);
        plan.search_seconds += candidate.plan.search_seconds;
      }
    }
    plan.sharding_gap =
        plan.objective > 0 ? (plan.objective - plan.lower_bound) / plan.objective : 0;
    if (plan.gap) plan.gap = plan.sharding_gap;
    if (candidates.size() > 1) {
      plan.notes.push_back(fmt::format(
          "neighbours of the {} axes of the mesh were joined to at most {}, in {} ways, of which "
          "{} is the best; what splits them otherwise was not tried",
          NumAxesThatSplit(mesh), kMaxAxesApart, candidates.size(), best.mesh.ToString()));
    }
    return plan;
  }

  const PlanRequest& request_;
  PreparedSteps& steps_;
  const RematChoice& remat_;
  WorkBudget& budget_;
  WorkBudget rules_budget_;
  const Clock::time_point start_ = Clock::now();
  const int num_targets_;

  int number_ = 0;                        // of the target that is searched
  std::optional<double> best_objective_;  // of plans that fit, or are at hand
};

// The refusal of a candidate, with the pins and limits to blame: whatever plan there is without one
// of them will do, so that it is searched for quickly.
Refusal WithCulprits(const Refusal& refusal, PreparedSteps& steps, const RematChoice& candidates,
                     const PlanRequest& request, const PlanCandidate& candidate) {
  constexpr double kAnyGap = 0.9;
  constexpr int64_t kMaxWork = 5'000'000'000;
  const TrySearch search = [&](const SearchOptions& options) -> absl::Status {
    PlanRequest other = request;
    other.search = options;
    other.search.gap = std::max(options.gap, kAnyGap);
    other.search.work_limit = std::min(options.work_limit, kMaxWork);
    other.on_progress = nullptr;
    WorkBudget budget(other.search.work_limit);
    const PlanCandidate found = Planner(other, steps, candidates, /*num_targets=*/1, budget)
                                    .PlanOn(candidate.mesh, candidate.method);
    RETURN_IF_ERROR(found.status);
    return found.fits ? absl::OkStatus() : ResourceExhausted("the plan does not fit");
  };
  return NameCulprits(refusal, request.search, search);
}

// Meshes and clusters of a size that is planned for.
absl::Status CheckSizes(const std::vector<Mesh>& meshes, const Cluster& cluster) {
  for (const Mesh& mesh : meshes) {
    if (mesh.num_devices() > kMaxPlannedDevices) {
      return InvalidArgument("mesh {} has {} devices; at most {} are planned for", mesh.ToString(),
                             mesh.num_devices(), kMaxPlannedDevices);
    }
    if (mesh.num_devices() > cluster.num_devices()) {
      return InvalidArgument("mesh {} has {} devices; the cluster {} has {}", mesh.ToString(),
                             mesh.num_devices(), cluster.name, cluster.num_devices());
    }
  }
  if (!meshes.empty() || cluster.num_devices() <= kMaxPlannedDevices) return absl::OkStatus();
  return InvalidArgument(
      "the cluster {} has {} devices; at most {} are planned for: give a mesh of fewer",
      cluster.name, cluster.num_devices(), kMaxPlannedDevices);
}

}  // namespace

std::vector<Mesh> MeshesOf(const PlanRequest& request) {
  return request.meshes.empty() ? MeshShapes(request.cluster) : request.meshes;
}

bool MayFitByLayers(const Step& simplified, const std::vector<Mesh>& meshes,
                    const PlanRequest& request) {
  const bool is_asked = request.search.memory_limit_bytes &&
                        std::ranges::find(request.methods, Method::kShard) != request.methods.end();
  const bool has_times = request.cost_model.kind != CostModelKind::kAlpa;
  return is_asked && has_times && simplified.num_layers.value_or(0) > 0 &&
         CheckBatchIsKnown(simplified, Method::kShard, request.search.limits).ok() &&
         std::ranges::all_of(meshes, [&](const Mesh& mesh) {
           return NumAxesThatSplit(mesh) <= kMaxAxesApart &&
                  mesh.num_devices() == meshes.front().num_devices();
         });
}

absl::StatusOr<std::unique_ptr<CostModel>> MakeCostModel(const CostModelChoice& choice,
                                                         const Cluster& cluster, const Mesh& mesh) {
  switch (choice.kind) {
    case CostModelKind::kRoofline:
      return MakeRooflineCostModel(cluster, mesh);
    case CostModelKind::kMeasured:
      return MakeRooflineCostModel(cluster, mesh,
                                   choice.calibration ? &*choice.calibration : nullptr);
    case CostModelKind::kAlpa:
      return MakeAlpaCostModel(mesh, choice.alpha, choice.beta, choice.allow_replicated_dots);
  }
  MINKA_CHECK(false);
}

absl::Status CheckNotCancelled(const PlanRequest& request) {
  if (request.cancelled == nullptr || !request.cancelled->load()) return absl::OkStatus();
  return absl::CancelledError("planning was stopped");
}

int PlanRequest::num_devices() const {
  int sum = 0;
  for (int kind = 0; kind < num_kinds(); ++kind) sum += HostsOf(kind).num_devices();
  return sum;
}

std::optional<int64_t> PlanRequest::MemoryLimitOn(int kind) const {
  if (num_kinds() == 1) return search.memory_limit_bytes;
  const int64_t has = HostsOf(kind).device.memory_bytes;
  if (has == 0) return search.memory_limit_bytes;
  return std::min(search.memory_limit_bytes.value_or(has), has);
}

bool PlanRequest::has_memory_limit() const {
  for (int kind = 0; kind < num_kinds(); ++kind) {
    if (MemoryLimitOn(kind)) return true;
  }
  return false;
}

bool PlanRequest::has_plan_to_beat() const {
  return faster_than_us && std::isfinite(*faster_than_us);
}

void PlanRequest::LiftMemoryLimit() {
  search.memory_limit_bytes.reset();
  cluster.device.memory_bytes = 0;
  for (Cluster& hosts : other_hosts) hosts.device.memory_bytes = 0;
}

SearchResult<PlanResult> PlanStep(const Step& step, const PlanRequest& request) {
  if (request.num_kinds() > 1) {
    return InvalidArgument("hosts of {} kinds make no mesh: a pipeline has stages on each",
                           request.num_kinds());
  }
  RETURN_IF_ERROR(CheckSizes(request.meshes, request.cluster));
  ASSIGN_OR_RETURN(Step simplified, Simplify(step));
  PreparedSteps steps(std::move(simplified));
  StagePlanner stages(OfOneStage(request, {}));
  if (request.micro_batches.num_micro_batches == kChooseMicroBatches)
    return PlanInMicroBatches(request, steps, stages);
  WorkBudget budget(request.search.work_limit);
  return PlanInGivenMicroBatches(request, steps, stages, budget);
}

SearchResult<PlanResult> PlanInGivenMicroBatches(const PlanRequest& request, PreparedSteps& steps,
                                                 StagePlanner& stages, WorkBudget& budget) {
  const std::vector<Mesh> meshes = MeshesOf(request);
  RematChoice remat = steps.RematCandidates();
  if (request.remat) {
    ASSIGN_OR_RETURN(remat, EffectiveRemat(steps.simplified(), *request.remat));
  }
  PlanResult out;
  Planner planner(request, steps, remat, static_cast<int>(meshes.size() * request.methods.size()),
                  budget);
  std::optional<FittedMeshes> fitted;
  if (MayFitByLayers(steps.simplified(), meshes, request)) {
    ASSIGN_OR_RETURN(fitted, planner.FitMeshes(meshes, stages));
  }
  for (size_t number = 0; number < meshes.size(); ++number) {
    const Mesh& mesh = meshes[number];
    for (Method method : request.methods) {
      if (fitted && method == Method::kShard) {
        out.candidates.push_back(std::move(fitted->candidates[number]));
        continue;
      }
      const absl::Status batch =
          CheckBatchIsKnown(steps.simplified(), method, request.search.limits);
      out.candidates.push_back(batch.ok() ? planner.PlanOn(mesh, method)
                                          : CandidateOf(mesh, method, batch, request.search));
      RETURN_IF_ERROR(CheckNotCancelled(request));
    }
  }
  out.best = Fastest(out.candidates);
  SetGapsOfWholeSearch(out.candidates, request.search.gap, fitted);
  const bool is_slower = out.best >= 0 && request.has_plan_to_beat() &&
                         out.plan().stage.step_time_us >= *request.faster_than_us;
  if (is_slower) return NothingIsFaster(request);
  if (out.best >= 0) {
    ASSIGN_OR_RETURN(const Step* prepared,
                     steps.With(out.candidates[out.best].plan.remat, request.micro_batches));
    out.prepared = *prepared;
    return out;
  }
  const PlanCandidate& nearest = out.candidates[NearestToFit(out.candidates)];
  const Refusal refusal = nearest.status.ok() ? NoPlanFits(*request.search.memory_limit_bytes,
                                                           "the smallest of those tried needs",
                                                           nearest.plan.peak_memory_bytes)
                                              : RefusalOf(nearest);
  if (request.has_plan_to_beat() && absl::IsAborted(refusal.why) && !fitted)
    return NothingIsFaster(request);
  const bool is_left_out = request.has_plan_to_beat() || absl::IsAborted(refusal.why);
  if (!request.names_culprits || is_left_out) return refusal;
  return WithCulprits(refusal, steps, remat, request, nearest);
}

}  // namespace minka
