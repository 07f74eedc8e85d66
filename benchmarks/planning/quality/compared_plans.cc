#include "benchmarks/planning/quality/compared_plans.h"

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "minka/base/status.h"
#include "minka/models/registry.h"

namespace minka {
namespace {

constexpr int kNumThreads = 2;

}  // namespace

absl::StatusOr<ComparedPlans> ComparedPlans::Create(const PublishedSolution& solution,
                                                    std::optional<LookUp> look_up) {
  ASSIGN_OR_RETURN(Cluster cluster, Cluster::Preset(solution.cluster));
  ASSIGN_OR_RETURN(
      const TracedStep traced,
      TraceModel(solution.model,
                 {.global_batch = solution.global_batch,
                  .dtype = solution.is_f16 ? std::optional(ElementType::kF16) : std::nullopt,
                  .look_up = look_up}));
  ASSIGN_OR_RETURN(SplitStep split, SplitStacks(traced.step));
  return ComparedPlans(solution, std::move(cluster), std::move(split));
}

ComparedPlans::ComparedPlans(const PublishedSolution& solution, Cluster cluster, SplitStep split)
    : solution_(solution), cluster_(std::move(cluster)), split_(std::move(split)) {}

absl::StatusOr<Figures> ComparedPlans::Minka() const {
  absl::StatusOr<Figures> best = absl::NotFoundError("no plan");
  const auto take = [&](absl::StatusOr<Figures> found) {
    if (!best.ok() || (found.ok() && found->step_time_us < best->step_time_us))
      best = std::move(found);
  };
  if (num_devices() > 1) take(Plan(Request(PipelineOptions())));
  if (num_devices() <= kMostDevicesOfOneMesh) take(OneMesh());
  return best;
}

PlanRequest ComparedPlans::PublishedRequest() const {
  PipelineOptions options{.layers = AutoLayers{solution_.num_layers()}, .schedule = "1f1b"};
  int stage = 0;
  for (const PublishedStage& of : solution_.stages) {
    options.stage_of_layer.insert(options.stage_of_layer.end(), of.num_layers, stage++);
    options.meshes.push_back(Mesh({{"x", of.rows}, {"y", of.columns}}));
    options.stage_search.push_back(
        {.limits = SearchLimits{.batch_axis = of.splits_batch ? "x" : "",
                                .prefer_reduce_scatter = solution_.prefers_reduce_scatter}});
  }
  PlanRequest request = Request(std::move(options));
  request.remat = RematChoice{RematPolicy::kAll};
  return request;
}

absl::StatusOr<Figures> ComparedPlans::Published() const {
  PlanRequest request = PublishedRequest();
  absl::StatusOr<Figures> planned = Plan(request);
  if (planned.status().code() != absl::StatusCode::kResourceExhausted) return planned;
  request.search.memory_limit_bytes.reset();
  return Plan(request);
}

absl::StatusOr<Figures> ComparedPlans::PublishedAsItRan() const {
  PlanRequest request = PublishedRequest();
  for (StageSearchOptions& of : request.pipeline->stage_search) of.limits->no_sequence_split = true;
  request.micro_batches.narrow_sums = true;
  request.search.memory_limit_bytes.reset();
  return Plan(request);
}

absl::StatusOr<Figures> ComparedPlans::Uniform() const {
  std::optional<Figures> best = BestOfGrid(/*limited=*/false);
  if (!best) best = BestOfGrid(/*limited=*/true);
  if (best) return *best;
  return ResourceExhausted("no uniform degrees fit");
}

PlanRequest ComparedPlans::Request(std::optional<PipelineOptions> pipeline) const {
  return {
      .cluster = cluster_,
      .micro_batches = {.num_micro_batches = solution_.num_micro_batches,
                        .per_micro_batch = solution_.per_micro_batch},
      .pipeline = std::move(pipeline),
      .search = {.memory_limit_bytes = cluster_.device.memory_bytes, .num_threads = kNumThreads}};
}

absl::StatusOr<Figures> ComparedPlans::Plan(const PlanRequest& request) const {
  ASSIGN_OR_RETURN(const PlannedPipeline planned, PlanPipeline(split_, request));
  const PipelinePlan& plan = planned.plan;
  return Figures{
      .step_time_us = plan.step_time_us,
      .memory_bytes = plan.peak_memory_bytes,
      .fits = plan.peak_memory_bytes <= cluster_.device.memory_bytes,
      .how = fmt::format("{} on {}", planned.schedule.name, fmt::join(planned.num_devices(), "+"))};
}

absl::StatusOr<Figures> ComparedPlans::OneMesh() const {
  const SearchResult<PlanResult> result = PlanStep(split_.step, Request(std::nullopt));
  if (!result.ok()) return result.status();
  const PlanCandidate& best = result->candidates[result->best];
  return Figures{.step_time_us = best.plan.step_time_us,
                 .memory_bytes = best.plan.peak_memory_bytes,
                 .fits = true,
                 .how = fmt::format("one mesh {}", best.mesh.ToString())};
}

std::optional<Figures> ComparedPlans::BestOfGrid(bool limited) const {
  std::optional<Figures> best;
  for (int stages = 1; stages <= std::min(num_devices(), kMostStagesOfGrid); stages *= 2) {
    const int of_stage = num_devices() / stages;
    for (int columns = 1; columns <= std::min(of_stage, cluster_.devices_per_host); columns *= 2)
      TakeBetter(stages, of_stage / columns, columns, limited, best);
  }
  return best;
}

void ComparedPlans::TakeBetter(int stages, int rows, int columns, bool limited,
                               std::optional<Figures>& best) const {
  const int64_t micro_batch = solution_.global_batch / solution_.num_micro_batches;
  if (micro_batch % rows != 0) return;
  for (const RematPolicy policy : {RematPolicy::kNone, RematPolicy::kAll}) {
    if (limited && policy == RematPolicy::kNone) continue;  // needs more
    PlanRequest request = Request(PipelineOptions{
        .meshes = std::vector<Mesh>(stages, Mesh({{"data", rows}, {"operator", columns}})),
        .schedule = "1f1b"});
    if (!limited) request.search.memory_limit_bytes.reset();
    request.search.limits = {.batch_axis = "data", .prefer_reduce_scatter = true};
    request.remat = RematChoice{policy};
    absl::StatusOr<Figures> planned = Plan(request);
    if (!planned.ok() || !planned->fits) continue;
    if (best && best->step_time_us <= planned->step_time_us) continue;
    planned->how = fmt::format("dp {} op {} pp {}{}", rows, columns, stages,
                               policy == RematPolicy::kAll ? " recomputed" : "");
    if (limited) planned->how += ", state split";
    best = *std::move(planned);
  }
}

}  // namespace minka
