// What each layer of a step takes by itself on a mesh: by its plan there, as a stage of its own.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/driver/layer_ways.h"
#include "minka/driver/plan_stage.h"
#include "minka/driver/prepared_steps.h"
#include "minka/lowering/stages.h"
#include "minka/planner/inter_op/stage_search.h"

namespace minka {

// Where all layers run, each as a stage of its own, and what of them is computed again.
struct LayersOn {
  MeshOfKind on;
  double memory_price = 0;  // see StageRequest
  RematChoice remat;
};

// What crosses from a layer to the next one, of a micro-batch.
struct BytesBetween {
  int64_t forward = 0, backward = 0;
};

enum class StagePrograms {
  kByTask,  // forward and backward pass are programs of their own
  kOne,     // for the whole step
};

// How many micro-batches prices of memory count, see StageRequest.
double InFlight(StagePrograms programs);

// Not thread-safe. What it is made of must outlive it.
class LayerCosts {
 public:
  LayerCosts(const PlanRequest& planning, PreparedSteps& steps, StagePlanner& planner,
             StagePrograms programs = StagePrograms::kByTask)
      : planning_(planning), steps_(steps), planner_(planner), programs_(programs) {}

  // By what is asked, then by layer; layers are searched in parallel, equal ones once, and beside
  // them the step is cut in other ways. An error where the step cannot be cut behind every layer,
  // or a layer has no plan there. Pins and the memory limit of the request are left out.
  std::vector<absl::StatusOr<std::vector<LayerCost>>> Of(const std::vector<LayersOn>& asked) {
    return Find(asked, Layers::kAll);
  }
  // The same of layers that are equal to others alone; those of the others stay empty. An error
  // where they are less than half of all.
  std::vector<absl::StatusOr<std::vector<LayerCost>>> OfRepeated(
      const std::vector<LayersOn>& asked) {
    return Find(asked, Layers::kRepeated);
  }

  // By layer, what crosses in front of it. An error where the step cannot be cut behind every
  // layer.
  absl::StatusOr<std::vector<BytesBetween>> BytesInFrontOf(const RematChoice& remat);

 private:
  // The step in layers, with fewer of those that are equal where it can be folded so.
  struct CutStep {
    StagedStep staged;
    std::vector<std::vector<int>> received;  // by layer: parameters that other layers make
    std::vector<int> first_equal;            // by layer: the first that is equal to it
    std::vector<int> layer;                  // by layer of the whole step: an equal one of these

    int FirstEqual(size_t layer_of_whole) const { return first_equal[layer[layer_of_whole]]; }
  };

  enum class Layers { kAll, kRepeated };

  std::vector<absl::StatusOr<std::vector<LayerCost>>> Find(const std::vector<LayersOn>& asked,
                                                           Layers which);
  absl::StatusOr<const CutStep*> CutBehindLayers(const RematChoice& remat);
  // The step that is cut for it, and what is recomputed of its layers.
  struct ToCut {
    PreparedSteps* steps = nullptr;
    RematChoice remat;
    std::vector<int> layer;  // by layer of the whole step: the equal one of it
  };
  ToCut WholeStep(const RematChoice& remat);
  // nullopt: no layers repeat, or those that do are not to be recomputed alike.
  std::optional<ToCut> FoldedStep(const RematChoice& remat);
  absl::StatusOr<CutStep> Cut(ToCut to_cut) const;
  // By layer, whether it is one to search: the first of those that are equal.
  static absl::StatusOr<std::vector<bool>> IsSearched(const CutStep& cut, Layers which);
  struct Job;
  // To find what is asked for by these numbers; costs of steps that cannot be cut become errors.
  std::vector<Job> JobsOf(const std::vector<LayersOn>& asked, Layers which,
                          std::span<const size_t> numbers,
                          std::vector<absl::StatusOr<std::vector<LayerCost>>>& costs);
  void Collect(const std::vector<LayersOn>& asked, const std::vector<Job>& jobs,
               std::vector<absl::StatusOr<std::vector<LayerCost>>>& costs) const;
  // Thread-safe. `problem`: of the layer on the mesh, see StageRequest.
  absl::StatusOr<LayerCost> CostOfLayer(const Job& job, const LayersOn& where,
                                        std::optional<MeshProblem>& problem);

  const PlanRequest& planning_;
  PreparedSteps& steps_;
  StagePlanner& planner_;
  const StagePrograms programs_;
  std::map<RematChoice, CutStep> cut_;
  std::mutex mutex_;
  std::map<const SearchedStage*, LayerCost> costs_;  // guarded by mutex_
};

}  // namespace minka
