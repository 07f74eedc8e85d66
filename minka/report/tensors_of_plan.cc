#include "minka/report/tensors_of_plan.h"

#include <algorithm>

#include "fmt/ranges.h"
#include "minka/base/check.h"
#include "minka/base/status.h"
#include "minka/ir/names.h"
#include "minka/ir/trained_parameters.h"
#include "minka/plan/plan_json.h"
#include "minka/plan/reshard_text.h"
#include "minka/report/format.h"
#include "minka/report/table.h"
#include "minka/sharding/example_dims.h"
#include "minka/sharding/op_rule.h"
#include "nlohmann/json.hpp"

namespace minka {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kKindNames[] = {"params", "optimizer", "inputs", "outputs",
                                           "activations"};

// Arrays that no program keeps in memory: they are made again where they are read.
bool IsMadeWhereRead(const Instruction& instruction) {
  switch (instruction.opcode) {
    case Opcode::kConstant:
    case Opcode::kIota:
    case Opcode::kBroadcast:
    case Opcode::kReshape:
    case Opcode::kParameter:
      return true;
    default:
      return false;
  }
}

class Collector {
 public:
  Collector(const Step& step, const Plan& plan)
      : step_(step),
        plan_(plan),
        stage_(plan.stage),
        entry_(step.module.entry_computation()),
        uses_(entry_),
        example_dims_(FindExampleDims(step)),
        owners_(OwnersOfState(step)) {}

  std::vector<TensorOnMesh> Run() {
    for (size_t i = 0; i < entry_.parameters.size(); ++i) AddParameter(static_cast<int>(i));
    for (InstructionId id = 0; id < entry_.num_instructions(); ++id) AddActivations(id);
    for (size_t i = 0; i < entry_.results.size(); ++i) AddResult(static_cast<int>(i));
    return std::move(tensors_);
  }

 private:
  void AddParameter(int number) {
    const ParameterPlan& planned = plan_.parameters[number];
    const ParameterInfo& info = step_.parameters[number];
    TensorOnMesh tensor{.name = planned.name,
                        .value = {entry_.parameters[number], 0},
                        .shape = planned.shape,
                        .sharding = planned.sharding,
                        .labels = planned.labels,
                        .batch_dim = example_dims_[entry_.parameters[number]][0].batch,
                        .bytes_per_device = planned.bytes_per_device};
    if (owners_[number] >= 0) tensor.owner = step_.parameters[owners_[number]].name;
    const bool is_input = info.role == ParameterRole::kBatch || info.role == ParameterRole::kKey;
    const bool is_optimizer = !tensor.owner.empty() || info.name.starts_with("optimizer/");
    tensor.kind = is_input       ? TensorKind::kInput
                  : is_optimizer ? TensorKind::kOptimizer
                                 : TensorKind::kParameter;
    tensors_.push_back(std::move(tensor));
  }

  void AddResult(int number) {
    if (step_.results[number].role == ResultRole::kState) return;
    const Value value = entry_.results[number];
    Add(TensorKind::kOutput, step_.results[number].name, value, stage_.result_versions[number]);
  }

  void AddActivations(InstructionId id) {
    const Instruction& instruction = entry_.instructions[id];
    if (IsMadeWhereRead(instruction)) return;
    for (int result = 0; result < static_cast<int>(instruction.results.size()); ++result) {
      const Value value = {id, result};
      int version = 0;
      bool kept = false;
      for (const Use& use : uses_.uses(value)) {
        version = stage_.ops[use.user].operand_versions[use.operand];
        kept = kept || (stage_.ops[use.user].phase == Phase::kBackward &&
                        stage_.ops[id].phase == Phase::kForward);
      }
      const std::string name = ValueName(instruction.name, instruction.results.size(), result);
      TensorOnMesh& tensor = Add(TensorKind::kActivation, name, value, version);
      tensor.path = instruction.op_name;
      tensor.phase = stage_.ops[id].phase;
      tensor.kept = kept;
    }
  }

  TensorOnMesh& Add(TensorKind kind, const std::string& name, Value value, int version) {
    const Shape& shape = entry_.shape(value);
    TensorOnMesh tensor{.kind = kind, .name = name, .value = value, .shape = shape};
    tensor.sharding = VersionSharding(step_.module, stage_, value, version);
    tensor.batch_dim = example_dims_[value.instruction][value.result].batch;
    tensor.bytes_per_device = LocalBytes(shape, tensor.sharding, stage_.mesh);
    for (int axis = 0; axis < stage_.mesh.num_axes(); ++axis) {
      tensor.labels.push_back(Label(tensor, axis));
    }
    tensors_.push_back(std::move(tensor));
    return tensors_.back();
  }

  static std::string Label(const TensorOnMesh& tensor, int axis) {
    if (tensor.sharding.partial.contains(axis)) return "partial";
    for (size_t dim = 0; dim < tensor.sharding.dims.size(); ++dim) {
      if (!tensor.sharding.dims[dim].axes().contains(axis)) continue;
      return static_cast<int>(dim) == tensor.batch_dim ? "data" : "operator";
    }
    return "idle";
  }

  const Step& step_;
  const Plan& plan_;
  const StagePlan& stage_;
  const Computation& entry_;
  const UseTable uses_;
  const std::vector<std::vector<ExampleDims>> example_dims_;
  const std::vector<int> owners_;  // by parameter
  std::vector<TensorOnMesh> tensors_;
};

std::string BatchDimText(int dim) { return dim < 0 ? "-" : fmt::format("{}", dim); }

// One operation as a plan runs it.
class Operation {
 public:
  Operation(const Step& step, const StagePlan& stage, InstructionId id)
      : step_(step),
        stage_(stage),
        entry_(step.module.entry_computation()),
        id_(id),
        rule_(RuleFor(step.module, entry_, id)) {}

  const Instruction& instruction() const { return entry_.instructions[id_]; }
  const OpPlan& plan() const { return stage_.ops[id_]; }
  std::string Split() const { return ToString(plan().strategy, rule_, stage_.mesh); }
  bool supported() const { return rule_.supported; }

  std::string OperandSharding(int operand) const {
    const Value value = instruction().operands[operand];
    return ToString(VersionSharding(step_.module, stage_, value, plan().operand_versions[operand]),
                    stage_.mesh);
  }
  std::string ResultSharding(int result) const {
    return ToString(VersionSharding(step_.module, stage_, {id_, result}, 0), stage_.mesh);
  }
  // What brings operand `operand` into its sharding just before this operation; null: nothing.
  const Reshard* ReshardOf(int operand) const {
    const int version = plan().operand_versions[operand];
    if (version == 0) return nullptr;
    const Reshard& reshard = stage_.reshards[version - 1];
    return reshard.before == id_ ? &reshard : nullptr;
  }
  std::string Followed() const {
    return plan().followed < 0 ? "" : entry_.instructions[plan().followed].name;
  }
  const std::string& OperandName(int operand) const {
    return entry_.instructions[instruction().operands[operand].instruction].name;
  }

 private:
  const Step& step_;
  const StagePlan& stage_;
  const Computation& entry_;
  const InstructionId id_;
  const OpRule rule_;
};

std::string StepsText(const Reshard& reshard, const Mesh& mesh) {
  std::vector<std::string> steps;
  for (const ReshardStep& step : reshard.steps) steps.push_back(ToString(step, mesh));
  return fmt::format("{} ({})", fmt::join(steps, ", "), FormatTime(reshard.cost_us));
}

std::string OperationText(const Operation& operation, const Mesh& mesh) {
  const Instruction& instruction = operation.instruction();
  std::string text = fmt::format("{}  {}  {}  {}", instruction.name, OpcodeName(instruction.opcode),
                                 ToString(instruction.shape()),
                                 kPhaseNames[static_cast<int>(operation.plan().phase)]);
  for (const std::string& source : {instruction.op_name, instruction.source_line}) {
    if (!source.empty()) text += "  " + source;
  }
  text += '\n';
  for (int i = 0; i < static_cast<int>(instruction.operands.size()); ++i) {
    const Reshard* const reshard = operation.ReshardOf(i);
    text += fmt::format("    operand {}  {}  {}{}\n", i, operation.OperandSharding(i),
                        operation.OperandName(i),
                        reshard == nullptr ? "" : "  after " + StepsText(*reshard, mesh));
  }
  for (int i = 0; i < static_cast<int>(instruction.results.size()); ++i) {
    text += fmt::format("    result {}   {}\n", i, operation.ResultSharding(i));
  }
  const std::string followed = operation.Followed();
  text += fmt::format("    splits     {}{}\n", operation.Split(),
                      operation.supported() ? "" : " (no rule: runs whole on every device)");
  text += fmt::format("    chosen     {}\n    cost       {}\n",
                      followed.empty() ? "for itself" : "as " + followed,
                      FormatTime(operation.plan().cost_us));
  return text;
}

Json OperationJson(const Operation& operation, const Mesh& mesh) {
  const Instruction& instruction = operation.instruction();
  Json operands = Json::array(), results = Json::array();
  for (int i = 0; i < static_cast<int>(instruction.operands.size()); ++i) {
    Json operand = {{"name", operation.OperandName(i)}, {"sharding", operation.OperandSharding(i)}};
    if (const Reshard* const reshard = operation.ReshardOf(i)) {
      for (const ReshardStep& step : reshard->steps) {
        operand["reshard"].push_back(ToString(step, mesh));
      }
      operand["reshard_cost_us"] = reshard->cost_us;
    }
    operands.push_back(std::move(operand));
  }
  for (int i = 0; i < static_cast<int>(instruction.results.size()); ++i) {
    results.push_back(
        {{"shape", ToString(instruction.results[i])}, {"sharding", operation.ResultSharding(i)}});
  }
  const std::string followed = operation.Followed();
  return {{"name", instruction.name},
          {"path", instruction.op_name},
          {"source_line", instruction.source_line},
          {"opcode", std::string(OpcodeName(instruction.opcode))},
          {"phase", std::string(kPhaseNames[static_cast<int>(operation.plan().phase)])},
          {"splits", operation.Split()},
          {"operands", std::move(operands)},
          {"results", std::move(results)},
          {"followed", followed.empty() ? Json() : Json(followed)},
          {"cost_us", operation.plan().cost_us}};
}

template <typename Visit>
void ForEachOperation(const Step& step, const Plan& plan, std::string_view glob,
                      const Visit& visit) {
  const StagePlan& stage = plan.stage;
  const Computation& entry = step.module.entry_computation();
  for (InstructionId id = 0; id < entry.num_instructions(); ++id) {
    const Instruction& instruction = entry.instructions[id];
    if (instruction.opcode == Opcode::kParameter || instruction.opcode == Opcode::kConstant) {
      continue;
    }
    if (MatchesGlob(glob, instruction.name) || MatchesGlob(glob, instruction.op_name)) {
      visit(Operation(step, stage, id), stage.mesh);
    }
  }
}

}  // namespace

std::string_view TensorKindName(TensorKind kind) { return kKindNames[static_cast<int>(kind)]; }

absl::StatusOr<TensorKind> ParseTensorKind(std::string_view name) {
  const auto* const found = std::ranges::find(kKindNames, name);
  if (found == std::end(kKindNames)) {
    return InvalidArgument("\"{}\" is no kind of tensor; there are {}", name,
                           fmt::join(kKindNames, ", "));
  }
  return static_cast<TensorKind>(found - std::begin(kKindNames));
}

std::vector<TensorOnMesh> TensorsOfPlan(const Step& prepared, const Plan& plan) {
  return Collector(prepared, plan).Run();
}

std::string TensorTable(const std::vector<TensorOnMesh>& tensors, const Mesh& mesh, bool dims) {
  std::vector<Column> columns = {{"kind"}, {"name"}, {"shape"}, {"sharding"}};
  for (int axis = 0; axis < mesh.num_axes(); ++axis) columns.push_back({mesh.axis(axis).name});
  if (dims) columns.push_back({"batch dim", Align::kRight});
  columns.push_back({"bytes/device", Align::kRight});
  columns.push_back({"path"});
  Table table(columns);
  for (const TensorOnMesh& tensor : tensors) {
    std::vector<std::string> cells = {std::string(TensorKindName(tensor.kind)), tensor.name,
                                      ToString(tensor.shape), ToString(tensor.sharding, mesh)};
    cells.insert(cells.end(), tensor.labels.begin(), tensor.labels.end());
    if (dims) cells.push_back(BatchDimText(tensor.batch_dim));
    cells.push_back(FormatBytes(tensor.bytes_per_device));
    cells.push_back(tensor.path);
    table.Add(std::move(cells));
  }
  return table.ToString();
}

std::string TensorsJson(const std::vector<TensorOnMesh>& tensors, const Mesh& mesh) {
  Json rows = Json::array();
  for (const TensorOnMesh& tensor : tensors) {
    Json labels = Json::object();
    for (int axis = 0; axis < mesh.num_axes(); ++axis) {
      labels[mesh.axis(axis).name] = tensor.labels[axis];
    }
    Json row = {{"kind", std::string(TensorKindName(tensor.kind))},
                {"name", tensor.name},
                {"type", std::string(TypeName(tensor.shape.type))},
                {"shape", tensor.shape.dims},
                {"sharding", ToString(tensor.sharding, mesh)},
                {"labels", std::move(labels)},
                {"batch_dim", tensor.batch_dim < 0 ? Json() : Json(tensor.batch_dim)},
                {"bytes_per_device", tensor.bytes_per_device}};
    if (tensor.kind == TensorKind::kActivation) {
      row["path"] = tensor.path;
      row["phase"] = std::string(kPhaseNames[static_cast<int>(tensor.phase)]);
      row["kept_for_backward"] = tensor.kept;
    }
    rows.push_back(std::move(row));
  }
  const Json json = {
      {"schema_version", 1}, {"mesh", mesh.ToString()}, {"tensors", std::move(rows)}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string OperationsText(const Step& prepared, const Plan& plan, std::string_view glob) {
  std::string text;
  ForEachOperation(prepared, plan, glob, [&](const Operation& operation, const Mesh& mesh) {
    text += OperationText(operation, mesh);
  });
  return text;
}

std::string OperationsJson(const Step& prepared, const Plan& plan, std::string_view glob) {
  Json operations = Json::array();
  ForEachOperation(prepared, plan, glob, [&](const Operation& operation, const Mesh& mesh) {
    operations.push_back(OperationJson(operation, mesh));
  });
  const Json json = {{"schema_version", 1},
                     {"mesh", plan.stage.mesh.ToString()},
                     {"operations", std::move(operations)}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace minka
