// PlanToJson, PipelinePlanToJson.
#include <algorithm>
#include <string>
#include <vector>

#include "minka/ir/shape.h"
#include "minka/plan/pipeline_plan.h"
#include "minka/plan/plan_json.h"
#include "minka/plan/reshard_text.h"
#include "nlohmann/json.hpp"

namespace minka {
namespace {

using Json = nlohmann::ordered_json;

Json ParameterJson(const ParameterPlan& parameter, const Mesh& mesh) {
  Json labels = Json::object();
  for (size_t axis = 0; axis < parameter.labels.size(); ++axis) {
    labels[mesh.axis(static_cast<int>(axis)).name] = parameter.labels[axis];
  }
  return Json::object({{"name", parameter.name},
                       {"role", parameter.role},
                       {"type", TypeName(parameter.shape.type)},
                       {"shape", parameter.shape.dims},
                       {"sharding", ToString(parameter.sharding, mesh)},
                       {"labels", std::move(labels)},
                       {"bytes_per_device", parameter.bytes_per_device}});
}

Json OperationJson(const Module& module, const StagePlan& stage, InstructionId id) {
  const Computation& computation = module.entry_computation();
  const OpPlan& op = stage.ops[id];
  const OpRule rule = RuleFor(module, computation, id);
  return Json::array({computation.instructions[id].name, ToString(op.strategy, rule, stage.mesh),
                      op.operand_versions, kPhaseNames[static_cast<size_t>(op.phase)], op.cost_us,
                      op.followed});
}

Json StepsJson(const std::vector<ReshardStep>& steps, const Mesh& mesh) {
  Json json = Json::array();
  for (const ReshardStep& step : steps) json.push_back(ToString(step, mesh));
  return json;
}

Json ReshardJson(const Module& module, const StagePlan& stage, const Reshard& reshard) {
  const Computation& computation = module.entry_computation();
  const bool at_end = reshard.before == computation.num_instructions();
  return Json::array({computation.instructions[reshard.value.instruction].name,
                      reshard.value.instruction, reshard.value.result, reshard.from_version,
                      ToString(reshard.from, stage.mesh), ToString(reshard.to, stage.mesh),
                      StepsJson(reshard.steps, stage.mesh),
                      at_end ? Json(kAtEnd) : Json(reshard.before), reshard.combine_group,
                      reshard.isolated, reshard.cost_us});
}

void AppendCalledJson(const Module& module, const Computation& computation, InstructionId caller,
                      const std::vector<CalledPlan>& called, const Mesh& mesh, Json& list);

Json CalledJson(const Module& module, const Computation& computation, InstructionId caller,
                const CalledPlan& plan, const Mesh& mesh) {
  Json parameters = Json::array();
  for (const Sharding& parameter : plan.parameters) parameters.push_back(ToString(parameter, mesh));
  Json operations = Json::array(), called = Json::array();
  for (InstructionId id = 0; id < computation.num_instructions(); ++id) {
    const CalledPlan::Operation& operation = plan.operations[id];
    const OpRule rule = RuleFor(module, computation, id);
    operations.push_back(
        Json::array({computation.instructions[id].name, ToString(operation.strategy, rule, mesh),
                     operation.operand_versions}));
    AppendCalledJson(module, computation, id, operation.called, mesh, called);
  }
  Json reshards = Json::array();
  for (const CalledReshard& reshard : plan.reshards) {
    reshards.push_back(
        Json::array({computation.instruction(reshard.value).name, reshard.value.instruction,
                     reshard.value.result, ToString(reshard.from, mesh), ToString(reshard.to, mesh),
                     StepsJson(reshard.steps, mesh)}));
  }
  Json json = Json::object({{"caller", caller},
                            {"computation", computation.name},
                            {"parameters", std::move(parameters)},
                            {"operations", std::move(operations)},
                            {"reshards", std::move(reshards)},
                            {"results", plan.result_versions}});
  if (!called.empty()) json["called"] = std::move(called);
  return json;
}

void AppendCalledJson(const Module& module, const Computation& computation, InstructionId caller,
                      const std::vector<CalledPlan>& called, const Mesh& mesh, Json& list) {
  for (size_t index = 0; index < called.size(); ++index) {
    const ComputationId id = computation.instructions[caller].called[index];
    list.push_back(CalledJson(module, module.computations[id], caller, called[index], mesh));
  }
}

Json StageJson(const Module& module, const StagePlan& stage) {
  Json operations = Json::array(), called = Json::array();
  for (InstructionId id = 0; id < static_cast<InstructionId>(stage.ops.size()); ++id) {
    operations.push_back(OperationJson(module, stage, id));
    AppendCalledJson(module, module.entry_computation(), id, stage.ops[id].called, stage.mesh,
                     called);
  }
  Json reshards = Json::array();
  for (const Reshard& reshard : stage.reshards) {
    reshards.push_back(ReshardJson(module, stage, reshard));
  }
  Json json = Json::object({{"layers", stage.layers},
                            {"submesh", stage.submesh},
                            {"mesh", stage.mesh.ToString()},
                            {"step_time_us", stage.step_time_us},
                            {"peak_memory_bytes", stage.peak_memory_bytes},
                            {"operations", std::move(operations)},
                            {"reshards", std::move(reshards)},
                            {"results", stage.result_versions}});
  if (!called.empty()) json["called"] = std::move(called);
  return json;
}

Json OrNull(std::optional<double> value) { return value ? Json(*value) : Json(); }

Json RematJson(const RematChoice& choice) {
  Json remat = Json::array();
  for (const RematPolicy policy : choice) remat.push_back(RematPolicyName(policy));
  return remat;
}

Json PlanJson(const Plan& plan, const Module& module) {
  const Mesh& mesh = plan.stage.mesh;
  Json parameters = Json::array();
  for (const ParameterPlan& parameter : plan.parameters) {
    parameters.push_back(ParameterJson(parameter, mesh));
  }
  Json json = Json::object({
      {"schema_version", plan.schema_version},
      {"module_hash", plan.module_hash},
      {"options", plan.options},
      {"method", plan.method},
      {"cost_model", plan.cost_model},
      {"step_time_us", plan.step_time_us},
      {"peak_memory_bytes", plan.peak_memory_bytes},
      {"memory_tier", kMemoryTierNames[static_cast<size_t>(plan.memory_tier)]},
      {"state_bytes_per_device", plan.state_bytes_per_device},
      {"objective", plan.objective},
      {"lower_bound", plan.lower_bound},
      {"gap", OrNull(plan.gap)},
      {"sharding_gap", plan.sharding_gap},
      {"memory_price", plan.memory_price},
      {"stop_reason", plan.stop_reason},
      {"search_seconds", plan.search_seconds},
      {"collectives", plan.collectives},
      {"collective_bytes", plan.collective_bytes},
      {"num_parameters", plan.num_parameters},
      {"parameters", std::move(parameters)},
      {"num_micro_batches", plan.num_micro_batches},
      {"per_micro_batch", plan.per_micro_batch},
      {"remat", RematJson(plan.remat)},
      {"accumulators", plan.accumulators},
      {"schedule", plan.schedule},
      {"unsupported_ops", plan.unsupported_ops},
      {"unsupported_flops_share", plan.unsupported_flops_share},
      {"notes", plan.notes},
      {"stages", Json::array({StageJson(module, plan.stage)})},
  });
  if (plan.narrow_sums) json["narrow_sums"] = true;
  return json;
}

Json PipelineJson(const PipelinePlan& plan, std::span<const Module* const> modules) {
  Json stages = Json::array();
  for (size_t i = 0; i < plan.stages.size(); ++i) {
    const PipelineStagePlan& stage = plan.stages[i];
    stages.push_back(Json::object({{"layers", stage.plan.stage.layers},
                                   {"mesh_number", stage.mesh_number},
                                   {"forward_us", stage.forward_us},
                                   {"backward_us", stage.backward_us},
                                   {"weight_gradient_us", stage.weight_gradient_us},
                                   {"apply_us", stage.apply_us},
                                   {"send_forward_us", stage.send_forward_us},
                                   {"send_backward_us", stage.send_backward_us},
                                   {"plan", PlanJson(stage.plan, *modules[i])}}));
    if (stage.device.empty()) continue;
    stages.back()["kind"] = stage.kind;
    stages.back()["device"] = stage.device;
  }
  Json transfers = Json::array();
  for (const PlannedTransfers& of_meshes : plan.transfers) {
    transfers.push_back(
        Json::array({of_meshes.from_mesh, of_meshes.to_mesh, of_meshes.per_micro_batch,
                     of_meshes.num_values, of_meshes.num_messages, of_meshes.bytes}));
  }
  const auto* const automatic = std::get_if<AutoLayers>(&plan.layers);
  const auto* const manual = std::get_if<ManualLayers>(&plan.layers);
  Json json =
      Json::object({{"schema_version", kPlanSchemaVersion},
                    {"module_hash", plan.module_hash},
                    {"options", plan.options},
                    {"method", kPipelineMethod},
                    {"cost_model", plan.cost_model},
                    {"step_time_us", plan.step_time_us},
                    {"lower_bound_us", OrNull(plan.lower_bound_us)},
                    {"gap", OrNull(plan.gap)},
                    {"bubble", plan.bubble},
                    {"meshes_share_cores", plan.meshes_share_cores},
                    {"peak_memory_bytes", plan.peak_memory_bytes},
                    {"memory_tier", kMemoryTierNames[static_cast<size_t>(plan.memory_tier)]},
                    {"search_seconds", plan.search_seconds},
                    {"num_micro_batches", plan.num_micro_batches},
                    {"per_micro_batch", plan.per_micro_batch},
                    {"remat", RematJson(plan.remat)},
                    {"schedule", plan.schedule},
                    {"num_layers", automatic ? automatic->num_layers : 0},
                    {"layer_starts", manual ? manual->starts : std::vector<std::string>()},
                    {"stage_of_layer", plan.stage_of_layer},
                    {"notes", plan.notes},
                    {"transfers", std::move(transfers)},
                    {"stages", std::move(stages)}});
  if (plan.narrow_sums) json["narrow_sums"] = true;
  return json;
}

// A list of lists or objects.
bool IsTable(const Json& value) {
  return value.is_array() && !value.empty() && value[0].is_structured();
}

// The document and objects that hold tables one key per line, tables one row per line, all else on
// one line.
void Print(const Json& value, int indent, std::string& text) {
  const bool is_object =
      value.is_object() && (indent == 0 || std::any_of(value.begin(), value.end(), IsTable));
  const bool is_table = IsTable(value);
  if (!is_object && !is_table) {
    text += value.dump(-1, ' ', false, Json::error_handler_t::replace);
    return;
  }
  text += is_object ? '{' : '[';
  bool first = true;
  for (const auto& [key, item] : value.items()) {
    if (!first) text += ',';
    first = false;
    text += '\n';
    text.append(indent + 1, ' ');
    if (is_object) text += Json(key).dump(-1, ' ', false, Json::error_handler_t::replace) + ": ";
    Print(item, indent + 1, text);
  }
  text += '\n';
  text.append(indent, ' ');
  text += is_object ? '}' : ']';
}

}  // namespace

std::string PipelinePlanToJson(const PipelinePlan& plan, std::span<const Module* const> modules) {
  std::string text;
  Print(PipelineJson(plan, modules), 0, text);
  text += '\n';
  return text;
}

std::string PlanToJson(const Plan& plan, const Module& module) {
  std::string text;
  Print(PlanJson(plan, module), 0, text);
  text += '\n';
  return text;
}

}  // namespace minka
