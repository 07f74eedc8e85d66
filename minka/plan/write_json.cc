// PlanToJson.
#include <algorithm>
#include <string>
#include <vector>

#include "minka/ir/shape.h"
#include "minka/plan/plan_json.h"
#include "minka/plan/reshard_text.h"
#include "nlohmann/json.hpp"

namespace minka {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kTableIndent = 3;  // of a stage's tables; lists within their rows are no tables

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

Json ReshardJson(const Module& module, const StagePlan& stage, const Reshard& reshard) {
  const Computation& computation = module.entry_computation();
  Json steps = Json::array();
  for (const ReshardStep& step : reshard.steps) steps.push_back(ToString(step, stage.mesh));
  const bool at_end = reshard.before == computation.num_instructions();
  return Json::array({computation.instructions[reshard.value.instruction].name,
                      reshard.value.instruction, reshard.value.result, reshard.from_version,
                      ToString(reshard.from, stage.mesh), ToString(reshard.to, stage.mesh),
                      std::move(steps), at_end ? Json(kAtEnd) : Json(reshard.before),
                      reshard.combine_group, reshard.isolated, reshard.cost_us});
}

Json StageJson(const Module& module, const StagePlan& stage) {
  Json operations = Json::array();
  for (size_t id = 0; id < stage.ops.size(); ++id) {
    operations.push_back(OperationJson(module, stage, static_cast<InstructionId>(id)));
  }
  Json reshards = Json::array();
  for (const Reshard& reshard : stage.reshards) {
    reshards.push_back(ReshardJson(module, stage, reshard));
  }
  return Json::object({{"layers", stage.layers},
                       {"submesh", stage.submesh},
                       {"mesh", stage.mesh.ToString()},
                       {"step_time_us", stage.step_time_us},
                       {"peak_memory_bytes", stage.peak_memory_bytes},
                       {"operations", std::move(operations)},
                       {"reshards", std::move(reshards)},
                       {"results", stage.result_versions}});
}

Json PlanJson(const Plan& plan, const Module& module) {
  const Mesh mesh = plan.stages.empty() ? Mesh() : plan.stages[0].mesh;
  Json parameters = Json::array();
  for (const ParameterPlan& parameter : plan.parameters) {
    parameters.push_back(ParameterJson(parameter, mesh));
  }
  Json stages = Json::array();
  for (const StagePlan& stage : plan.stages) stages.push_back(StageJson(module, stage));
  Json remat = Json::array();
  for (const RematPolicy policy : plan.remat) remat.push_back(RematPolicyName(policy));
  return Json::object({
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
      {"gap", plan.gap ? Json(*plan.gap) : Json()},
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
      {"remat", std::move(remat)},
      {"accumulators", plan.accumulators},
      {"schedule", plan.schedule},
      {"unsupported_ops", plan.unsupported_ops},
      {"unsupported_flops_share", plan.unsupported_flops_share},
      {"notes", plan.notes},
      {"stages", std::move(stages)},
  });
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
  const bool is_table = IsTable(value) && indent <= kTableIndent;
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

std::string PlanToJson(const Plan& plan, const Module& module) {
  std::string text;
  Print(PlanJson(plan, module), 0, text);
  text += '\n';
  return text;
}

}  // namespace minka
