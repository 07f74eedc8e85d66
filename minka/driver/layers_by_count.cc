#include "minka/driver/layers_by_count.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "fmt/format.h"
#include "minka/base/parallel.h"
#include "minka/base/status.h"

namespace minka {

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

LayersOfCount::LayersOfCount(CountedStep step)
    : step_(std::move(step)),
      planner_(step_.request, *step_.steps, step_.layers, *step_.stages, step_.programs) {}

absl::StatusOr<CountEstimate> LayersOfCount::Estimate(const IsTried& is_tried) {
  if (is_tried) {
    absl::StatusOr<LayersOnMeshes> found = step_.find(planner_, request(), is_tried);
    RETURN_IF_ERROR(CheckNotCancelled(request()));
    is_on_some_meshes_ = found.ok();
    if (found.ok()) found_ = *std::move(found);
  }
  if (!is_on_some_meshes_) RETURN_IF_ERROR(FindOnAllMeshes());
  return EstimateOf(*found_, request());
}

absl::StatusOr<std::optional<double>> LayersOfCount::EstimateFitting() {
  fitting_ = minka::EstimateFitting(*found_, planner_, request());
  const bool is_enough = !step_.first_meshes.empty() && request().has_plan_to_beat();
  if (fitting_.step_time_us || !is_on_some_meshes_ || is_enough) return fitting_.step_time_us;
  RETURN_IF_ERROR(FindOnAllMeshes());
  fitting_ = minka::EstimateFitting(*found_, planner_, request());
  return fitting_.step_time_us;
}

std::vector<MeshOfKind> LayersOfCount::FastMeshes() const {
  return FastestMeshOfEach(found_->ways, WithLimits(found_->input, request()));
}

std::vector<MeshOfKind> LayersOfCount::LikelyMeshes() const {
  if (!found_) return {};
  return FastestMeshes(found_->ways, WithLimits(found_->input, request()));
}

absl::StatusOr<LayersOnMeshes> LayersOfCount::TakeOnAllMeshes() {
  RETURN_IF_ERROR(FindOnAllMeshes());
  return *std::exchange(found_, std::nullopt);
}

absl::Status LayersOfCount::FindOnAllMeshes() {
  if (found_ && !is_on_some_meshes_) return absl::OkStatus();
  ASSIGN_OR_RETURN(found_, step_.find(planner_, request(), nullptr));
  is_on_some_meshes_ = false;
  return absl::OkStatus();
}

LayersOfCount& LayersByCount::Of(int64_t count) {
  std::unique_ptr<LayersOfCount>& of_count = of_count_[count];
  if (of_count != nullptr) return *of_count;
  CountedStep step = step_;
  step.request.micro_batches.num_micro_batches = count;
  if (step_.request.on_progress) {
    step.request.on_progress = [this, count](const std::string& what, double seconds, double gap) {
      const std::lock_guard lock(progress_mutex_);
      step_.request.on_progress(fmt::format("{} micro-batches: {}", count, what), seconds, gap);
    };
  }
  of_count = std::make_unique<LayersOfCount>(std::move(step));
  if (unlikely_) of_count->planner().SetUnlikely(*unlikely_);
  return *of_count;
}

std::vector<absl::StatusOr<CountEstimate>> LayersByCount::Estimate(
    std::span<const int64_t> counts) {
  IsTried likely;
  if (likely_meshes_) {
    likely = [&](const MeshOfKind& on) {
      return std::ranges::find(*likely_meshes_, on) != likely_meshes_->end();
    };
  }
  std::vector<LayersOfCount*> of_counts;
  for (const int64_t count : counts) of_counts.push_back(&Of(count));
  std::vector<absl::StatusOr<CountEstimate>> estimates(counts.size());
  ForEachInParallel(static_cast<int>(counts.size()), NumSearchThreads(step_.request.search),
                    [&](int i) { estimates[i] = of_counts[i]->Estimate(likely); });
  if (!likely_meshes_ && estimates.back().ok()) {
    std::vector<MeshOfKind> fast = of_counts.back()->FastMeshes();
    if (!fast.empty()) likely_meshes_ = std::move(fast);
    unlikely_ = of_counts.back()->planner().unlikely();
  }
  return estimates;
}

}  // namespace minka
