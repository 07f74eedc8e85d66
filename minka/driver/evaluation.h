// Loss and outputs of a model in training, computed on the same mesh from the training's state.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "minka/driver/parallelize.h"
#include "minka/frontend/trace.h"

namespace minka {

class Evaluation {
 public:
  // Plans and compiles `traced` (TraceEvaluation) so that every parameter lies as in `training`.
  static absl::StatusOr<Evaluation> Create(const TracedStep& traced, const Parallelized& training,
                                           const Cluster& cluster,
                                           const CostModelChoice& cost_model);

  // By result number. The state is only read.
  absl::StatusOr<std::vector<Literal>> Run(State& state, const Batch& batch);
  // -1: no result of the name.
  int FindResult(const std::string& name) const;

 private:
  Evaluation(Step step, std::vector<int> training_parameters, MeshExecutor executor);

  Step step_;
  std::vector<int> training_parameters_;  // by parameter; -1: batch input
  MeshExecutor executor_;
};

}  // namespace minka
