#include "minka/driver/plan_step.h"

#include <algorithm>
#include <memory>

#include "minka/analysis/layers.h"
#include "minka/analysis/phases.h"
#include "minka/base/check.h"
#include "minka/base/status.h"
#include "minka/driver/prepare.h"
#include "minka/driver/remat_search.h"
#include "minka/lowering/rematerialize.h"
#include "minka/planner/intra_op/constraints.h"
#include "minka/planner/intra_op/describe.h"
#include "minka/planner/intra_op/restrictions.h"

namespace minka {
namespace {

absl::StatusOr<std::unique_ptr<CostModel>> MakeCostModel(const PlanRequest& request,
                                                         const Mesh& mesh) {
  const CostModelChoice& choice = request.cost_model;
  switch (choice.kind) {
    case CostModelKind::kRoofline:
      return MakeRooflineCostModel(request.cluster, mesh);
    case CostModelKind::kMeasured:
      return MakeRooflineCostModel(request.cluster, mesh,
                                   choice.calibration ? &*choice.calibration : nullptr);
    case CostModelKind::kAlpa:
      return MakeAlpaCostModel(mesh, choice.alpha, choice.beta, choice.allow_replicated_dots);
  }
  MINKA_CHECK(false);
}

// Factorisations of n into factors of at least 2, in order.
void Factorise(int64_t n, std::vector<int64_t>& factors, int max_factors,
               std::vector<std::vector<int64_t>>& out) {
  if (n == 1) {
    if (!factors.empty()) out.push_back(factors);
    return;
  }
  if (static_cast<int>(factors.size()) == max_factors) return;
  for (int64_t factor = 2; factor <= n; ++factor) {
    if (n % factor != 0) continue;
    factors.push_back(factor);
    Factorise(n / factor, factors, max_factors, out);
    factors.pop_back();
  }
}

// A step prepared in several ways, each made once.
class PreparedSteps {
 public:
  static absl::StatusOr<PreparedSteps> Create(const Step& step,
                                              const MicroBatchOptions& micro_batches) {
    ASSIGN_OR_RETURN(Step simplified, Simplify(step));
    return PreparedSteps(std::move(simplified), micro_batches);
  }

  const Step& simplified() const { return simplified_; }

  // Valid as long as this.
  absl::StatusOr<const Step*> With(const RematChoice& remat) {
    const auto found = prepared_.find(remat);
    if (found != prepared_.end()) return &found->second;
    ASSIGN_OR_RETURN(Step prepared, PrepareSimplified(simplified_, {micro_batches_, remat}));
    return &prepared_.emplace(remat, std::move(prepared)).first->second;
  }

 private:
  PreparedSteps(Step simplified, const MicroBatchOptions& micro_batches)
      : simplified_(std::move(simplified)), micro_batches_(micro_batches) {}

  Step simplified_;
  MicroBatchOptions micro_batches_;
  std::map<RematChoice, Step> prepared_;
};

// What the search may rematerialise; empty: the step marks no layers, or keeps nothing of them.
RematChoice RematCandidates(const Step& simplified) {
  if (FindLayers(simplified, ClassifyPhases(simplified)).count == 0) return {};
  absl::StatusOr<RematChoice> all = EffectiveRemat(simplified, {RematPolicy::kAll});
  return all.ok() ? *std::move(all) : RematChoice();
}

absl::StatusOr<Plan> PlanPrepared(const Step& step, const PlanRequest& request, const Mesh& mesh,
                                  Method method) {
  ASSIGN_OR_RETURN(const std::unique_ptr<CostModel> cost, MakeCostModel(request, mesh));
  IntraOpOptions options{.method = method, .search = request.search};
  if (request.on_progress) {
    const std::string what = fmt::format("{} on {}", MethodName(method), mesh.ToString());
    options.on_progress = [&request, what](double seconds, double gap) {
      request.on_progress(what, seconds, gap);
    };
  }
  ASSIGN_OR_RETURN(IntraOpResult result, PlanMesh(step, mesh, *cost, options));
  Plan plan;
  plan.options = request.options;
  plan.method = std::string(MethodName(method));
  plan.cost_model = cost->name();
  plan.step_time_us = result.stage.step_time_us;
  plan.peak_memory_bytes = result.stage.peak_memory_bytes;
  plan.objective = result.objective;
  plan.lower_bound = result.lower_bound;
  plan.gap = plan.sharding_gap = result.gap;
  plan.memory_price = result.memory_price;
  plan.stop_reason = result.stop_reason;
  plan.search_seconds = result.seconds;
  plan.notes = result.notes;
  plan.stages.push_back(std::move(result.stage));
  Describe(step, plan);
  plan.per_micro_batch = plan.num_micro_batches > 1 && request.micro_batches.per_micro_batch;
  return plan;
}

absl::StatusOr<Plan> PlanCandidateOn(PreparedSteps& steps, const RematChoice& candidates,
                                     const PlanRequest& request, const Mesh& mesh, Method method) {
  const PlanWithRemat plan_with = [&](const RematChoice& remat,
                                      std::optional<int64_t> limit) -> absl::StatusOr<Plan> {
    ASSIGN_OR_RETURN(const Step* prepared, steps.With(remat));
    PlanRequest limited = request;
    limited.search.memory_limit_bytes = limit;
    ASSIGN_OR_RETURN(Plan plan, PlanPrepared(*prepared, limited, mesh, method));
    plan.remat = remat;
    return plan;
  };
  const SearchOptions& search = request.search;
  if (request.remat) return plan_with(candidates, search.memory_limit_bytes);
  return SearchRemat(plan_with, {.candidates = candidates,
                                 .memory_limit_bytes = search.memory_limit_bytes,
                                 .gap = search.gap,
                                 .time_limit_seconds = search.time_limit_seconds});
}

bool Fits(const Plan& plan, const SearchOptions& options) {
  return !options.memory_limit_bytes || plan.peak_memory_bytes <= *options.memory_limit_bytes;
}

// The refusal of a candidate, with the pins and limits to blame: whatever plan there is without one
// of them will do, so that it is searched for quickly.
absl::Status WithCulprits(const absl::Status& refusal, PreparedSteps& steps,
                          const RematChoice& candidates, const PlanRequest& request,
                          const PlanCandidate& candidate) {
  constexpr double kAnyGap = 0.9, kMaxSeconds = 10;
  const TrySearch search = [&](const SearchOptions& options) -> absl::Status {
    PlanRequest other = request;
    other.search = options;
    other.search.gap = std::max(options.gap, kAnyGap);
    other.search.time_limit_seconds = std::min(options.time_limit_seconds, kMaxSeconds);
    other.on_progress = nullptr;
    ASSIGN_OR_RETURN(const Plan plan,
                     PlanCandidateOn(steps, candidates, other, candidate.mesh, candidate.method));
    return Fits(plan, options) ? absl::OkStatus() : ResourceExhausted("the plan does not fit");
  };
  return NameCulprits(refusal, request.search, search);
}

}  // namespace

std::vector<Mesh> MeshShapes(int64_t num_devices, bool equal_links) {
  static constexpr const char* kNames[] = {"x", "y", "z"};
  if (num_devices == 1) return {Mesh({{"x", 1}})};
  std::vector<std::vector<int64_t>> shapes;
  std::vector<int64_t> factors;
  Factorise(num_devices, factors, 3, shapes);
  if (equal_links) {
    std::erase_if(shapes,
                  [](const std::vector<int64_t>& shape) { return !std::ranges::is_sorted(shape); });
  }
  std::ranges::stable_sort(shapes, {},
                           [](const std::vector<int64_t>& shape) { return shape.size(); });
  std::vector<Mesh> meshes;
  for (const std::vector<int64_t>& shape : shapes) {
    std::vector<MeshAxis> axes;
    for (size_t i = 0; i < shape.size(); ++i) axes.push_back({kNames[i], shape[i]});
    meshes.emplace_back(std::move(axes));
  }
  return meshes;
}

namespace {

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

// Does the first say that a smaller limit than the second's would do?
bool NeedsLess(const absl::Status& a, const absl::Status& b) {
  const std::optional<int64_t> smallest = SmallestKnownLimit(a);
  const std::optional<int64_t> other = SmallestKnownLimit(b);
  return smallest && other && *smallest < *other;
}

}  // namespace

absl::StatusOr<PlanResult> PlanStep(const Step& step, const PlanRequest& request) {
  const std::vector<Mesh> meshes =
      !request.meshes.empty()
          ? request.meshes
          : MeshShapes(request.cluster.num_devices(), request.cluster.num_hosts == 1);
  ASSIGN_OR_RETURN(PreparedSteps steps, PreparedSteps::Create(step, request.micro_batches));
  RematChoice remat = RematCandidates(steps.simplified());
  if (request.remat) {
    ASSIGN_OR_RETURN(remat, EffectiveRemat(steps.simplified(), *request.remat));
  }
  PlanResult out;
  absl::Status error;
  size_t refused = 0;  // whose error it is
  for (const Mesh& mesh : meshes) {
    if (mesh.num_devices() > request.cluster.num_devices()) {
      return InvalidArgument("mesh {} has {} devices; the cluster {} has {}", mesh.ToString(),
                             mesh.num_devices(), request.cluster.name,
                             request.cluster.num_devices());
    }
    for (Method method : request.methods) {
      PlanCandidate candidate{.mesh = mesh, .method = method};
      const absl::Status batch = CheckBatchIsKnown(step, method, request.search.limits);
      absl::StatusOr<Plan> plan =
          batch.ok() ? PlanCandidateOn(steps, remat, request, mesh, method) : batch;
      candidate.status = plan.status();
      if (plan.ok()) {
        candidate.plan = *std::move(plan);
        candidate.fits = Fits(candidate.plan, request.search);
      } else if (error.ok() || NeedsLess(candidate.status, error)) {
        error = candidate.status;
        refused = out.candidates.size();
      }
      out.candidates.push_back(std::move(candidate));
      const PlanCandidate& added = out.candidates.back();
      if (added.fits &&
          (out.best < 0 || added.plan.step_time_us < out.candidates[out.best].plan.step_time_us)) {
        out.best = static_cast<int>(out.candidates.size()) - 1;
      }
    }
  }
  if (out.best >= 0) {
    ASSIGN_OR_RETURN(const Step* prepared, steps.With(out.candidates[out.best].plan.remat));
    out.prepared = *prepared;
    return out;
  }
  if (error.ok()) {
    const auto smallest = std::ranges::min_element(
        out.candidates, {},
        [](const PlanCandidate& candidate) { return candidate.plan.peak_memory_bytes; });
    refused = smallest - out.candidates.begin();
    error = NoPlanFits(*request.search.memory_limit_bytes, "the smallest of those tried needs",
                       smallest->plan.peak_memory_bytes);
  }
  if (!request.names_culprits) return error;
  return WithCulprits(error, steps, remat, request, out.candidates[refused]);
}

}  // namespace minka
