// PlanPipeline: which layers are a stage, and how each runs on its mesh.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <numeric>
#include <ranges>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "fmt/ranges.h"
#include "minka/base/status.h"
#include "minka/driver/layers_by_count.h"
#include "minka/driver/mesh_shapes.h"
#include "minka/driver/pipeline.h"
#include "minka/driver/pipeline_planner.h"
#include "minka/driver/plan_stage.h"
#include "minka/driver/prepare.h"
#include "minka/driver/request_in_rows.h"
#include "minka/driver/schedule_search.h"
#include "minka/driver/submesh_search.h"
#include "minka/driver/tried_micro_batches.h"
#include "minka/planner/inter_op/micro_batch_search.h"
#include "minka/report/format.h"

namespace minka {
namespace {

// What is said of kinds of hosts: one share of the work for each, and a kind for each mesh.
absl::Status CheckKindsAsked(const PlanRequest& request) {
  const PipelineOptions& options = *request.pipeline;
  const auto num_kinds = static_cast<size_t>(request.num_kinds());
  const auto is_share = [](double share) { return std::isfinite(share) && share > 0; };
  if (!options.shares.empty() &&
      (options.shares.size() != num_kinds || !std::ranges::all_of(options.shares, is_share))) {
    return InvalidArgument(
        "the work cannot be shared as {} among hosts of {} kind{}: each kind has a share above 0, "
        "in the order of the cluster",
        fmt::join(options.shares, ","), num_kinds, num_kinds == 1 ? "" : "s");
  }
  const size_t num_meshes = std::max(options.meshes.size(), options.submeshes.size());
  const auto is_kind = [&](int kind) { return kind >= 0 && kind < request.num_kinds(); };
  if (options.kinds.empty() ||
      (options.kinds.size() == num_meshes && std::ranges::all_of(options.kinds, is_kind)))
    return absl::OkStatus();
  return InvalidArgument("{} meshes cannot lie on hosts of kinds {}: there are {}", num_meshes,
                         fmt::join(options.kinds, ","), num_kinds);
}

// By mesh, of which kind of hosts it is: as the options say, or of the first kind that has as many
// devices left, from that of the mesh before on.
absl::StatusOr<std::vector<int>> KindsOf(const std::vector<int64_t>& sizes,
                                         const PlanRequest& request) {
  std::vector<int64_t> left;  // devices, by kind
  for (int kind = 0; kind < request.num_kinds(); ++kind)
    left.push_back(request.HostsOf(kind).num_devices());
  std::vector<int> kinds = request.pipeline->kinds;
  if (kinds.empty()) {
    std::vector<int64_t> free = left;
    int kind = 0;
    for (const int64_t size : sizes) {
      while (kind + 1 < request.num_kinds() && free[kind] < size) ++kind;
      free[kind] -= size;
      kinds.push_back(kind);
    }
  }
  for (size_t mesh = 0; mesh < sizes.size(); ++mesh) {
    int64_t& of_kind = left[kinds[mesh]];
    of_kind -= sizes[mesh];
    if (of_kind >= 0) continue;
    const Cluster& hosts = request.HostsOf(kinds[mesh]);
    if (request.num_kinds() == 1) {
      return InvalidArgument("the stages' meshes have {} devices, cluster {} has {}",
                             std::accumulate(sizes.begin(), sizes.end(), int64_t{0}), hosts.name,
                             hosts.num_devices());
    }
    const int64_t were_left = of_kind + sizes[mesh];
    return InvalidArgument("mesh {} needs {} device{} of one kind, {} of {} are left", mesh,
                           sizes[mesh], sizes[mesh] == 1 ? "" : "s", were_left, hosts.name);
  }
  return kinds;
}

// What the options say of the meshes; empty: nothing.
absl::StatusOr<StageMeshes> GivenMeshes(const PlanRequest& request) {
  const PipelineOptions& options = *request.pipeline;
  std::vector<int64_t> sizes(options.submeshes.begin(), options.submeshes.end());
  if (!options.meshes.empty()) {
    sizes.clear();
    for (const Mesh& mesh : options.meshes) sizes.push_back(mesh.num_devices());
  }
  StageMeshes given;
  ASSIGN_OR_RETURN(given.kinds, KindsOf(sizes, request));
  for (const Mesh& mesh : options.meshes) given.shapes.push_back({mesh});
  for (size_t mesh = given.shapes.size(); mesh < sizes.size(); ++mesh) {
    ASSIGN_OR_RETURN(given.shapes.emplace_back(), SubmeshShapes(request.HostsOf(given.kinds[mesh]),
                                                                static_cast<int>(sizes[mesh])));
  }
  return given;
}

// Of those asked for; 0: any number.
int NumStages(const PipelineOptions& options) {
  return options.stage_of_layer.empty() ? options.num_stages : options.stage_of_layer.back() + 1;
}

int NumStagesOn(const StageMeshes& given, const PipelineOptions& options) {
  const int num_stages = NumStages(options);
  return num_stages > 0 ? num_stages : static_cast<int>(given.shapes.size());
}

absl::StatusOr<LayersOnMeshes> FindLayers(PipelinePlanner& planner, const PlanRequest& request,
                                          const IsTried& is_tried) {
  ASSIGN_OR_RETURN(const StageMeshes given, GivenMeshes(request));
  const PipelineOptions& options = *request.pipeline;
  if (given.shapes.empty())
    return FindLayersOnSubmeshes(planner, request, NumStages(options), is_tried);
  return FindLayersOn(given, planner, request, NumStagesOn(given, options));
}

// Of one number of micro-batches.
absl::StatusOr<PlannedPipeline> PlanCount(LayersOfCount& layers) {
  const PlanRequest& request = layers.request();
  PipelinePlanner& planner = layers.planner();
  ASSIGN_OR_RETURN(StageMeshes given, GivenMeshes(request));
  if (given.shapes.empty()) {
    ASSIGN_OR_RETURN(LayersOnMeshes on_meshes, layers.TakeOnAllMeshes());
    ASSIGN_OR_RETURN(FittedPipeline found, SearchSubmeshes(planner, request, std::move(on_meshes)));
    return std::move(found.pipeline);
  }
  const int num_stages = NumStagesOn(given, *request.pipeline);
  RETURN_IF_ERROR(planner.CheckStages(num_stages));
  ASSIGN_OR_RETURN(const Assignment assignment,
                   planner.Assign(request.pipeline->stage_of_layer, num_stages, std::move(given)));
  ASSIGN_OR_RETURN(FittedPipeline fitted,
                   planner.PlanWithin(assignment, planner.FirstDemands(), Reshaping::kEverything));
  return SearchSchedules(planner, request, std::move(fitted));
}

// ResourceExhausted: not even the state fits, however it is split.
absl::Status CheckStateFits(const Step& step, const PlanRequest& request) {
  double there = 0;  // bytes, of all devices
  int num_devices = 0;
  for (int kind = 0; kind < request.num_kinds(); ++kind) {
    const std::optional<int64_t> limit = request.MemoryLimitOn(kind);
    if (!limit) return absl::OkStatus();
    there += static_cast<double>(*limit) * request.HostsOf(kind).num_devices();
    num_devices += request.HostsOf(kind).num_devices();
  }
  const Computation& entry = step.module.entry_computation();
  int64_t state_bytes = 0;
  for (size_t i = 0; i < step.parameters.size(); ++i) {
    if (step.parameters[i].role == ParameterRole::kState)
      state_bytes += entry.instructions[entry.parameters[i]].shape().num_bytes();
  }
  if (static_cast<double>(state_bytes) <= there) return absl::OkStatus();
  return ResourceExhausted(
      "the state alone takes {}, the {} device{} may hold {} together; raise the limit, or take "
      "more devices",
      FormatBytes(state_bytes), num_devices, num_devices == 1 ? "" : "s",
      FormatBytes(static_cast<int64_t>(there)));
}

// A multiple of those of each host.
int DevicesOfHosts(const PlanRequest& request) {
  int out = 1;
  for (int kind = 0; kind < request.num_kinds(); ++kind)
    out = std::lcm(out, request.HostsOf(kind).devices_per_host);
  return out;
}

class MicroBatchSearch {
 public:
  explicit MicroBatchSearch(CountedStep step)
      : request_(step.request), simplified_(step.steps->simplified()), layers_(std::move(step)) {}

  absl::StatusOr<PlannedPipeline> Run() && {
    const double at_most_us = MostEstimatedUs(request_, simplified_);
    const std::vector<TriedCount> tried = SearchCounts(
        {.counts = MicroBatchCounts(simplified_),
         .num_devices = DevicesOfHosts(request_),
         .estimate = [&](std::span<const int64_t> counts) { return layers_.Estimate(counts); },
         .estimate_fitting = [&](int64_t count) { return layers_.Of(count).EstimateFitting(); },
         .least_part = [&](int64_t count) { return layers_.Of(count).least_part(); },
         .plan = [&](int64_t count) { return Plan(count); },
         .is_over = [&] { return !CheckNotCancelled(request_).ok(); },
         .faster_than_us = at_most_us});
    RETURN_IF_ERROR(CheckNotCancelled(request_));
    if (!best_) {
      if (request_.faster_than_us) RETURN_IF_ERROR(WhyNoneIsWanted(tried, at_most_us));
      RETURN_IF_ERROR(FailureAbove(0, tried));
      return ResourceExhausted("no number of micro-batches is estimated to give a pipeline");
    }
    RETURN_IF_ERROR(CheckFits(tried));
    PipelinePlan& plan = best_->plan;
    best_->tried_micro_batches = DescribeCounts(tried, figures_, plan.num_micro_batches);
    if (auto note = NoteOnChosenCount(request_.micro_batches, plan.num_micro_batches,
                                      MicroBatchCounts(simplified_).back()))
      plan.notes.push_back(*std::move(note));
    return *std::move(best_);
  }

 private:
  absl::StatusOr<CountPlan> Plan(int64_t count) {
    ASSIGN_OR_RETURN(PlannedPipeline planned, PlanCount(layers_.Of(count)));
    layers_.Forget(count);
    const CountPlan plan{.step_time_us = planned.plan.step_time_us, .fits = Fits(planned)};
    figures_[count] = FiguresOf(planned.plan);
    if (!best_ || IsBetter(planned, *best_)) best_ = std::move(planned);
    return plan;
  }

  // The failure of the largest number above `least`, which needs the least memory; OK: none failed.
  static absl::Status FailureAbove(int64_t least, const std::vector<TriedCount>& tried) {
    for (const TriedCount& count : std::views::reverse(tried)) {
      if (count.num_micro_batches > least && count.state == CountState::kFailed)
        return count.failure;
    }
    return absl::OkStatus();
  }

  // Where the best one needs too much memory, says why there are not more micro-batches.
  absl::Status CheckFits(const std::vector<TriedCount>& tried) const {
    absl::Status fits = CheckMemory(best_->plan, request_);
    const absl::Status failure = FailureAbove(best_->plan.num_micro_batches, tried);
    if (fits.ok() || failure.ok()) return fits;
    return ResourceExhausted("{}; more micro-batches than {} cannot be had: {}", Message(fits),
                             best_->plan.num_micro_batches, Message(failure));
  }

  bool Fits(const PlannedPipeline& planned) const {
    return CheckMemory(planned.plan, request_).ok();
  }

  bool IsBetter(const PlannedPipeline& one, const PlannedPipeline& other) const {
    if (Fits(one) != Fits(other)) return Fits(one);
    if (Fits(one)) return one.plan.step_time_us < other.plan.step_time_us;
    return PartOfLimits(one.plan, request_) < PartOfLimits(other.plan, request_);
  }

  const PlanRequest request_;
  const Step& simplified_;
  LayersByCount layers_;
  std::map<int64_t, PipelineFigures> figures_;  // of those planned
  std::optional<PlannedPipeline> best_;
};

// How many there shall be where the step has no boundaries; 0: nothing says how many stages.
int LayersFor(const PipelineOptions& options) {
  if (!options.stage_of_layer.empty()) return static_cast<int>(options.stage_of_layer.size());
  const size_t num_meshes = std::max(options.meshes.size(), options.submeshes.size());
  return kLayersPerStage *
         (options.num_stages > 0 ? options.num_stages : static_cast<int>(num_meshes));
}

struct StepInLayers {
  Step step;  // simplified
  LayerChoice layers;
};

absl::StatusOr<StepInLayers> FindLayersOf(const Step& step, const PipelineOptions& options) {
  StepInLayers found{.layers = options.layers};
  ASSIGN_OR_RETURN(found.step, Simplify(step, found.layers, /*unrolls_loops=*/true));
  const bool is_marked = std::holds_alternative<MarkedLayers>(found.layers);
  if (is_marked && found.step.num_layers == 0 && LayersFor(options) > 0) {
    ASSIGN_OR_RETURN(found.step,
                     Simplify(step, AutoLayers{LayersFor(options)}, /*unrolls_loops=*/true));
    if (*found.step.num_layers > 0) found.layers = AutoLayers{*found.step.num_layers};
  }
  RETURN_IF_ERROR(CheckLayers(found.step, found.layers));
  return found;
}

}  // namespace

absl::StatusOr<PlannedPipeline> PlanPipeline(const Step& step, const PlanRequest& request) {
  ASSIGN_OR_RETURN(const SplitStep split, SplitStacks(step));
  ASSIGN_OR_RETURN(const PlanRequest in_rows, RequestInRows(request, step, split.rows));
  return PlanPipeline(split, in_rows);
}

absl::StatusOr<PlannedPipeline> PlanPipeline(const SplitStep& split, const PlanRequest& request) {
  StagePlanner stages(request);
  return PlanPipeline(split, request, stages);
}

absl::StatusOr<PlannedPipeline> PlanPipeline(const SplitStep& split, const PlanRequest& request,
                                             StagePlanner& stages) {
  const auto start = std::chrono::steady_clock::now();
  RETURN_IF_ERROR(CheckKindsAsked(request));
  RETURN_IF_ERROR(CheckStateFits(split.step, request));
  ASSIGN_OR_RETURN(StepInLayers in_layers, FindLayersOf(split.step, *request.pipeline));
  PreparedSteps steps(std::move(in_layers.step));
  CountedStep counted{.request = request,
                      .steps = &steps,
                      .layers = in_layers.layers,
                      .stages = &stages,
                      .find = FindLayers};
  absl::StatusOr<PlannedPipeline> planned = absl::UnknownError("not planned");
  if (request.micro_batches.num_micro_batches == kChooseMicroBatches) {
    planned = MicroBatchSearch(std::move(counted)).Run();
  } else {
    LayersOfCount layers(std::move(counted));
    planned = PlanCount(layers);
  }
  RETURN_IF_ERROR(planned.status());
  planned->split = split;
  planned->plan.search_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  RETURN_IF_ERROR(CheckMemory(planned->plan, request));
  return planned;
}

}  // namespace minka
