// What each layer of a step takes by itself on a mesh: by its plan there, as a stage of its own.
#pragma once

#include <map>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/driver/plan_stage.h"
#include "minka/driver/prepared_steps.h"
#include "minka/lowering/stages.h"
#include "minka/planner/inter_op/stage_search.h"

namespace minka {

// Not thread-safe. What it is made of must outlive it.
class LayerCosts {
 public:
  LayerCosts(const PlanRequest& planning, PreparedSteps& steps, StagePlanner& planner)
      : planning_(planning), steps_(steps), planner_(planner) {}

  // By layer. An error where the step cannot be cut behind every layer, or a layer has no plan
  // there. Pins and the memory limit of the request are left out.
  absl::StatusOr<std::vector<LayerCost>> On(const Mesh& mesh, bool splits_state,
                                            const RematChoice& remat);

 private:
  absl::StatusOr<const StagedStep*> CutBehindLayers(const RematChoice& remat);

  const PlanRequest& planning_;
  PreparedSteps& steps_;
  StagePlanner& planner_;
  std::map<RematChoice, StagedStep> staged_;
  std::map<const SearchedStage*, LayerCost> costs_;
};

}  // namespace minka
