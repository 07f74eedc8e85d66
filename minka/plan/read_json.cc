// PlanFromJson: every mistake is named by its place ("stages[0].operations[3][1]: ...").
#include <algorithm>
#include <initializer_list>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "minka/base/hash.h"
#include "minka/base/json.h"
#include "minka/base/status.h"
#include "minka/ir/shape.h"
#include "minka/plan/pipeline_plan.h"
#include "minka/plan/plan_json.h"
#include "minka/plan/reshard_text.h"
#include "nlohmann/json.hpp"

namespace minka {
namespace {

using Json = nlohmann::ordered_json;

// A JSON value and where it stands.
class Node {
 public:
  Node(const Json& value, std::string path) : value_(&value), path_(std::move(path)) {}

  const std::string& path() const { return path_; }

  template <typename... Args>
  absl::Status Error(fmt::format_string<Args...> format, Args&&... args) const {
    return InvalidArgument("plan: {}: {}", path_.empty() ? "the document" : path_,
                           fmt::format(format, std::forward<Args>(args)...));
  }

  absl::Status ExpectObject() const {
    if (value_->is_object()) return absl::OkStatus();
    return Error("should be an object, is {}", value_->type_name());
  }

  // OK if the value is an object with exactly these keys, `optional` or not.
  absl::Status ExpectKeys(std::initializer_list<std::string_view> keys,
                          std::initializer_list<std::string_view> optional = {}) const {
    RETURN_IF_ERROR(ExpectObject());
    for (const std::string_view key : keys) {
      if (!value_->contains(key)) return Error("lacks the field '{}'", key);
    }
    for (const auto& [key, unused] : value_->items()) {
      const bool is_known = std::ranges::find(optional, key) != optional.end() ||
                            std::ranges::find(keys, key) != keys.end();
      if (!is_known) return Error("unknown field '{}'", key);
    }
    return absl::OkStatus();
  }

  // A field that ExpectKeys has seen.
  Node operator[](std::string_view key) const {
    return Node(*value_->find(key),
                path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key));
  }

  bool Has(std::string_view key) const { return value_->contains(key); }
  bool IsNull() const { return value_->is_null(); }

  absl::StatusOr<size_t> Size() const {
    if (!value_->is_array()) return Error("should be a list, is {}", value_->type_name());
    return value_->size();
  }
  Node Element(size_t index) const {
    return Node((*value_)[index], fmt::format("{}[{}]", path_, index));
  }
  // OK if the value is a list of that many elements.
  absl::Status ExpectSize(size_t size) const {
    ASSIGN_OR_RETURN(const size_t actual, Size());
    if (actual != size) return Error("should have {} elements, has {}", size, actual);
    return absl::OkStatus();
  }

  absl::Status Read(std::string& out) const {
    if (!value_->is_string()) return Error("should be a string, is {}", value_->type_name());
    out = value_->get_ref<const std::string&>();
    return absl::OkStatus();
  }
  absl::Status Read(bool& out) const {
    if (!value_->is_boolean()) return Error("should be true or false, is {}", value_->type_name());
    out = value_->get<bool>();
    return absl::OkStatus();
  }
  absl::Status Read(double& out) const {
    if (!value_->is_number()) return Error("should be a number, is {}", value_->type_name());
    out = value_->get<double>();
    return absl::OkStatus();
  }
  absl::Status Read(int64_t& out) const {
    if (!value_->is_number_integer()) {
      return Error("should be an integer, is {}", value_->type_name());
    }
    if (value_->is_number_unsigned() &&
        value_->get<uint64_t>() > uint64_t(std::numeric_limits<int64_t>::max())) {
      return Error("{} is too large", value_->get<uint64_t>());
    }
    out = value_->get<int64_t>();
    return absl::OkStatus();
  }
  absl::Status Read(int32_t& out) const {
    int64_t wide = 0;
    RETURN_IF_ERROR(Read(wide));
    out = static_cast<int32_t>(wide);
    if (out != wide) return Error("{} is too large", wide);
    return absl::OkStatus();
  }
  template <typename T>
  absl::Status Read(std::vector<T>& out) const {
    ASSIGN_OR_RETURN(const size_t size, Size());
    out.resize(size);
    for (size_t i = 0; i < size; ++i) RETURN_IF_ERROR(Element(i).Read(out[i]));
    return absl::OkStatus();
  }
  template <typename T>
  absl::Status Read(std::map<std::string, T>& out) const {
    if (!value_->is_object()) return Error("should be an object, is {}", value_->type_name());
    for (const auto& [key, unused] : value_->items()) {
      RETURN_IF_ERROR((*this)[key].Read(out[key]));
    }
    return absl::OkStatus();
  }

  // The position of the value among the names.
  template <size_t kSize>
  absl::StatusOr<size_t> Choice(const std::array<std::string_view, kSize>& names) const {
    std::string text;
    RETURN_IF_ERROR(Read(text));
    const auto found = std::ranges::find(names, text);
    if (found == names.end()) {
      return Error("'{}' is not one of {}", text, fmt::join(names, ", "));
    }
    return static_cast<size_t>(found - names.begin());
  }

  bool operator==(std::string_view text) const { return value_->is_string() && *value_ == text; }

 private:
  const Json* value_;
  std::string path_;
};

absl::Status ReadSharding(const Node& node, const Mesh& mesh, Sharding& out) {
  std::string text;
  RETURN_IF_ERROR(node.Read(text));
  absl::StatusOr<Sharding> sharding = ParseSharding(text, mesh);
  if (!sharding.ok()) return node.Error("{}", Message(sharding.status()));
  out = *std::move(sharding);
  return absl::OkStatus();
}

absl::Status ReadLabels(const Node& node, const Mesh& mesh, std::vector<std::string>& out) {
  std::map<std::string, std::string> labels;
  RETURN_IF_ERROR(node.Read(labels));
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    const auto label = labels.find(mesh.axis(axis).name);
    if (label == labels.end()) return node.Error("lacks axis '{}'", mesh.axis(axis).name);
    out.push_back(label->second);
  }
  if (labels.size() == out.size()) return absl::OkStatus();
  return node.Error("names axes that mesh {} has not", mesh.ToString());
}

absl::Status ReadParameter(const Node& node, const Mesh& mesh, ParameterPlan& out) {
  RETURN_IF_ERROR(
      node.ExpectKeys({"name", "role", "type", "shape", "sharding", "labels", "bytes_per_device"}));
  RETURN_IF_ERROR(node["name"].Read(out.name));
  RETURN_IF_ERROR(node["role"].Read(out.role));
  std::string type;
  RETURN_IF_ERROR(node["type"].Read(type));
  const std::optional<ElementType> parsed = ParseType(type);
  if (!parsed) return node["type"].Error("'{}' is not an element type", type);
  out.shape.type = *parsed;
  RETURN_IF_ERROR(node["shape"].Read(out.shape.dims));
  RETURN_IF_ERROR(ReadSharding(node["sharding"], mesh, out.sharding));
  if (out.sharding.dims.size() != out.shape.dims.size()) {
    return node["sharding"].Error("should have {} dimensions, has {}", out.shape.dims.size(),
                                  out.sharding.dims.size());
  }
  RETURN_IF_ERROR(ReadLabels(node["labels"], mesh, out.labels));
  return node["bytes_per_device"].Read(out.bytes_per_device);
}

absl::Status ReadStrategy(const Node& node, const OpRule& rule, const Mesh& mesh, Strategy& out) {
  std::string text;
  RETURN_IF_ERROR(node.Read(text));
  absl::StatusOr<Strategy> strategy = ParseStrategy(text, rule, mesh);
  if (!strategy.ok()) return node.Error("{}", Message(strategy.status()));
  out = *std::move(strategy);
  return absl::OkStatus();
}

absl::Status ReadOperation(const Node& node, const Module& module, const Mesh& mesh,
                           InstructionId id, OpPlan& out) {
  RETURN_IF_ERROR(node.ExpectSize(6));
  std::string name;
  RETURN_IF_ERROR(node.Element(0).Read(name));
  const OpRule rule = RuleFor(module, module.entry_computation(), id);
  RETURN_IF_ERROR(ReadStrategy(node.Element(1), rule, mesh, out.strategy));
  RETURN_IF_ERROR(node.Element(2).Read(out.operand_versions));
  ASSIGN_OR_RETURN(const size_t phase, node.Element(3).Choice(kPhaseNames));
  out.phase = static_cast<Phase>(phase);
  RETURN_IF_ERROR(node.Element(4).Read(out.cost_us));
  return node.Element(5).Read(out.followed);
}

// Of a reshard whose shardings are known.
template <typename AnyReshard>
absl::Status ReadSteps(const Node& node, const Mesh& mesh, AnyReshard& out) {
  std::vector<std::string> texts;
  RETURN_IF_ERROR(node.Read(texts));
  Sharding current = out.from;
  for (size_t i = 0; i < texts.size(); ++i) {
    absl::StatusOr<ReshardStep> step = ParseReshardStep(texts[i], current, mesh);
    if (!step.ok()) return node.Element(i).Error("{}", Message(step.status()));
    current = step->result;
    out.steps.push_back(*std::move(step));
  }
  if (current == out.to) return absl::OkStatus();
  return node.Error("the steps lead to {}, not to {}", ToString(current, mesh),
                    ToString(out.to, mesh));
}

absl::Status ReadReshard(const Node& node, const Module& module, const Mesh& mesh, Reshard& out) {
  RETURN_IF_ERROR(node.ExpectSize(11));
  std::string name;
  RETURN_IF_ERROR(node.Element(0).Read(name));
  RETURN_IF_ERROR(node.Element(1).Read(out.value.instruction));
  RETURN_IF_ERROR(node.Element(2).Read(out.value.result));
  RETURN_IF_ERROR(node.Element(3).Read(out.from_version));
  RETURN_IF_ERROR(ReadSharding(node.Element(4), mesh, out.from));
  RETURN_IF_ERROR(ReadSharding(node.Element(5), mesh, out.to));
  RETURN_IF_ERROR(ReadSteps(node.Element(6), mesh, out));
  if (node.Element(7) == kAtEnd) {
    out.before = module.entry_computation().num_instructions();
  } else {
    RETURN_IF_ERROR(node.Element(7).Read(out.before));
  }
  RETURN_IF_ERROR(node.Element(8).Read(out.combine_group));
  RETURN_IF_ERROR(node.Element(9).Read(out.isolated));
  return node.Element(10).Read(out.cost_us);
}

absl::Status ReadCalledReshard(const Node& node, const Mesh& mesh, CalledReshard& out) {
  RETURN_IF_ERROR(node.ExpectSize(6));
  std::string name;
  RETURN_IF_ERROR(node.Element(0).Read(name));
  RETURN_IF_ERROR(node.Element(1).Read(out.value.instruction));
  RETURN_IF_ERROR(node.Element(2).Read(out.value.result));
  RETURN_IF_ERROR(ReadSharding(node.Element(3), mesh, out.from));
  RETURN_IF_ERROR(ReadSharding(node.Element(4), mesh, out.to));
  return ReadSteps(node.Element(5), mesh, out);
}

// The plans of what the operations of a computation call, by instruction, from the list `called` of
// the plan of the computation.
absl::StatusOr<std::vector<std::vector<CalledPlan>>> ReadCalled(const Node& plan,
                                                                const Module& module,
                                                                const Computation& computation,
                                                                const Mesh& mesh);

// The keys of a called computation's plan, and whose it is.
absl::Status ReadCaller(const Node& node, const Computation& computation, InstructionId id) {
  RETURN_IF_ERROR(node.ExpectKeys(
      {"caller", "computation", "parameters", "operations", "reshards", "results"}, {"called"}));
  InstructionId caller = 0;
  RETURN_IF_ERROR(node["caller"].Read(caller));
  if (caller == id) return absl::OkStatus();
  const Instruction& instruction = computation.instructions[id];
  return node["caller"].Error("is {}, should be {}, for {} '{}'", caller, id,
                              OpcodeName(instruction.opcode), instruction.name);
}

// Of a plan whose keys are known.
absl::Status ReadCalledPlan(const Node& node, const Module& module, const Computation& computation,
                            const Mesh& mesh, CalledPlan& out) {
  std::string name;
  RETURN_IF_ERROR(node["computation"].Read(name));
  const Node parameters = node["parameters"];
  RETURN_IF_ERROR(parameters.ExpectSize(computation.parameters.size()));
  out.parameters.resize(computation.parameters.size());
  for (size_t i = 0; i < out.parameters.size(); ++i) {
    RETURN_IF_ERROR(ReadSharding(parameters.Element(i), mesh, out.parameters[i]));
  }
  const Node operations = node["operations"];
  RETURN_IF_ERROR(operations.ExpectSize(computation.instructions.size()));
  ASSIGN_OR_RETURN(std::vector<std::vector<CalledPlan>> called,
                   ReadCalled(node, module, computation, mesh));
  for (InstructionId id = 0; id < computation.num_instructions(); ++id) {
    const Node row = operations.Element(id);
    CalledPlan::Operation& operation = out.operations.emplace_back();
    RETURN_IF_ERROR(row.ExpectSize(3));
    RETURN_IF_ERROR(row.Element(0).Read(name));
    const OpRule rule = RuleFor(module, computation, id);
    RETURN_IF_ERROR(ReadStrategy(row.Element(1), rule, mesh, operation.strategy));
    RETURN_IF_ERROR(row.Element(2).Read(operation.operand_versions));
    operation.called = std::move(called[id]);
  }
  const Node reshards = node["reshards"];
  ASSIGN_OR_RETURN(const size_t num_reshards, reshards.Size());
  out.reshards.resize(num_reshards);
  for (size_t i = 0; i < num_reshards; ++i) {
    RETURN_IF_ERROR(ReadCalledReshard(reshards.Element(i), mesh, out.reshards[i]));
  }
  return node["results"].Read(out.result_versions);
}

absl::StatusOr<std::vector<std::vector<CalledPlan>>> ReadCalled(const Node& plan,
                                                                const Module& module,
                                                                const Computation& computation,
                                                                const Mesh& mesh) {
  std::vector<std::vector<CalledPlan>> plans(computation.instructions.size());
  size_t num_given = 0, num_read = 0;
  if (plan.Has("called")) {
    ASSIGN_OR_RETURN(num_given, plan["called"].Size());
  }
  for (InstructionId id = 0; id < computation.num_instructions(); ++id) {
    const Instruction& instruction = computation.instructions[id];
    if (!IsControlFlow(instruction.opcode)) continue;
    for (const ComputationId called : instruction.called) {
      const Computation& inside = module.computations[called];
      if (num_read == num_given) {
        return plan.Error(
            "'called' does not say how computation '{}' runs, which {} '{}' calls; plan again",
            inside.name, OpcodeName(instruction.opcode), instruction.name);
      }
      const Node node = plan["called"].Element(num_read++);
      RETURN_IF_ERROR(ReadCaller(node, computation, id));
      RETURN_IF_ERROR(ReadCalledPlan(node, module, inside, mesh, plans[id].emplace_back()));
    }
  }
  if (num_read < num_given) RETURN_IF_ERROR(plan["called"].ExpectSize(num_read));
  return plans;
}

absl::Status ReadStage(const Node& node, const Module& module, StagePlan& out) {
  RETURN_IF_ERROR(node.ExpectKeys({"layers", "submesh", "mesh", "step_time_us", "peak_memory_bytes",
                                   "operations", "reshards", "results"},
                                  {"called"}));
  RETURN_IF_ERROR(node["layers"].Read(out.layers));
  RETURN_IF_ERROR(node["submesh"].Read(out.submesh));
  std::string mesh;
  RETURN_IF_ERROR(node["mesh"].Read(mesh));
  absl::StatusOr<Mesh> parsed = Mesh::Parse(mesh);
  if (!parsed.ok()) return node["mesh"].Error("{}", Message(parsed.status()));
  out.mesh = *std::move(parsed);
  RETURN_IF_ERROR(node["step_time_us"].Read(out.step_time_us));
  RETURN_IF_ERROR(node["peak_memory_bytes"].Read(out.peak_memory_bytes));
  const Node operations = node["operations"];
  const int num_instructions = module.entry_computation().num_instructions();
  RETURN_IF_ERROR(operations.ExpectSize(num_instructions));
  out.ops.resize(num_instructions);
  for (InstructionId id = 0; id < num_instructions; ++id) {
    RETURN_IF_ERROR(ReadOperation(operations.Element(id), module, out.mesh, id, out.ops[id]));
  }
  ASSIGN_OR_RETURN(std::vector<std::vector<CalledPlan>> called,
                   ReadCalled(node, module, module.entry_computation(), out.mesh));
  for (InstructionId id = 0; id < num_instructions; ++id)
    out.ops[id].called = std::move(called[id]);
  const Node reshards = node["reshards"];
  ASSIGN_OR_RETURN(const size_t num_reshards, reshards.Size());
  out.reshards.resize(num_reshards);
  for (size_t i = 0; i < num_reshards; ++i) {
    RETURN_IF_ERROR(ReadReshard(reshards.Element(i), module, out.mesh, out.reshards[i]));
  }
  return node["results"].Read(out.result_versions);
}

absl::Status ReadOrNull(const Node& node, std::optional<double>& out) {
  if (node.IsNull()) {
    out.reset();
    return absl::OkStatus();
  }
  return node.Read(out.emplace());
}

absl::Status ReadRemat(const Node& node, RematChoice& out) {
  ASSIGN_OR_RETURN(const size_t num_layers, node.Size());
  for (size_t i = 0; i < num_layers; ++i) {
    std::string name;
    RETURN_IF_ERROR(node.Element(i).Read(name));
    absl::StatusOr<RematPolicy> policy = ParseRematPolicy(name);
    if (!policy.ok()) return node.Element(i).Error("{}", Message(policy.status()));
    out.push_back(*policy);
  }
  return absl::OkStatus();
}

// Of a pipeline.
absl::Status ReadLayers(const Node& root, LayerChoice& out) {
  int num_layers = 0;
  RETURN_IF_ERROR(root["num_layers"].Read(num_layers));
  if (num_layers > 0) out = AutoLayers{num_layers};
  ManualLayers manual;
  RETURN_IF_ERROR(root["layer_starts"].Read(manual.starts));
  if (!manual.starts.empty()) out = std::move(manual);
  return absl::OkStatus();
}

// What the plan of one mesh and that of a pipeline both say.
template <typename AnyPlan>
absl::Status ReadCommon(const Node& node, AnyPlan& plan) {
  RETURN_IF_ERROR(node["options"].Read(plan.options));
  RETURN_IF_ERROR(node["cost_model"].Read(plan.cost_model));
  RETURN_IF_ERROR(node["step_time_us"].Read(plan.step_time_us));
  RETURN_IF_ERROR(node["peak_memory_bytes"].Read(plan.peak_memory_bytes));
  RETURN_IF_ERROR(node["search_seconds"].Read(plan.search_seconds));
  RETURN_IF_ERROR(node["num_micro_batches"].Read(plan.num_micro_batches));
  RETURN_IF_ERROR(node["per_micro_batch"].Read(plan.per_micro_batch));
  if (node.Has("narrow_sums")) RETURN_IF_ERROR(node["narrow_sums"].Read(plan.narrow_sums));
  RETURN_IF_ERROR(node["schedule"].Read(plan.schedule));
  ASSIGN_OR_RETURN(const size_t tier, node["memory_tier"].Choice(kMemoryTierNames));
  plan.memory_tier = static_cast<MemoryTier>(tier);
  RETURN_IF_ERROR(ReadRemat(node["remat"], plan.remat));
  return node["notes"].Read(plan.notes);
}

absl::Status ReadSummary(const Node& node, Plan& plan) {
  RETURN_IF_ERROR(ReadCommon(node, plan));
  RETURN_IF_ERROR(node["method"].Read(plan.method));
  RETURN_IF_ERROR(node["state_bytes_per_device"].Read(plan.state_bytes_per_device));
  RETURN_IF_ERROR(node["objective"].Read(plan.objective));
  RETURN_IF_ERROR(node["lower_bound"].Read(plan.lower_bound));
  RETURN_IF_ERROR(ReadOrNull(node["gap"], plan.gap));
  RETURN_IF_ERROR(node["sharding_gap"].Read(plan.sharding_gap));
  RETURN_IF_ERROR(node["memory_price"].Read(plan.memory_price));
  RETURN_IF_ERROR(node["stop_reason"].Read(plan.stop_reason));
  RETURN_IF_ERROR(node["collectives"].Read(plan.collectives));
  RETURN_IF_ERROR(node["collective_bytes"].Read(plan.collective_bytes));
  RETURN_IF_ERROR(node["num_parameters"].Read(plan.num_parameters));
  RETURN_IF_ERROR(node["accumulators"].Read(plan.accumulators));
  RETURN_IF_ERROR(node["unsupported_ops"].Read(plan.unsupported_ops));
  return node["unsupported_flops_share"].Read(plan.unsupported_flops_share);
}

// The version and the module are looked at before all else, because all else depends on them.
absl::Status ReadIdentity(const Node& node, const Module& module, int& schema_version,
                          std::string& module_hash) {
  RETURN_IF_ERROR(node.ExpectObject());
  if (!node.Has("schema_version")) return node.Error("lacks the field 'schema_version'");
  RETURN_IF_ERROR(node["schema_version"].Read(schema_version));
  if (schema_version != kPlanSchemaVersion) {
    return node["schema_version"].Error("is {}, this minka reads version {}", schema_version,
                                        kPlanSchemaVersion);
  }
  if (!node.Has("module_hash")) return node.Error("lacks the field 'module_hash'");
  RETURN_IF_ERROR(node["module_hash"].Read(module_hash));
  const std::string hash = HashText(ModuleHash(module));
  if (module_hash == hash) return absl::OkStatus();
  return node["module_hash"].Error(
      "the plan was made for module {}, this module is {}; plan again or use the module that the "
      "plan was made for",
      module_hash, hash);
}

absl::StatusOr<Plan> ReadPlan(const Node& root, const Module& module) {
  Plan plan;
  RETURN_IF_ERROR(ReadIdentity(root, module, plan.schema_version, plan.module_hash));
  RETURN_IF_ERROR(root.ExpectKeys({"schema_version",
                                   "module_hash",
                                   "options",
                                   "method",
                                   "cost_model",
                                   "step_time_us",
                                   "peak_memory_bytes",
                                   "memory_tier",
                                   "state_bytes_per_device",
                                   "objective",
                                   "lower_bound",
                                   "gap",
                                   "sharding_gap",
                                   "memory_price",
                                   "stop_reason",
                                   "search_seconds",
                                   "collectives",
                                   "collective_bytes",
                                   "num_parameters",
                                   "parameters",
                                   "num_micro_batches",
                                   "per_micro_batch",
                                   "remat",
                                   "accumulators",
                                   "schedule",
                                   "unsupported_ops",
                                   "unsupported_flops_share",
                                   "notes",
                                   "stages"},
                                  {"narrow_sums"}));
  RETURN_IF_ERROR(ReadSummary(root, plan));
  const Node stages = root["stages"];
  RETURN_IF_ERROR(stages.ExpectSize(1));
  RETURN_IF_ERROR(ReadStage(stages.Element(0), module, plan.stage));
  const Node parameters = root["parameters"];
  ASSIGN_OR_RETURN(const size_t num_parameters, parameters.Size());
  plan.parameters.resize(num_parameters);
  for (size_t i = 0; i < num_parameters; ++i) {
    RETURN_IF_ERROR(ReadParameter(parameters.Element(i), plan.stage.mesh, plan.parameters[i]));
  }
  return plan;
}

absl::Status ReadTransfers(const Node& node, PlannedTransfers& out) {
  RETURN_IF_ERROR(node.ExpectSize(6));
  RETURN_IF_ERROR(node.Element(0).Read(out.from_mesh));
  RETURN_IF_ERROR(node.Element(1).Read(out.to_mesh));
  RETURN_IF_ERROR(node.Element(2).Read(out.per_micro_batch));
  RETURN_IF_ERROR(node.Element(3).Read(out.num_values));
  RETURN_IF_ERROR(node.Element(4).Read(out.num_messages));
  return node.Element(5).Read(out.bytes);
}

absl::Status ReadPipelineStage(const Node& node, const Module& module, PipelineStagePlan& out) {
  RETURN_IF_ERROR(
      node.ExpectKeys({"layers", "mesh_number", "forward_us", "backward_us", "weight_gradient_us",
                       "apply_us", "send_forward_us", "send_backward_us", "plan"},
                      {"kind", "device"}));
  ASSIGN_OR_RETURN(out.plan, ReadPlan(node["plan"], module));
  RETURN_IF_ERROR(node["layers"].Read(out.plan.stage.layers));
  RETURN_IF_ERROR(node["mesh_number"].Read(out.mesh_number));
  if (node.Has("kind") != node.Has("device"))
    return node.Error("has one of 'kind' and 'device' without the other");
  if (node.Has("kind")) {
    RETURN_IF_ERROR(node["kind"].Read(out.kind));
    RETURN_IF_ERROR(node["device"].Read(out.device));
    if (out.kind < 0) return node["kind"].Error("is {}, not 0 or more", out.kind);
  }
  RETURN_IF_ERROR(node["forward_us"].Read(out.forward_us));
  RETURN_IF_ERROR(node["backward_us"].Read(out.backward_us));
  RETURN_IF_ERROR(node["weight_gradient_us"].Read(out.weight_gradient_us));
  RETURN_IF_ERROR(node["apply_us"].Read(out.apply_us));
  RETURN_IF_ERROR(node["send_forward_us"].Read(out.send_forward_us));
  return node["send_backward_us"].Read(out.send_backward_us);
}

}  // namespace

absl::StatusOr<Plan> PlanFromJson(std::string_view json, const Module& module) {
  const absl::StatusOr<Json> document = ParseJson(json);
  if (!document.ok()) return WithContext(document.status(), "plan");
  return ReadPlan(Node(*document, ""), module);
}

absl::StatusOr<PipelinePlan> PipelinePlanFromJson(std::string_view json, const Module& module,
                                                  std::span<const Module* const> modules) {
  const absl::StatusOr<Json> document = ParseJson(json);
  if (!document.ok()) return WithContext(document.status(), "plan");
  const Node root(*document, "");
  PipelinePlan plan;
  RETURN_IF_ERROR(ReadIdentity(root, module, plan.schema_version, plan.module_hash));
  RETURN_IF_ERROR(root.ExpectKeys({"schema_version",
                                   "module_hash",
                                   "options",
                                   "method",
                                   "cost_model",
                                   "step_time_us",
                                   "lower_bound_us",
                                   "gap",
                                   "bubble",
                                   "meshes_share_cores",
                                   "peak_memory_bytes",
                                   "memory_tier",
                                   "search_seconds",
                                   "num_micro_batches",
                                   "per_micro_batch",
                                   "remat",
                                   "schedule",
                                   "num_layers",
                                   "layer_starts",
                                   "stage_of_layer",
                                   "notes",
                                   "transfers",
                                   "stages"},
                                  {"narrow_sums"}));
  RETURN_IF_ERROR(ReadCommon(root, plan));
  RETURN_IF_ERROR(ReadOrNull(root["lower_bound_us"], plan.lower_bound_us));
  RETURN_IF_ERROR(ReadOrNull(root["gap"], plan.gap));
  RETURN_IF_ERROR(root["bubble"].Read(plan.bubble));
  RETURN_IF_ERROR(root["meshes_share_cores"].Read(plan.meshes_share_cores));
  RETURN_IF_ERROR(ReadLayers(root, plan.layers));
  RETURN_IF_ERROR(root["stage_of_layer"].Read(plan.stage_of_layer));
  const Node transfers = root["transfers"];
  ASSIGN_OR_RETURN(const size_t num_transfers, transfers.Size());
  plan.transfers.resize(num_transfers);
  for (size_t i = 0; i < num_transfers; ++i) {
    RETURN_IF_ERROR(ReadTransfers(transfers.Element(i), plan.transfers[i]));
  }
  const Node stages = root["stages"];
  RETURN_IF_ERROR(stages.ExpectSize(modules.size()));
  plan.stages.resize(modules.size());
  for (size_t i = 0; i < modules.size(); ++i) {
    RETURN_IF_ERROR(ReadPipelineStage(stages.Element(i), *modules[i], plan.stages[i]));
  }
  return plan;
}

absl::StatusOr<PlannedPreparation> PlannedPreparationOf(std::string_view json) {
  const absl::StatusOr<Json> parsed = ParseJson(json);
  if (!parsed.ok()) return WithContext(parsed.status(), "plan");
  const Json& document = *parsed;
  if (!document.is_object()) return InvalidArgument("plan: not a JSON object");
  PlannedPreparation found;
  const auto count = document.find("num_micro_batches");
  if (count != document.end() && count->is_number_integer()) {
    found.num_micro_batches = count->get<int64_t>();
  }
  const auto take = [&](const char* field, bool& value) {
    const auto flag = document.find(field);
    if (flag != document.end() && flag->is_boolean()) value = flag->get<bool>();
  };
  take("per_micro_batch", found.per_micro_batch);
  take("narrow_sums", found.narrow_sums);
  const auto remat = document.find("remat");
  if (remat != document.end()) RETURN_IF_ERROR(ReadRemat(Node(*remat, "remat"), found.remat));
  const auto stages = document.find("stage_of_layer");
  if (stages == document.end()) return found;
  RETURN_IF_ERROR(Node(*stages, "stage_of_layer").Read(found.stage_of_layer));
  for (const char* const field : {"num_layers", "layer_starts"}) {
    if (!document.contains(field)) return InvalidArgument("plan: lacks the field '{}'", field);
  }
  RETURN_IF_ERROR(ReadLayers(Node(document, ""), found.layers));
  const auto schedule = document.find("schedule");
  if (schedule == document.end()) return InvalidArgument("plan: lacks the field 'schedule'");
  RETURN_IF_ERROR(Node(*schedule, "schedule").Read(found.schedule));
  return found;
}

}  // namespace minka
