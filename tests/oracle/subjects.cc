#include "tests/oracle/subjects.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "minka/base/check.h"
#include "minka/base/status.h"
#include "minka/driver/inputs.h"
#include "minka/ir/builder.h"
#include "minka/models/gpt.h"
#include "minka/models/mlp.h"
#include "minka/models/wresnet.h"
#include "tests/acceptance/programs.h"
#include "tests/oracle/rewrite.h"

namespace minka {
namespace {

Model ModelOf(const std::string& name) {
  if (name == "mlp") return Mlp({.batch = 16, .hidden = 32, .num_layers = 2});
  if (name == "wresnet") {
    return WideResNet({.batch = 16,
                       .image_size = 4,
                       .num_classes = 8,
                       .width = 4,
                       .blocks_per_stage = {1},
                       .small_images = true});
  }
  GptConfig config{.batch = 16,
                   .sequence = 8,
                   .vocabulary = 32,
                   .hidden = 16,
                   .num_layers = 1,
                   .num_heads = 4,
                   .dropout = 0.1};
  if (name == "moe") {
    config.dropout = 0;
    config.mlp_factor = 2;
    config.experts = GptExperts{.num_experts = 4, .group_size = 16};
  } else {
    MINKA_CHECK(name == "gpt", "no model {}", name);
  }
  return Gpt(config);
}

DtypePolicy TypesOf(const std::string& name) {
  if (name == "bf16") return {.compute = ElementType::kBF16};
  if (name == "f16") return {.compute = ElementType::kF16};
  if (name == "bf16-state") return {.compute = ElementType::kBF16};
  MINKA_CHECK(name == "f32", "no type {}", name);
  return {};
}

Optimizer OptimizerOf(const std::string& name) {
  if (name == "sgd") return Sgd({.momentum = 0.9});
  if (name == "lion") return Lion();
  MINKA_CHECK(name == "adamw", "no optimizer {}", name);
  return AdamW({.weight_decay = 0.01});
}

// Values are drawn in f32 and rounded to the type of the state.
Literal Drawn(const Initializer& initializer, const Shape& shape, const std::string& name,
              uint64_t seed) {
  if (!IsFloat(shape.type)) return InitialValue(initializer, shape, name, seed);
  const Literal value = InitialValue(initializer, {ElementType::kF32, shape.dims}, name, seed);
  return ConvertLiteral(value, shape.type);
}

// The first of `num_slices` slices of a batch, over and over.
void RepeatFirstSlice(Literal& batch, int num_slices) {
  const std::string slice = batch.bytes->substr(0, batch.bytes->size() / num_slices);
  std::string repeated;
  for (int i = 0; i < num_slices; ++i) repeated += slice;
  batch.bytes = std::make_shared<const std::string>(std::move(repeated));
}

std::vector<std::string> PinsOf(const std::string& model) {
  if (model == "mlp") return {"params/*kernel=[x,-]"};
  if (model == "wresnet") return {"convolution=[-,x,-,-]"};
  return {"params/embedding/tokens/embedding=[x,-]"};
}

// The step whose floating-point state is kept in bf16 and converted where it enters and leaves.
TracedStep WithNarrowState(const TracedStep& traced) {
  const Computation& entry = traced.step.module.entry_computation();
  TracedStep narrow = traced;
  ModuleBuilder target(traced.step.module.name);
  std::map<ComputationId, ComputationId> called;
  ComputationBuilder b = target.Entry();
  std::vector<std::vector<Value>> values;
  const auto is_narrow = [&](int parameter) {
    return traced.step.parameters[parameter].role == ParameterRole::kState &&
           entry.instructions[entry.parameters[parameter]].shape().type == ElementType::kF32;
  };
  for (Instruction instruction : entry.instructions) {
    for (Value& operand : instruction.operands) {
      operand = values[operand.instruction][operand.result];
    }
    for (ComputationId& id : instruction.called) {
      const auto [known, is_new] = called.try_emplace(id);
      if (is_new) known->second = target.Import(traced.step.module, id);
      id = known->second;
    }
    const bool converts = instruction.opcode == Opcode::kParameter &&
                          is_narrow(static_cast<int>(instruction.As<ParameterAttributes>().number));
    if (converts) instruction.results[0].type = ElementType::kBF16;
    std::vector<Value> results = AppendAsItIs(b, instruction);
    if (converts) results[0] = b.Convert(results[0], ElementType::kF32);
    values.push_back(std::move(results));
  }
  std::vector<Value> results;
  for (const Value value : entry.results)
    results.push_back(values[value.instruction][value.result]);
  for (int i = 0; i < static_cast<int>(traced.step.parameters.size()); ++i) {
    Value& result = results[std::max(0, traced.step.parameters[i].state_result)];
    if (is_narrow(i)) result = b.Convert(result, ElementType::kBF16);
  }
  b.SetResults(std::move(results));
  for (const Alias& alias : traced.step.module.aliases) target.AddAlias(alias);
  auto finished = std::move(target).Finish();
  MINKA_CHECK(finished.ok(), "{}", Message(finished.status()));
  narrow.step.module = *std::move(finished);
  for (Mark& mark : narrow.step.marks) {
    mark.value = values[mark.value.instruction][mark.value.result];
  }
  return narrow;
}

bool TakesBatchStatistics(const Subject& subject) { return subject.model == "wresnet"; }

}  // namespace

bool IsJax(const Subject& subject) { return subject.model.starts_with("jax/"); }

TracedStep TraceSubject(const Subject& subject) {
  if (IsJax(subject)) {
    auto step = JaxStep(subject.model.substr(4));
    MINKA_CHECK(step.ok(), "{}", Message(step.status()));
    const size_t num_parameters = step->parameters.size();
    return {.step = *std::move(step),
            .initializers = std::vector<std::optional<Initializer>>(num_parameters)};
  }
  auto traced = Trace(ModelOf(subject.model), OptimizerOf(subject.optimizer),
                      {.dtype = TypesOf(subject.type)});
  MINKA_CHECK(traced.ok(), "{}", Message(traced.status()));
  return subject.type == "bf16-state" ? WithNarrowState(*traced) : *std::move(traced);
}

ParallelMethod MethodOf(const Subject& subject, const SubjectPlan& plan) {
  const bool per_micro_batch = plan.num_micro_batches > 1 && TakesBatchStatistics(subject);
  SearchOptions search{.time_limit_seconds = 4};
  if (plan.has_pins) search.pins = PinsOf(subject.model);
  return MakeMethod(
      *ParseMethod(plan.method), plan.mesh, std::move(search),
      {.num_micro_batches = plan.num_micro_batches, .per_micro_batch = per_micro_batch},
      RematChoice{RematPolicy::kNone});
}

int NumEqualSlices(const Subject& subject, const SubjectPlan& plan) {
  return TakesBatchStatistics(subject) ? plan.num_micro_batches : 1;
}

StepInputs InputsOf(const TracedStep& traced, uint64_t seed, int num_equal_slices) {
  return [&traced, seed, num_equal_slices](int step) -> absl::StatusOr<ParameterValues> {
    const Computation& entry = traced.step.module.entry_computation();
    ParameterValues values(traced.step.parameters.size());
    for (int i = 0; i < static_cast<int>(values.size()); ++i) {
      if (const auto& initializer = traced.initializers[i]) {
        const Shape& shape = entry.instructions[entry.parameters[i]].shape();
        values[i] = Drawn(*initializer, shape, traced.step.parameters[i].name, seed);
        continue;
      }
      ASSIGN_OR_RETURN(values[i], RandomInput(traced.step, i, 1000 * seed + step));
      if (traced.step.parameters[i].batch_dim == 0) RepeatFirstSlice(values[i], num_equal_slices);
    }
    return values;
  };
}

}  // namespace minka
