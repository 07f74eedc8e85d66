// What layers by themselves say of a step in several numbers of micro-batches, for a search of the
// best one (planner/inter_op/micro_batch_search.h).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/driver/layers_on_meshes.h"
#include "minka/driver/pipeline_planner.h"
#include "minka/planner/inter_op/micro_batch_search.h"

namespace minka {

// Those that divide every batch of the step, ascending.
std::vector<int64_t> MicroBatchCounts(const Step& step);

// What is planned, but for the number of micro-batches. What it points to must outlive what is made
// of it.
struct CountedStep {
  PlanRequest request;
  PreparedSteps* steps = nullptr;
  LayerChoice layers;
  StagePlanner* stages = nullptr;
  StagePrograms programs = StagePrograms::kByTask;
  // On the meshes that are tried; null: on all.
  std::function<absl::StatusOr<LayersOnMeshes>(PipelinePlanner& planner, const PlanRequest& request,
                                               const IsTried& is_tried)>
      find;
  // Which are tried first; empty: all, for the number that comes first, then those fast for it.
  std::vector<MeshOfKind> first_meshes;
};

// Of one number.
class LayersOfCount {
 public:
  // In request.micro_batches.
  explicit LayersOfCount(CountedStep step);

  const PlanRequest& request() const { return step_.request; }
  PipelinePlanner& planner() { return planner_; }

  absl::StatusOr<CountEstimate> Estimate(const IsTried& is_tried);
  // Behind Estimate, on the same meshes; on all where none of them does, but where these are the
  // first_meshes and there is a plan to beat.
  absl::StatusOr<std::optional<double>> EstimateFitting();
  // Where EstimateFitting finds none: what any needs of the limits, on those meshes, at least.
  double least_part() const { return fitting_.least_part; }
  // Of those of Estimate, of each number of devices that on which layers are fastest; empty: no
  // layer could be planned.
  std::vector<MeshOfKind> FastMeshes() const;
  // The same and others that are nearly as fast; empty: there is no estimate.
  std::vector<MeshOfKind> LikelyMeshes() const;

  absl::StatusOr<LayersOnMeshes> TakeOnAllMeshes();

 private:
  absl::Status FindOnAllMeshes();

  const CountedStep step_;
  PipelinePlanner planner_;
  std::optional<LayersOnMeshes> found_;
  FittingEstimate fitting_;
  bool is_on_some_meshes_ = false;  // found_
};

class LayersByCount {
 public:
  explicit LayersByCount(CountedStep step) : step_(std::move(step)) {
    if (!step_.first_meshes.empty()) likely_meshes_ = step_.first_meshes;
  }

  LayersOfCount& Of(int64_t count);
  void Forget(int64_t count) { of_count_.erase(count); }

  // Side by side. On meshes that are fast for the number that comes first, others are likely to be,
  // and shapes that are unlikely for it are so for others.
  std::vector<absl::StatusOr<CountEstimate>> Estimate(std::span<const int64_t> counts);

 private:
  const CountedStep step_;
  std::map<int64_t, std::unique_ptr<LayersOfCount>> of_count_;
  std::optional<std::vector<MeshOfKind>> likely_meshes_;  // nullopt: not known
  std::optional<UnlikelyMeshes> unlikely_;                // likewise
  std::mutex progress_mutex_;
};

}  // namespace minka
