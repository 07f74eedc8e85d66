// Plans pipelines of one step, once it is said which layers are a stage, and on which meshes.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "minka/driver/layer_costs.h"
#include "minka/driver/layer_ways.h"
#include "minka/driver/pipeline.h"
#include "minka/driver/plan_stage.h"
#include "minka/driver/prepared_steps.h"
#include "minka/driver/unlikely_meshes.h"
#include "minka/planner/inter_op/fit_stages.h"
#include "minka/planner/inter_op/stage_search.h"

namespace minka {

// What stages may lie on, by number of the mesh.
struct StageMeshes {
  std::vector<std::vector<Mesh>> shapes;  // that each may have
  std::vector<int> kinds;                 // of the hosts of each, see PlanRequest
};

// Which layers run where, before anything is searched.
struct Assignment {
  Schedule schedule;
  std::vector<int> stage_of_layer;
  StageMeshes meshes;
  std::vector<double> memory_prices;  // by stage, see StageRequest; empty: none
};

// A pipeline shaped to fit, see PipelinePlanner::PlanWithin.
struct FittedPipeline {
  PlannedPipeline pipeline;
  Assignment assignment;
  double unlimited_us = 0;  // what a step takes as first demanded, whatever memory that needs
};

// What is done to a pipeline that does not fit.
enum class Reshaping {
  kNothing,     // it stays as it is
  kLimits,      // its stages are searched under limits
  kEverything,  // as FitStages does
};

// Not thread-safe. What it is made of must outlive it.
class PipelinePlanner {
 public:
  // `layers`: by which the step was simplified. `programs`: of layers by themselves.
  PipelinePlanner(const PlanRequest& planning, PreparedSteps& steps, LayerChoice layers,
                  StagePlanner& stages, StagePrograms programs = StagePrograms::kByTask);

  // Which shapes are unlikely by the layers that were looked at, here or in another number of
  // micro-batches.
  const UnlikelyMeshes& unlikely() const { return unlikely_; }
  void SetUnlikely(const UnlikelyMeshes& unlikely) { unlikely_ = unlikely; }

  int num_layers() const { return steps_.simplified().num_layers.value_or(0); }
  const Step& simplified() const { return steps_.simplified(); }
  const std::string& name() const { return steps_.simplified().module.name; }

  // InvalidArgument where there are not so many layers.
  absl::Status CheckStages(int num_stages) const;

  // Of so many stages on these meshes, by the schedule that is asked for; if any may be chosen, by
  // 1f1b, or that of inference where nothing is trained. Without stage_of_layer, layers are spread
  // evenly.
  absl::StatusOr<Assignment> Assign(std::vector<int> stage_of_layer, int num_stages,
                                    StageMeshes meshes);

  // As demanded where that fits into the memory limit, or none is given. Else the fastest found
  // that fits; if none does, the one that needs least (fit_stages.h).
  absl::StatusOr<FittedPipeline> PlanWithin(const Assignment& assignment, const StageDemands& first,
                                            Reshaping reshaping);
  StageDemands FirstDemands() const { return {.remat = FirstRemat()}; }

  // The same by another schedule; InvalidArgument where it cannot do that.
  absl::StatusOr<Assignment> BySchedule(const Assignment& assignment, std::string_view schedule);

  // Ways to run each layer on one of the meshes, as far as they can be planned; none where the step
  // cannot be cut behind every layer. On those of `saving`, which are among them, ways that take
  // less memory, too. Where shapes are not given, unlikely ones (unlikely_meshes.h) are refused.
  LayerWays WaysOn(const std::vector<MeshOfKind>& meshes, const std::vector<MeshOfKind>& saving);

  // Of each stage on one of the ways so much recomputed as it says.
  StageDemands DemandsOf(const FoundPipeline& found, const std::vector<StageWay>& ways);

  // That is asked for; where any may be chosen, the first that is looked at.
  absl::StatusOr<std::string> FirstSchedule();

  // By number of stages from a stage to the end: what it holds. Of as many stages as there are at
  // most.
  absl::StatusOr<std::vector<MicroBatchesHeld>> Held(int most_stages);
  // The same by another schedule, where stages from the end hold as many as those of a pipeline of
  // so many stages.
  absl::StatusOr<std::vector<MicroBatchesHeld>> Held(int most_stages, std::string_view schedule,
                                                     int num_stages);

  // How long a micro-batch and its gradient are on their way between stages; empty where that is
  // not known.
  std::function<double(const StageBorder& border)> SendUs();

  // What the forward and backward pass of each layer take on one device of the kind.
  absl::StatusOr<std::vector<double>> LoadOfLayers(int kind);

 private:
  struct Searched {
    PlannedPipeline pipeline;
    std::vector<int64_t> bytes;  // by stage, that its search takes it to need
  };

  RematChoice FirstRemat() const { return planning_.remat.value_or(RematChoice()); }
  absl::StatusOr<const Step*> PreparedWith(const RematChoice& remat) {
    return steps_.With(remat, planning_.micro_batches);
  }

  // In as few layers as there are kinds of (prepared_steps.h): says as much of schedules.
  absl::StatusOr<const Step*> PreparedInFewLayers() {
    const PreparedSteps::Folded* const folded = steps_.FoldedLayers();
    if (folded != nullptr && FirstRemat().empty()) {
      absl::StatusOr<const Step*> few = folded->steps->With({}, planning_.micro_batches);
      if (few.ok()) return few;
    }
    return PreparedWith(FirstRemat());
  }

  std::string_view FirstScheduleOf(const Step& prepared) const;
  // At which layers are searched on the mesh (StageRequest::memory_price).
  std::span<const double> MemoryPrices(const MeshOfKind& on, bool saves_memory) const;
  absl::StatusOr<Searched> PlanAs(const Assignment& assignment, const StageDemands& demands);
  std::vector<std::optional<RepeatedLayers>> RepeatedOn(const std::vector<MeshOfKind>& meshes);
  LayerWays WaysOnAll(const std::vector<MeshOfKind>& meshes, const std::vector<MeshOfKind>& saving);
  static DemandedPipeline Summary(const Searched& searched);
  // How much a device of each mesh does beside those of the others.
  absl::StatusOr<std::vector<double>> SpeedOfMeshes(const StageMeshes& meshes);
  void ReportProgress(int num_planned, int num_stages) const;
  absl::Status PlanStages(const Assignment& assignment,
                          const std::vector<std::optional<int64_t>>& limits, PlannedPipeline& out);
  SearchOptions SearchOf(int stage, std::optional<int64_t> limit,
                         const PlannedPipeline& pipeline) const;
  absl::Status Describe(PlannedPipeline& out) const;

  const PlanRequest& planning_;
  PreparedSteps& steps_;
  const LayerChoice layers_;
  StagePlanner& stages_;
  const StagePrograms programs_;
  LayerCosts layer_costs_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  UnlikelyMeshes unlikely_;
  std::map<int, std::vector<double>> load_;                                          // by kind
  std::map<std::tuple<int, std::string, int>, std::vector<MicroBatchesHeld>> held_;  // see Held
};

}  // namespace minka
