#include "minka/driver/evaluation.h"

#include <utility>

#include "minka/base/check.h"
#include "minka/base/status.h"

namespace minka {
namespace {

absl::StatusOr<std::vector<int>> TrainingParameters(const Step& step,
                                                    const Parallelized& training) {
  std::vector<int> numbers;
  for (const ParameterInfo& parameter : step.parameters) {
    numbers.push_back(-1);
    if (parameter.role == ParameterRole::kBatch) continue;
    const std::vector<ParameterInfo>& trained = training.step().parameters;
    for (size_t i = 0; i < trained.size(); ++i) {
      if (trained[i].name == parameter.name) numbers.back() = static_cast<int>(i);
    }
    if (numbers.back() < 0) {
      return InvalidArgument("the evaluation reads {}, which the training does not have",
                             parameter.name);
    }
  }
  return numbers;
}

}  // namespace

absl::StatusOr<Evaluation> Evaluation::Create(const TracedStep& traced,
                                              const Parallelized& training, const Cluster& cluster,
                                              const CostModelChoice& cost_model) {
  ASSIGN_OR_RETURN(std::vector<int> numbers, TrainingParameters(traced.step, training));
  const Mesh& mesh = training.plan().stage.mesh;
  const StepExecutor& trained = training.runner().executor();
  // Every parameter is pinned: whose pin it is says nothing.
  PlanRequest request{
      .cluster = cluster, .meshes = {mesh}, .names_culprits = false, .cost_model = cost_model};
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (numbers[i] < 0) continue;
    request.search.pins.push_back(
        fmt::format("{}={}", traced.step.parameters[i].name,
                    ToString(trained.ParameterLayout(numbers[i]).sharding, mesh)));
  }
  const PlanSource source = [&](const Step& step, std::optional<int64_t>) -> SearchResult<Plan> {
    ASSIGN_OR_RETURN(PlanResult result, PlanStep(step, request));
    return std::move(result.candidates[result.best].plan);
  };
  ASSIGN_OR_RETURN(CompiledStep compiled,
                   Compile(traced.step, source, training.devices().client, {}));
  MeshExecutor executor(training.devices().client, *std::move(compiled.executable), mesh,
                        SignatureOf(compiled.prepared.module, compiled.program));
  for (size_t i = 0; i < numbers.size(); ++i) {
    MINKA_CHECK(numbers[i] < 0 || executor.signature().parameter_shardings[i] ==
                                      trained.ParameterLayout(numbers[i]).sharding,
                "{} lies otherwise than in training", traced.step.parameters[i].name);
  }
  return Evaluation(traced.step, std::move(numbers), std::move(executor));
}

Evaluation::Evaluation(Step step, std::vector<int> training_parameters, MeshExecutor executor)
    : step_(std::move(step)),
      training_parameters_(std::move(training_parameters)),
      executor_(std::move(executor)) {}

absl::StatusOr<std::vector<Literal>> Evaluation::Run(State& state, const Batch& batch) {
  std::vector<DistributedArray> inputs(training_parameters_.size());
  std::vector<DistributedArray*> arguments;
  size_t next = 0;
  for (int i = 0; i < static_cast<int>(training_parameters_.size()); ++i) {
    if (training_parameters_[i] >= 0) {
      arguments.push_back(&state.arrays[training_parameters_[i]]);
      continue;
    }
    if (next == batch.size()) return InvalidArgument("the batch has {} arrays only", batch.size());
    ASSIGN_OR_RETURN(inputs[i], executor_.Put(i, batch[next++]));
    arguments.push_back(&inputs[i]);
  }
  ASSIGN_OR_RETURN(const std::vector<DistributedArray> results, executor_.Run(arguments));
  std::vector<const DistributedArray*> read;
  for (const DistributedArray& result : results) read.push_back(&result);
  return ToHost(read);
}

int Evaluation::FindResult(const std::string& name) const {
  for (size_t i = 0; i < step_.results.size(); ++i) {
    if (step_.results[i].name == name) return static_cast<int>(i);
  }
  return -1;
}

}  // namespace minka
