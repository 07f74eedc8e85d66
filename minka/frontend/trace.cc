#include "minka/frontend/trace.h"

#include <algorithm>
#include <tuple>

#include "minka/base/status.h"
#include "minka/frontend/gradient.h"

namespace minka {
namespace {

// What a dry run of the model finds out.
struct ModelFacts {
  std::vector<ParameterSpec> parameters;
  bool uses_key = false;
};

absl::StatusOr<ModelFacts> FindFacts(const Model& model, const DtypePolicy& dtype, bool training) {
  Graph graph(model.name);
  ParameterStore store(graph, dtype, training);
  std::vector<Tensor> inputs;
  inputs.reserve(model.inputs.size());
  for (const BatchInput& input : model.inputs) {
    inputs.push_back(graph.Parameter(input.shape, input.name));
  }
  model.forward(Scope(store, ""), inputs);
  RETURN_IF_ERROR(graph.status());
  return ModelFacts{store.specs(), store.uses_key()};
}

// A step under construction: module and description side by side.
class StepBuilder {
 public:
  StepBuilder(const Model& model, const TraceOptions& options, bool training)
      : model_(model),
        options_(options),
        graph_(model.name),
        store_(graph_, options.dtype, training) {}

  Tensor AddParameter(const Shape& shape, const ParameterInfo& info,
                      std::optional<Initializer> initializer) {
    const ScopeName name(graph_, info.name);
    traced_.step.parameters.push_back(info);
    traced_.initializers.push_back(initializer);
    return graph_.Parameter(shape, info.name);
  }

  void AddBatch() {
    for (const BatchInput& input : model_.inputs) {
      batch_.push_back(AddParameter(
          input.shape, {.role = ParameterRole::kBatch, .name = input.name, .batch_dim = 0}, {}));
    }
  }

  void AddResult(ResultRole role, const std::string& name, Tensor value) {
    traced_.step.results.push_back({role, name});
    results_.push_back(value.value());
  }

  // The new value of the parameter whose number is the number of results so far.
  void AddNewState(Tensor value) {
    const int number = static_cast<int>(results_.size());
    traced_.step.parameters[number].state_result = number;
    graph_.module().AddAlias({.result = number, .parameter = number});
    AddResult(ResultRole::kState, traced_.step.parameters[number].name, value);
  }

  void AddMark(MarkKind kind, Value value, int index = 0) {
    traced_.step.marks.push_back({.kind = kind, .value = value, .index = index});
  }

  absl::StatusOr<ModelOutput> Forward() {
    ModelOutput output = model_.forward(Scope(store_, ""), batch_);
    RETURN_IF_ERROR(graph_.status());
    if (!output.loss.valid()) return InvalidArgument("model {} returned no loss", model_.name);
    AddMark(MarkKind::kLoss, output.loss.value());
    for (size_t i = 1; i < store_.blocks().size(); ++i) {
      AddMark(MarkKind::kLayerBoundary, store_.blocks()[i].input, static_cast<int>(i) - 1);
    }
    return output;
  }

  absl::StatusOr<TracedStep> Finish() && {
    RETURN_IF_ERROR(graph_.status());
    graph_.builder().SetResults(results_);
    ASSIGN_OR_RETURN(traced_.step.module, std::move(graph_.module()).Finish());
    std::ranges::sort(traced_.step.marks, {}, [](const Mark& mark) {
      return std::tuple(mark.value, mark.kind, mark.index);
    });
    traced_.inputs = model_.inputs;
    return std::move(traced_);
  }

  Graph& graph() { return graph_; }
  ParameterStore& store() { return store_; }

 private:
  const Model& model_;
  const TraceOptions& options_;
  Graph graph_;
  ParameterStore store_;
  TracedStep traced_;
  std::vector<Tensor> batch_;
  std::vector<Value> results_;
};

// State of the optimizer, in the order of the step's parameters.
struct OptimizerState {
  std::vector<std::vector<Tensor>> slots;  // by slot, then by parameter
  Tensor count;
};

OptimizerState AddOptimizerState(StepBuilder& builder, const Optimizer& optimizer,
                                 std::span<const ParameterSpec> parameters) {
  OptimizerState state;
  for (const std::string& slot : optimizer.slots) {
    state.slots.emplace_back();
    for (const ParameterSpec& spec : parameters) {
      state.slots.back().push_back(builder.AddParameter(
          spec.shape,
          {.role = ParameterRole::kState, .name = fmt::format("optimizer/{}/{}", slot, spec.name)},
          Initializer{}));
    }
  }
  if (optimizer.counts_updates) {
    state.count = builder.AddParameter({ElementType::kS32, {}},
                                       {.role = ParameterRole::kState, .name = "optimizer/count"},
                                       Initializer{});
  }
  return state;
}

// Records all updates and makes the new state the step's first results.
void ApplyUpdates(StepBuilder& builder, const Optimizer& optimizer,
                  std::span<const ParameterSpec> specs, std::span<const Tensor> parameters,
                  std::span<const Tensor> gradients, const OptimizerState& state) {
  Graph& graph = builder.graph();
  Tensor new_count, steps;
  if (optimizer.counts_updates) {
    const ScopeName name(graph, "apply/count");
    new_count = state.count + 1.0;
    steps = Convert(new_count, ElementType::kF32);
  }
  std::string former = graph.SetScope("apply");
  const std::vector<Tensor> scalars = optimizer.prepare(graph, steps);
  graph.SetScope(former);
  std::vector<ParameterUpdate> updates;
  for (size_t i = 0; i < specs.size(); ++i) {
    const ScopeName name(graph, "apply/" + specs[i].name);
    std::vector<Tensor> slots;
    slots.reserve(state.slots.size());
    for (const std::vector<Tensor>& slot : state.slots) slots.push_back(slot[i]);
    updates.push_back(optimizer.update(specs[i], parameters[i], gradients[i], slots, scalars));
  }
  for (const ParameterUpdate& update : updates) builder.AddNewState(update.parameter);
  for (size_t slot = 0; slot < optimizer.slots.size(); ++slot) {
    for (const ParameterUpdate& update : updates) builder.AddNewState(update.slots[slot]);
  }
  if (optimizer.counts_updates) builder.AddNewState(new_count);
}

std::vector<Tensor> AddParameters(StepBuilder& builder, std::span<const ParameterSpec> specs,
                                  ParameterRole role) {
  std::vector<Tensor> parameters;
  for (const ParameterSpec& spec : specs) {
    parameters.push_back(builder.AddParameter(
        spec.shape, {.role = role, .name = "params/" + spec.name}, spec.initializer));
    builder.store().Declare(spec, parameters.back());
  }
  return parameters;
}

GradientOptions RematOptions(const TraceOptions& options, const ParameterStore& store) {
  GradientOptions gradient;
  if (!options.rematerialize) return gradient;
  for (const BlockRegion& block : store.blocks()) {
    gradient.remat_regions.push_back(block.instructions);
  }
  return gradient;
}

}  // namespace

absl::StatusOr<TracedStep> Trace(const Model& model, const Optimizer& optimizer,
                                 const TraceOptions& options) {
  ASSIGN_OR_RETURN(const ModelFacts facts, FindFacts(model, options.dtype, /*training=*/true));
  StepBuilder builder(model, options, /*training=*/true);
  const std::vector<Tensor> parameters =
      AddParameters(builder, facts.parameters, ParameterRole::kState);
  const OptimizerState state = AddOptimizerState(builder, optimizer, facts.parameters);
  builder.AddBatch();
  if (facts.uses_key) {
    builder.store().SetKey(builder.AddParameter({ElementType::kU32, {2}},
                                                {.role = ParameterRole::kKey, .name = "key"}, {}));
  }
  ASSIGN_OR_RETURN(const ModelOutput output, builder.Forward());
  ASSIGN_OR_RETURN(
      const GradientResult gradients,
      Gradients(builder.graph(), output.loss, parameters, RematOptions(options, builder.store())));
  for (size_t i = 0; i < parameters.size(); ++i) {
    builder.AddMark(MarkKind::kGradient, gradients.gradients[i].value(), static_cast<int>(i));
  }
  for (size_t i = 0; i < gradients.recomputations.size(); ++i) {
    const Value barrier = gradients.recomputations[i];
    if (barrier.instruction >= 0)
      builder.AddMark(MarkKind::kRematRegion, barrier, static_cast<int>(i));
  }
  ApplyUpdates(builder, optimizer, facts.parameters, parameters, gradients.gradients, state);
  RETURN_IF_ERROR(builder.graph().status());
  builder.AddResult(ResultRole::kLoss, "loss", output.loss);
  for (const NamedTensor& metric : output.metrics) {
    builder.AddResult(ResultRole::kMetric, metric.name, metric.value);
  }
  return std::move(builder).Finish();
}

absl::StatusOr<TracedStep> TraceEvaluation(const Model& model, const TraceOptions& options) {
  ASSIGN_OR_RETURN(const ModelFacts facts, FindFacts(model, options.dtype, /*training=*/false));
  StepBuilder builder(model, options, /*training=*/false);
  AddParameters(builder, facts.parameters, ParameterRole::kConstant);
  builder.AddBatch();
  ASSIGN_OR_RETURN(const ModelOutput output, builder.Forward());
  builder.AddResult(ResultRole::kLoss, "loss", output.loss);
  for (const std::vector<NamedTensor>* tensors : {&output.metrics, &output.outputs}) {
    for (const NamedTensor& tensor : *tensors) {
      builder.AddResult(ResultRole::kMetric, tensor.name, tensor.value);
    }
  }
  return std::move(builder).Finish();
}

absl::StatusOr<std::vector<ParameterSpec>> ParametersOf(const Model& model,
                                                        const DtypePolicy& dtype) {
  ASSIGN_OR_RETURN(ModelFacts facts, FindFacts(model, dtype, /*training=*/true));
  return std::move(facts.parameters);
}

int64_t NumElements(std::span<const ParameterSpec> parameters) {
  int64_t count = 0;
  for (const ParameterSpec& spec : parameters) count += spec.shape.num_elements();
  return count;
}

}  // namespace minka
