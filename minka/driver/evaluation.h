// Loss and outputs of a model in training, computed from the training's state where it lies.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/driver/parallelize.h"
#include "minka/frontend/trace.h"

namespace minka {

class Evaluation {
 public:
  // Plans and compiles `traced` (TraceEvaluation) so that every parameter lies as in `training`:
  // on its mesh, or as a pipeline of the same stages on the same meshes, with as many
  // micro-batches.
  static absl::StatusOr<Evaluation> Create(const TracedStep& traced, const Parallelized& training,
                                           const Cluster& cluster,
                                           const CostModelChoice& cost_model);

  // By result number. The state is only read.
  absl::StatusOr<std::vector<Literal>> Run(State& state, const Batch& batch);
  // Parameters that lie otherwise than in training, as where several stages read them: they are
  // copied once per step.
  int64_t num_copied() const;
  // -1: no result of the name.
  int FindResult(const std::string& name) const;

 private:
  // A parameter that several stages read lies on one mesh in training, on each of theirs here.
  struct Copy {
    int64_t of_step = -1;
    DistributedArray array;
  };

  Evaluation(Step step, std::vector<int> training_parameters, const Parallelized& training,
             std::unique_ptr<StepExecutor> executor);
  absl::StatusOr<DistributedArray*> CopyOf(int parameter, const State& state);

  Step step_;
  std::vector<int> training_parameters_;  // by parameter; -1: batch input
  std::unique_ptr<StepExecutor> executor_;
  std::vector<std::optional<Copy>> copies_;  // by parameter; nullopt: training's own is read
};

}  // namespace minka
