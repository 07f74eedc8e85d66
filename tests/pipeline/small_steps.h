// Steps that are small enough to be cut into stages, planned and lowered in a moment, and how.
#pragma once

#include <string>
#include <vector>

#include "minka/driver/pipeline.h"
#include "minka/ir/step.h"

namespace minka {

// Eight layers; a batch of 24.
Step SmallMlp();
// No layer shares anything with another but the step counter.
Step SmallGpt();
// With all that ties layers together: weights that two of them read, a global norm, a loss scale.
Step SmallBert();
// Forward only.
Step SmallEvaluation();

struct SmallPipeline {
  std::string schedule = "1f1b";
  int num_meshes = 2, stages_per_mesh = 1, num_micro_batches = 4;
  std::string mesh = "1";  // each
};

// As many layers on each stage as on the others, or one more.
std::vector<int> EvenStages(int num_layers, int num_stages);

PlannedPipeline PlanSmall(const Step& step, const SmallPipeline& pipeline);

}  // namespace minka
