#include "minka/frontend/trace.h"

#include <algorithm>
#include <tuple>

#include "minka/base/status.h"
#include "minka/frontend/gradient.h"

namespace minka {
namespace {

// What a dry run of the model finds out.
struct ModelFacts {
  std::vector<ParameterSpec> parameters, states;
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
  return ModelFacts{store.specs(), store.states(), store.uses_key()};
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
    const std::vector<BlockEnds>& blocks = store_.blocks();
    int number = 0;
    for (const BlockEnds& block : blocks) {
      AddMark(MarkKind::kLayerBoundary, block.input, number++);
    }
    if (!blocks.empty()) AddMark(MarkKind::kLayerBoundary, blocks.back().output, number);
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

// State beside the parameters, in the order of the step's parameters.
struct TrainingState {
  std::vector<std::vector<Tensor>> slots;  // by slot, then by parameter; invalid: has none
  Tensor count;
  LossScaleState loss_scale;
};

Tensor AddState(StepBuilder& builder, const Shape& shape, const std::string& name,
                const Initializer& initializer = {}) {
  return builder.AddParameter(shape, {.role = ParameterRole::kState, .name = name}, initializer);
}

TrainingState AddTrainingState(StepBuilder& builder, const Optimizer& optimizer,
                               std::span<const ParameterSpec> parameters,
                               const std::optional<LossScale>& loss_scale) {
  TrainingState state;
  for (const OptimizerSlot& slot : optimizer.slots) {
    state.slots.emplace_back();
    for (const ParameterSpec& spec : parameters) {
      const std::optional<Shape> shape = slot.shape ? slot.shape(spec) : spec.shape;
      const std::string name = fmt::format("optimizer/{}/{}", slot.name, spec.name);
      state.slots.back().push_back(shape ? AddState(builder, *shape, name) : Tensor());
    }
  }
  if (HasCount(optimizer)) {
    state.count = AddState(builder, {ElementType::kS32, {}}, "optimizer/count");
  }
  if (loss_scale && loss_scale->is_dynamic()) {
    state.loss_scale = {
        .scale = AddState(builder, {ElementType::kF32, {}}, "loss_scale/scale",
                          {.kind = Initializer::Kind::kConstant, .scale = loss_scale->initial}),
        .good_updates = AddState(builder, {ElementType::kS32, {}}, "loss_scale/good_updates")};
  }
  return state;
}

// The former value where the update is skipped.
Tensor KeptIfFinite(Tensor finite, Tensor next, Tensor former) {
  if (!finite.valid() || !next.valid()) return next;
  return Where(Broadcast(finite, next.dims(), {}), next, former);
}

// Records the updates of a step and makes the new state the step's first results.
class UpdateRecorder {
 public:
  UpdateRecorder(StepBuilder& builder, const Optimizer& optimizer, const TrainingState& state,
                 ReadyGradients gradients)
      : builder_(builder), optimizer_(optimizer), state_(state), gradients_(std::move(gradients)) {}

  void Record(std::span<const ParameterSpec> specs, std::span<const Tensor> parameters,
              const std::optional<LossScale>& loss_scale) {
    PrepareScalars();
    std::vector<ParameterUpdate> updates;
    for (size_t i = 0; i < specs.size(); ++i) {
      updates.push_back(Update(specs[i], parameters[i], i));
    }
    for (const ParameterUpdate& update : updates) builder_.AddNewState(update.parameter);
    for (size_t slot = 0; slot < state_.slots.size(); ++slot) {
      for (size_t i = 0; i < specs.size(); ++i) {
        if (state_.slots[slot][i].valid()) builder_.AddNewState(updates[i].slots[slot]);
      }
    }
    if (state_.count.valid()) builder_.AddNewState(new_count_);
    if (!state_.loss_scale.scale.valid()) return;
    const ScopeName name(builder_.graph(), "apply/loss_scale");
    const LossScaleState next = NextLossScale(*loss_scale, state_.loss_scale, gradients_.finite);
    builder_.AddNewState(next.scale);
    builder_.AddNewState(next.good_updates);
  }

 private:
  void PrepareScalars() {
    scalars_.constant_rate = optimizer_.learning_rate.peak;
    if (!state_.count.valid()) return;
    const ScopeName name(builder_.graph(), "apply/count");
    const Tensor count = state_.count + 1.0;
    new_count_ = Kept(count, state_.count);
    const Tensor updates = Convert(count, ElementType::kF32);
    if (!optimizer_.learning_rate.is_constant()) {
      scalars_.rate = RateAt(optimizer_.learning_rate, updates);
    }
    if (optimizer_.prepare) scalars_.own = optimizer_.prepare(updates);
  }

  ParameterUpdate Update(const ParameterSpec& spec, Tensor parameter, size_t number) {
    const ScopeName name(builder_.graph(), "apply/" + spec.name);
    std::vector<Tensor> slots;
    slots.reserve(state_.slots.size());
    for (const std::vector<Tensor>& slot : state_.slots) slots.push_back(slot[number]);
    ParameterUpdate update = optimizer_.update({.spec = spec,
                                                .parameter = parameter,
                                                .gradient = gradients_.gradients[number],
                                                .slots = slots,
                                                .scalars = scalars_});
    update.parameter = Kept(update.parameter, parameter);
    for (size_t i = 0; i < slots.size(); ++i) update.slots[i] = Kept(update.slots[i], slots[i]);
    return update;
  }

  Tensor Kept(Tensor next, Tensor former) const {
    return KeptIfFinite(gradients_.finite, next, former);
  }

  StepBuilder& builder_;
  const Optimizer& optimizer_;
  const TrainingState& state_;
  ReadyGradients gradients_;
  UpdateScalars scalars_;
  Tensor new_count_;
};

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

void AddModelStates(StepBuilder& builder, std::span<const ParameterSpec> states,
                    ParameterRole role) {
  for (const ParameterSpec& spec : states) {
    builder.store().DeclareState(
        spec, builder.AddParameter(spec.shape, {.role = role, .name = "state/" + spec.name},
                                   spec.initializer));
  }
}

// The states after the step; what the model left alone stays as it is.
void KeepModelStates(StepBuilder& builder, std::span<const ParameterSpec> states, Tensor finite) {
  for (const ParameterSpec& spec : states) {
    const Tensor value = builder.store().NewState(spec.name);
    const Tensor former = builder.store().StateValue(spec.name);
    builder.AddNewState(value.valid() ? KeptIfFinite(finite, value, former) : former);
  }
}

// What the loss is multiplied by; invalid: nothing.
Tensor ScaleOf(Graph& graph, const std::optional<LossScale>& options, const LossScaleState& state) {
  if (!options || state.scale.valid()) return state.scale;
  return graph.Scalar(ElementType::kF32, options->initial);
}

}  // namespace

absl::StatusOr<TracedStep> Trace(const Model& model, const Optimizer& optimizer,
                                 const TraceOptions& options) {
  ASSIGN_OR_RETURN(const ModelFacts facts, FindFacts(model, options.dtype, /*training=*/true));
  const std::optional<LossScale>& loss_scale = options.scaling.loss_scale;
  StepBuilder builder(model, options, /*training=*/true);
  const std::vector<Tensor> parameters =
      AddParameters(builder, facts.parameters, ParameterRole::kState);
  const TrainingState state = AddTrainingState(builder, optimizer, facts.parameters, loss_scale);
  AddModelStates(builder, facts.states, ParameterRole::kState);
  builder.AddBatch();
  if (facts.uses_key) {
    builder.store().SetKey(builder.AddParameter({ElementType::kU32, {2}},
                                                {.role = ParameterRole::kKey, .name = "key"}, {}));
  }
  ASSIGN_OR_RETURN(const ModelOutput output, builder.Forward());
  const Tensor scale = ScaleOf(builder.graph(), loss_scale, state.loss_scale);
  const Tensor loss =
      scale.valid() ? output.loss * Convert(scale, output.loss.type()) : output.loss;
  ASSIGN_OR_RETURN(const std::vector<Tensor> gradients,
                   Gradients(builder.graph(), loss, parameters));
  for (size_t i = 0; i < parameters.size(); ++i) {
    builder.AddMark(MarkKind::kGradient, gradients[i].value(), static_cast<int>(i));
  }
  const ReadyGradients ready = ScaleGradients(builder.graph(), gradients, scale, options.scaling);
  UpdateRecorder(builder, optimizer, state, ready).Record(facts.parameters, parameters, loss_scale);
  KeepModelStates(builder, facts.states, ready.finite);
  RETURN_IF_ERROR(builder.graph().status());
  builder.AddResult(ResultRole::kLoss, "loss", output.loss);
  for (const NamedTensor& metric : output.metrics) {
    builder.AddResult(ResultRole::kMetric, metric.name, metric.value);
  }
  if (ready.norm.valid()) builder.AddResult(ResultRole::kMetric, "gradient_norm", ready.norm);
  return std::move(builder).Finish();
}

absl::StatusOr<TracedStep> TraceEvaluation(const Model& model, const TraceOptions& options) {
  ASSIGN_OR_RETURN(const ModelFacts facts, FindFacts(model, options.dtype, /*training=*/false));
  StepBuilder builder(model, options, /*training=*/false);
  AddParameters(builder, facts.parameters, ParameterRole::kConstant);
  AddModelStates(builder, facts.states, ParameterRole::kConstant);
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
