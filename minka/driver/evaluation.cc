#include "minka/driver/evaluation.h"

#include <algorithm>
#include <set>
#include <utility>

#include "minka/base/status.h"
#include "minka/driver/prepare.h"

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

absl::StatusOr<std::unique_ptr<StepExecutor>> CompileOnMesh(const Step& step,
                                                            const std::vector<int>& numbers,
                                                            const Parallelized& training,
                                                            PlanRequest request) {
  const Mesh& mesh = training.plan().stage.mesh;
  request.meshes = {mesh};
  const StepExecutor& trained = training.runner().executor();
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (numbers[i] < 0) continue;
    request.search.pins.push_back(
        fmt::format("{}={}", step.parameters[i].name,
                    ToString(trained.ParameterLayout(numbers[i]).sharding, mesh)));
  }
  const PlanSource source = [&](const Step& prepared,
                                std::optional<int64_t>) -> SearchResult<Plan> {
    ASSIGN_OR_RETURN(PlanResult result, PlanStep(prepared, request));
    return std::move(result.candidates[result.best].plan);
  };
  ASSIGN_OR_RETURN(CompiledStep compiled, Compile(step, source, training.session(), {}));
  return std::move(compiled.executor);
}

// What a pipeline holds rows of, it reads as rows.
absl::StatusOr<SplitStep> SplitAs(const Parallelized& training, const Step& step) {
  std::set<std::string> stacked;
  const RowNumbers& rows = training.rows().parameters;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].size() > 1) stacked.insert(training.given().parameters[i].name);
  }
  return SplitStacks(step, stacked);
}

absl::StatusOr<std::unique_ptr<StepExecutor>> CompileAsPipeline(const SplitStep& split,
                                                                const std::vector<int>& numbers,
                                                                const Parallelized& training,
                                                                PlanRequest request) {
  const Step& step = split.step;
  const PlannedPipeline& trained = *training.pipeline();
  request.micro_batches = MicroBatchesOf(trained.plan);
  request.pipeline = PipelineOptions{.layers = trained.plan.layers,
                                     .stage_of_layer = trained.plan.stage_of_layer,
                                     .meshes = trained.meshes(),
                                     .schedule = "inference"};
  // Which stages read a parameter is known once the step is cut.
  ASSIGN_OR_RETURN(const Step prepared, Prepare(step, {.micro_batches = request.micro_batches,
                                                       .layers = trained.plan.layers,
                                                       .unrolls_loops = true}));
  ASSIGN_OR_RETURN(const StagedStep staged,
                   CutIntoStages(prepared, {.stage_of_layer = trained.plan.stage_of_layer}));
  std::vector<StageSearchOptions>& of_stages = request.pipeline->stage_search;
  of_stages.resize(staged.stages.size());
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (numbers[i] < 0) continue;
    const ArrayLayout layout = training.runner().executor().ParameterLayout(numbers[i]);
    for (const StagePort& port : staged.parameters[i]) {
      const Mesh& mesh = trained.plan.stages[port.stage].plan.stage.mesh;
      if (mesh != layout.mesh) continue;
      of_stages[port.stage].pins.push_back(
          fmt::format("{}={}", step.parameters[i].name, ToString(layout.sharding, mesh)));
    }
  }
  ASSIGN_OR_RETURN(PlannedPipeline planned, PlanPipeline(split, request));
  return CompilePipeline(planned, training.session());
}

}  // namespace

absl::StatusOr<Evaluation> Evaluation::Create(const TracedStep& traced,
                                              const Parallelized& training, const Cluster& cluster,
                                              const CostModelChoice& cost_model) {
  ASSIGN_OR_RETURN(SplitStep split, SplitAs(training, traced.step));
  ASSIGN_OR_RETURN(std::vector<int> numbers, TrainingParameters(split.step, training));
  // Every parameter is pinned: whose pin it is says nothing.
  const PlanRequest request{.cluster = cluster, .names_culprits = false, .cost_model = cost_model};
  absl::StatusOr<std::unique_ptr<StepExecutor>> executor =
      training.pipeline() != nullptr ? CompileAsPipeline(split, numbers, training, request)
                                     : CompileOnMesh(split.step, numbers, training, request);
  if (!executor.ok()) return WithContext(executor.status(), "the evaluation");
  return Evaluation(std::move(split.step), std::move(numbers), training, *std::move(executor));
}

Evaluation::Evaluation(Step step, std::vector<int> training_parameters,
                       const Parallelized& training, std::unique_ptr<StepExecutor> executor)
    : step_(std::move(step)),
      training_parameters_(std::move(training_parameters)),
      executor_(std::move(executor)),
      copies_(training_parameters_.size()) {
  for (int i = 0; i < static_cast<int>(copies_.size()); ++i) {
    const int trained = training_parameters_[i];
    if (trained < 0) continue;
    const bool lies_as_trained =
        executor_->NumPlaces(i) == 1 &&
        executor_->ParameterLayout(i) == training.runner().executor().ParameterLayout(trained);
    if (!lies_as_trained) copies_[i].emplace();
  }
}

absl::StatusOr<DistributedArray*> Evaluation::CopyOf(int parameter, const State& state) {
  Copy& copy = *copies_[parameter];
  if (copy.of_step != state.num_steps) {
    ASSIGN_OR_RETURN(const Literal value, state.arrays[training_parameters_[parameter]].ToHost());
    ASSIGN_OR_RETURN(copy.array, executor_->Put(parameter, value));
    copy.of_step = state.num_steps;
  }
  return &copy.array;
}

absl::StatusOr<std::vector<Literal>> Evaluation::Run(State& state, const Batch& batch) {
  std::vector<DistributedArray> inputs(training_parameters_.size());
  std::vector<DistributedArray*> arguments;
  size_t next = 0;
  for (int i = 0; i < static_cast<int>(training_parameters_.size()); ++i) {
    if (copies_[i]) {
      ASSIGN_OR_RETURN(arguments.emplace_back(), CopyOf(i, state));
    } else if (training_parameters_[i] >= 0) {
      arguments.push_back(&state.arrays[training_parameters_[i]]);
    } else {
      if (next == batch.size()) return InvalidArgument("the batch has {} arrays only", next);
      ASSIGN_OR_RETURN(inputs[i], executor_->Put(i, batch[next++]));
      arguments.push_back(&inputs[i]);
    }
  }
  ASSIGN_OR_RETURN(const std::vector<DistributedArray> results, executor_->Run(arguments));
  std::vector<const DistributedArray*> read;
  for (const DistributedArray& result : results) read.push_back(&result);
  return ToHost(read);
}

int64_t Evaluation::num_copied() const {
  return std::ranges::count_if(copies_, [](const auto& copy) { return copy.has_value(); });
}

int Evaluation::FindResult(const std::string& name) const {
  for (size_t i = 0; i < step_.results.size(); ++i) {
    if (step_.results[i].name == name) return static_cast<int>(i);
  }
  return -1;
}

}  // namespace minka
