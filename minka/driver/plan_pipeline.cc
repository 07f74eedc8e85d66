// PlanPipeline: which layers are a stage, and how each runs on its mesh.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <ranges>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "fmt/ranges.h"
#include "minka/base/parallel.h"
#include "minka/base/status.h"
#include "minka/driver/mesh_shapes.h"
#include "minka/driver/pipeline.h"
#include "minka/driver/pipeline_planner.h"
#include "minka/driver/plan_stage.h"
#include "minka/driver/prepare.h"
#include "minka/driver/request_in_rows.h"
#include "minka/driver/schedule_search.h"
#include "minka/driver/submesh_search.h"
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

// Pipelines of one number of micro-batches.
class PipelineSearch {
 public:
  // What it is made of must outlive it.
  PipelineSearch(PlanRequest request, PreparedSteps& steps, const LayerChoice& layers,
                 StagePlanner& stages)
      : request_(std::move(request)), planner_(request_, steps, layers, stages) {}

  // Of what layers take by themselves, of submeshes on those that are tried, if that is given.
  absl::StatusOr<CountEstimate> Estimate(const IsTried& is_tried) {
    ASSIGN_OR_RETURN(const StageMeshes given, GivenMeshes(request_));
    if (is_tried && given.shapes.empty()) {
      absl::StatusOr<LayersOnMeshes> layers =
          FindLayersOnSubmeshes(planner_, request_, NumStages(), is_tried);
      RETURN_IF_ERROR(CheckNotCancelled(request_));
      is_on_some_meshes_ = layers.ok();
      if (layers.ok()) layers_ = *std::move(layers);
    }
    if (!is_on_some_meshes_) RETURN_IF_ERROR(FindLayers());
    return minka::EstimateOf(*layers_, request_);
  }
  // Behind Estimate, on the same meshes; on all where none of them does.
  absl::StatusOr<std::optional<double>> EstimateFitting() {
    const std::optional<double> step_time_us = minka::EstimateFitting(*layers_, planner_, request_);
    if (step_time_us || !is_on_some_meshes_) return step_time_us;
    RETURN_IF_ERROR(FindLayers());
    return minka::EstimateFitting(*layers_, planner_, request_);
  }
  const UnlikelyMeshes& unlikely() const { return planner_.unlikely(); }
  void SetUnlikely(const UnlikelyMeshes& unlikely) { planner_.SetUnlikely(unlikely); }
  // Of those of Estimate, of each number of devices that on which layers are fastest; empty: no
  // layer could be planned.
  std::vector<MeshOfKind> FastMeshes() const {
    return FastestMeshOfEach(layers_->ways, WithLimits(layers_->input, request_));
  }

  absl::StatusOr<PlannedPipeline> Plan() && {
    ASSIGN_OR_RETURN(StageMeshes given, GivenMeshes(request_));
    if (given.shapes.empty()) {
      RETURN_IF_ERROR(FindLayers());

      ASSIGN_OR_RETURN(FittedPipeline found,
                       SearchSubmeshes(planner_, request_, *std::move(layers_)));
      return std::move(found.pipeline);
    }
    const int num_stages = NumStagesOn(given);
    RETURN_IF_ERROR(planner_.CheckStages(num_stages));
    ASSIGN_OR_RETURN(const Assignment assignment, planner_.Assign(request_.pipeline->stage_of_layer,
                                                                  num_stages, std::move(given)));
    ASSIGN_OR_RETURN(FittedPipeline fitted, planner_.PlanWithin(assignment, planner_.FirstDemands(),
                                                                Reshaping::kEverything));
    return SearchSchedules(planner_, request_, std::move(fitted));
  }

 private:
  // Of those asked for; 0: any number.
  int NumStages() const {
    const PipelineOptions& options = *request_.pipeline;
    return options.stage_of_layer.empty() ? options.num_stages : options.stage_of_layer.back() + 1;
  }

  int NumStagesOn(const StageMeshes& given) const {
    return NumStages() > 0 ? NumStages() : static_cast<int>(given.shapes.size());
  }

  // On all meshes.
  absl::Status FindLayers() {
    if (layers_ && !is_on_some_meshes_) return absl::OkStatus();
    ASSIGN_OR_RETURN(const StageMeshes given, GivenMeshes(request_));
    ASSIGN_OR_RETURN(layers_, given.shapes.empty()
                                  ? FindLayersOnSubmeshes(planner_, request_, NumStages())
                                  : FindLayersOn(given, planner_, request_, NumStagesOn(given)));
    is_on_some_meshes_ = false;
    return absl::OkStatus();
  }

  const PlanRequest request_;
  PipelinePlanner planner_;
  std::optional<LayersOnMeshes> layers_;
  bool is_on_some_meshes_ = false;  // layers_
};

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

// Those that divide every batch.
std::vector<int64_t> MicroBatchCounts(const Step& step) {
  int64_t common = 0;
  for (size_t i = 0; i < step.parameters.size(); ++i) {
    const ParameterInfo& info = step.parameters[i];
    if (info.role != ParameterRole::kBatch || info.batch_dim < 0) continue;
    const Computation& entry = step.module.entry_computation();
    common = std::gcd(common, entry.instructions[entry.parameters[i]].shape().dims[info.batch_dim]);
  }
  std::vector<int64_t> counts;
  for (int64_t count = 1; count <= std::max<int64_t>(common, 1); ++count) {
    if (common % count == 0) counts.push_back(count);
  }
  return counts;
}

class MicroBatchSearch {
 public:
  MicroBatchSearch(const PlanRequest& request, PreparedSteps& steps, const LayerChoice& layers,
                   StagePlanner& stages)
      : request_(request), steps_(steps), layers_(layers), stages_(stages) {}

  absl::StatusOr<PlannedPipeline> Run() && {
    const std::vector<TriedCount> tried = SearchCounts(
        {.counts = MicroBatchCounts(steps_.simplified()),
         .estimate = [&](std::span<const int64_t> counts) { return Estimate(counts); },
         .estimate_fitting = [&](int64_t count) { return SearchOf(count).EstimateFitting(); },
         .plan = [&](int64_t count) { return Plan(count); },
         .is_over = [&] { return !CheckNotCancelled(request_).ok(); },
         .faster_than_us = MostEstimatedUs(request_, steps_.simplified())});
    RETURN_IF_ERROR(CheckNotCancelled(request_));
    if (!best_) return WhyNone(tried);
    RETURN_IF_ERROR(CheckFits(tried));
    for (const TriedCount& count : tried) best_->tried_micro_batches.push_back(Described(count));
    return *std::move(best_);
  }

 private:
  PipelineSearch& SearchOf(int64_t count) {
    std::unique_ptr<PipelineSearch>& search = searches_[count];
    if (search != nullptr) return *search;
    PlanRequest request = request_;
    request.micro_batches.num_micro_batches = count;
    if (request_.on_progress) {
      request.on_progress = [this, count](const std::string& what, double seconds, double gap) {
        const std::lock_guard lock(progress_mutex_);
        request_.on_progress(fmt::format("{} micro-batches: {}", count, what), seconds, gap);
      };
    }
    search = std::make_unique<PipelineSearch>(std::move(request), steps_, layers_, stages_);
    if (unlikely_) search->SetUnlikely(*unlikely_);
    return *search;
  }

  // On meshes that are fast for the number that comes first, others are likely to be, and shapes
  // that are unlikely for it are so for others.
  std::vector<absl::StatusOr<CountEstimate>> Estimate(std::span<const int64_t> counts) {
    IsTried likely;
    if (likely_meshes_) {
      likely = [&](const MeshOfKind& on) {
        return std::ranges::find(*likely_meshes_, on) != likely_meshes_->end();
      };
    }
    std::vector<PipelineSearch*> searches;
    for (const int64_t count : counts) searches.push_back(&SearchOf(count));
    std::vector<absl::StatusOr<CountEstimate>> estimates(counts.size());
    ForEachInParallel(static_cast<int>(counts.size()), NumSearchThreads(request_.search),
                      [&](int i) { estimates[i] = searches[i]->Estimate(likely); });
    if (!likely_meshes_ && estimates.back().ok()) {
      std::vector<MeshOfKind> fast = searches.back()->FastMeshes();
      if (!fast.empty()) likely_meshes_ = std::move(fast);
      unlikely_ = searches.back()->unlikely();
    }
    return estimates;
  }

  absl::StatusOr<CountPlan> Plan(int64_t count) {
    ASSIGN_OR_RETURN(PlannedPipeline planned, std::move(SearchOf(count)).Plan());
    searches_.erase(count);
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

  absl::Status WhyNone(const std::vector<TriedCount>& tried) const {
    std::optional<double> least_us;  // of what may fit
    for (const TriedCount& count : tried) {
      if (count.state != CountState::kEstimated && count.state != CountState::kEstimatedToFit)
        continue;
      least_us = std::min(least_us.value_or(count.at_least_us), count.at_least_us);
    }
    if (least_us && *least_us > MostEstimatedUs(request_, steps_.simplified()))
      return EstimatedToTake(*least_us);
    const auto is_too_large = [](const TriedCount& count) {
      return count.state == CountState::kTooLarge;
    };
    if (request_.faster_than_us && std::ranges::any_of(tried, is_too_large))
      return ResourceExhausted("not planned: estimated to need too much memory");
    RETURN_IF_ERROR(FailureAbove(0, tried));
    return ResourceExhausted("no number of micro-batches is estimated to give a pipeline");
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

  TriedMicroBatches Described(const TriedCount& count) const {
    TriedMicroBatches out{.num_micro_batches = count.num_micro_batches};
    const std::string at_least = FormatTime(count.at_least_us);
    switch (count.state) {
      case CountState::kUnknown:
        out.why_not = fmt::format("not planned: takes {} at least", at_least);
        break;
      case CountState::kEstimated:
      case CountState::kEstimatedToFit:
        out.why_not = Message(EstimatedToTake(count.at_least_us));
        break;
      case CountState::kTooLarge:
        out.why_not = "not planned: estimated to need too much memory";
        break;
      case CountState::kPlanned:
        out.figures = figures_.at(count.num_micro_batches);
        out.chosen = count.num_micro_batches == best_->plan.num_micro_batches;
        out.why_not = out.chosen ? "" : count.plan->fits ? "slower" : "needs too much memory";
        break;
      case CountState::kFailed:
        out.why_not = Message(count.failure);
        break;
    }
    return out;
  }

  const PlanRequest& request_;
  PreparedSteps& steps_;
  const LayerChoice& layers_;
  StagePlanner& stages_;
  std::map<int64_t, std::unique_ptr<PipelineSearch>> searches_;  // by number of micro-batches
  std::optional<std::vector<MeshOfKind>> likely_meshes_;         // nullopt: not known
  std::optional<UnlikelyMeshes> unlikely_;                       // likewise
  std::map<int64_t, PipelineFigures> figures_;
  std::optional<PlannedPipeline> best_;
  std::mutex progress_mutex_;
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

// Beside what was tried for the better one.
void AddTried(const PlannedPipeline& slower, PlannedPipeline& better) {
  for (TriedSubmeshes tried : slower.tried) {
    if (std::exchange(tried.chosen, false)) tried.why_not = "slower";
    better.tried.push_back(std::move(tried));
  }
  std::ranges::stable_sort(better.tried, {}, [](const TriedSubmeshes& tried) {
    return std::tuple(!tried.chosen, !tried.figures.has_value());
  });
  for (size_t i = 0; i < better.tried_micro_batches.size(); ++i) {
    TriedMicroBatches tried = slower.tried_micro_batches[i];
    if (better.tried_micro_batches[i].figures || !tried.figures) continue;
    if (std::exchange(tried.chosen, false)) tried.why_not = "slower";
    better.tried_micro_batches[i] = std::move(tried);
  }
}

bool TriesOneStage(const PlanRequest& request) {
  const PipelineOptions& options = *request.pipeline;
  return options.tries_one_stage && options.num_stages == 0 && options.stage_of_layer.empty() &&
         !GivesMeshes(options) && request.num_kinds() == 1;
}

absl::StatusOr<PlannedPipeline> SearchPipeline(const PlanRequest& request, PreparedSteps& steps,
                                               const LayerChoice& layers, StagePlanner& stages) {
  if (request.micro_batches.num_micro_batches != kChooseMicroBatches)
    return PipelineSearch(request, steps, layers, stages).Plan();
  absl::StatusOr<PlannedPipeline> planned = MicroBatchSearch(request, steps, layers, stages).Run();
  if (!TriesOneStage(request)) return planned;
  RETURN_IF_ERROR(CheckNotCancelled(request));
  PlanRequest of_one_stage = request;
  of_one_stage.pipeline->num_stages = 1;
  if (planned.ok()) of_one_stage.faster_than_us = planned->plan.step_time_us;
  absl::StatusOr<PlannedPipeline> one_stage =
      MicroBatchSearch(of_one_stage, steps, layers, stages).Run();
  if (!one_stage.ok()) return planned;
  const bool is_better = !planned.ok() || one_stage->plan.step_time_us < planned->plan.step_time_us;
  PlannedPipeline& better = is_better ? *one_stage : *planned;
  if (planned.ok()) AddTried(is_better ? *planned : *one_stage, better);
  return std::move(better);
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
  ASSIGN_OR_RETURN(PlannedPipeline planned,
                   SearchPipeline(request, steps, in_layers.layers, stages));
  planned.split = split;
  planned.plan.search_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  RETURN_IF_ERROR(CheckMemory(planned.plan, request));
  return planned;
}

}  // namespace minka
