#include <algorithm>
#include <map>
#include <set>

#include "minka/base/check.h"
#include "minka/ir/hlo_attributes.h"
#include "minka/ir/hlo_message.h"
#include "minka/ir/hlo_proto.h"
#include "minka/ir/hlo_shape.h"
#include "minka/ir/names.h"

namespace minka {
namespace {

// HLO's signature of a computation depends on who calls it: while passes one tuple, call a list.
struct Convention {
  bool tuple_parameters = false;
  bool tuple_result = false;
  auto operator<=>(const Convention&) const = default;
};

bool StartsWithTuple(const std::string& structure) { return structure.starts_with('('); }

// Does HLO give the results as a tuple, even a single one?
bool HasTupleResult(const Instruction& instruction) {
  if (instruction.opcode == Opcode::kWhile) return true;
  if (const auto* opaque = std::get_if<OpaqueAttributes>(&instruction.attributes)) {
    if (!opaque->result_structure.empty()) return StartsWithTuple(opaque->result_structure);
  }
  if (const auto* collective = std::get_if<CollectiveAttributes>(&instruction.attributes)) {
    if (instruction.opcode == Opcode::kAllToAll && collective->dimension < 0) return true;
  }
  return instruction.results.size() != 1;
}

bool IsFusion(const Instruction& instruction) {
  const auto* opaque = std::get_if<OpaqueAttributes>(&instruction.attributes);
  return instruction.opcode == Opcode::kOther && opaque->name == "fusion";
}

Convention CallConvention(const Module& module, const Instruction& caller, size_t position) {
  const Computation& callee = module.computations[caller.called[position]];
  const bool several_results = callee.results.size() != 1;
  if (caller.opcode == Opcode::kWhile) {
    return {.tuple_parameters = true, .tuple_result = position == 0 || several_results};
  }
  if (caller.opcode == Opcode::kConditional) {
    return {.tuple_parameters = callee.parameters.size() != 1, .tuple_result = several_results};
  }
  return {.tuple_result = IsFusion(caller) ? HasTupleResult(caller) : several_results};
}

std::vector<Shape> ShapesOf(const Computation& computation, const std::vector<Value>& values) {
  std::vector<Shape> shapes;
  for (const Value value : values) shapes.push_back(computation.shape(value));
  return shapes;
}

std::vector<Shape> ParameterShapes(const Computation& computation) {
  std::vector<Shape> shapes;
  for (const InstructionId id : computation.parameters) {
    shapes.push_back(computation.instructions[id].shape());
  }
  return shapes;
}

hlo::ShapeProto ListShape(const std::vector<Shape>& shapes, bool as_tuple) {
  return as_tuple ? TupleShapeProto(shapes) : ArrayShapeProto(shapes[0]);
}

// A structure of OpaqueAttributes, which import or text wrote.
hlo::ShapeProto StructureShape(const std::string& structure, const std::vector<Shape>& leaves) {
  TextCursor cursor(structure);
  auto shape = ParseShape(cursor);
  MINKA_CHECK(shape.ok() && Leaves(*shape) == leaves, "structure {} does not fit its {} arrays",
              structure, leaves.size());
  return *std::move(shape);
}

hlo::ShapeProto ResultShape(const Instruction& instruction) {
  if (const auto* opaque = std::get_if<OpaqueAttributes>(&instruction.attributes)) {
    if (!opaque->result_structure.empty()) {
      return StructureShape(opaque->result_structure, instruction.results);
    }
  }
  return ListShape(instruction.results, HasTupleResult(instruction));
}

template <typename Proto>
void SetFrontendAttributes(const std::map<std::string, std::string>& attributes, Proto& proto) {
  for (const auto& [key, value] : attributes) {
    auto* entry = proto.mutable_frontend_attributes()->add_map();
    entry->set_key(key);
    entry->set_value(value);
  }
}

void Describe(const Instruction& instruction, hlo::HloInstructionProto& proto) {
  if (instruction.undecoded) {
    const bool parsed = proto.MergeFromString(*instruction.undecoded);
    MINKA_CHECK(parsed, "undecoded fields of '{}' are no proto", instruction.name);
  }
  if (!instruction.op_name.empty()) proto.mutable_metadata()->set_op_name(instruction.op_name);
  SetFrontendAttributes(instruction.frontend_attributes, proto);
}

class ModuleExporter {
 public:
  explicit ModuleExporter(const Module& module) : module_(module) {}

  hlo::HloModuleProto Run() {
    if (module_.undecoded) {
      const bool parsed = proto_.ParseFromString(*module_.undecoded);
      MINKA_CHECK(parsed, "undecoded fields of '{}' are no proto", module_.name);
    }
    proto_.set_name(module_.name.empty() ? "module" : SanitizedName(module_.name));
    AssignNames();
    CollectConventions();
    for (ComputationId id = 0; id < static_cast<int>(module_.computations.size()); ++id) {
      for (const Convention convention : conventions_[id]) ExportComputation(id, convention);
    }
    const auto& entry = proto_.computations(entry_position_);
    proto_.set_entry_computation_name(entry.name());
    proto_.set_entry_computation_id(entry.id());
    *proto_.mutable_host_program_shape() = entry.program_shape();
    for (const Alias& alias : module_.aliases) {
      auto* out = proto_.mutable_input_output_alias()->add_entries();
      out->add_output_shape_index(alias.result);
      out->set_parameter_number(alias.parameter);
      constexpr int kMayAlias = 1;
      out->set_kind(kMayAlias);
    }
    SetFrontendAttributes(module_.frontend_attributes, proto_);
    return std::move(proto_);
  }

 private:
  friend class ComputationExporter;

  // XLA wants instruction names that are unique in the module; the first of several keeps its name.
  void AssignNames() {
    names_by_computation_.resize(module_.computations.size());
    std::vector<std::pair<size_t, InstructionId>> taken;
    for (size_t c = 0; c < module_.computations.size(); ++c) {
      const Computation& computation = module_.computations[c];
      names_by_computation_[c].resize(computation.instructions.size());
      for (InstructionId id = 0; id < computation.num_instructions(); ++id) {
        std::string name = SanitizedName(computation.instructions[id].name);
        const bool own = !name.empty() && names_.Reserve(name);
        if (!own) taken.emplace_back(c, id);
        names_by_computation_[c][id] = std::move(name);
      }
    }
    for (const auto& [c, id] : taken) {
      std::string& name = names_by_computation_[c][id];
      const Instruction& instruction = module_.computations[c].instructions[id];
      name = names_.Take(name.empty() ? std::string(OpcodeName(instruction.opcode)) : name);
    }
  }

  void CollectConventions() {
    conventions_.resize(module_.computations.size());
    for (const Computation& computation : module_.computations) {
      for (const Instruction& instruction : computation.instructions) {
        for (size_t i = 0; i < instruction.called.size(); ++i) {
          conventions_[instruction.called[i]].insert(CallConvention(module_, instruction, i));
          if (IsFusion(instruction)) fused_.insert(instruction.called[i]);
        }
      }
    }
    conventions_[module_.entry].insert(Convention{.tuple_result = true});
    for (size_t c = 0; c < module_.computations.size(); ++c) {
      if (!conventions_[c].empty()) continue;
      conventions_[c].insert({.tuple_result = module_.computations[c].results.size() != 1});
    }
  }

  void ExportComputation(ComputationId id, Convention convention);

  const Module& module_;
  hlo::HloModuleProto proto_;
  UniqueNames names_;
  UniqueNames computation_names_;
  std::vector<std::vector<std::string>> names_by_computation_;
  std::vector<std::set<Convention>> conventions_;
  std::set<ComputationId> fused_;
  std::map<std::pair<ComputationId, Convention>, int64_t> computation_ids_;
  int64_t last_instruction_id_ = 0;
  int entry_position_ = -1;
};

class ComputationExporter {
 public:
  ComputationExporter(ModuleExporter& exporter, ComputationId id, Convention convention)
      : exporter_(exporter),
        computation_(exporter.module_.computations[id]),
        names_(exporter.names_by_computation_[id]),
        convention_(convention),
        uses_(computation_) {}

  // Fills what depends on the instructions: they, the root and the signature.
  void Run(hlo::HloComputationProto* proto) {
    proto_ = proto;
    const std::vector<Shape> parameters = ParameterShapes(computation_);
    auto* program = proto_->mutable_program_shape();
    if (convention_.tuple_parameters) {
      auto* parameter = AddMade("parameter", "arg_tuple", TupleShapeProto(parameters));
      tuple_parameter_id_ = parameter->id();
      *program->add_parameters() = parameter->shape();
      program->add_parameter_names(parameter->name());
    } else {
      for (size_t i = 0; i < parameters.size(); ++i) {
        *program->add_parameters() = ArrayShapeProto(parameters[i]);
        program->add_parameter_names(names_[computation_.parameters[i]]);
      }
    }
    ids_.resize(computation_.instructions.size());
    for (InstructionId id = 0; id < computation_.num_instructions(); ++id) Export(id);
    const int64_t root =
        convention_.tuple_result ? Tuple(computation_.results) : IdOf(computation_.results.front());
    proto_->set_root_id(root);
    *program->mutable_result() =
        ListShape(ShapesOf(computation_, computation_.results), convention_.tuple_result);
  }

 private:
  int64_t IdOf(Value value) const { return ids_[value.instruction][value.result]; }

  hlo::HloInstructionProto* Add(const std::string& opcode, const std::string& name) {
    auto* proto = proto_->add_instructions();
    proto->set_opcode(opcode);
    proto->set_name(name);
    proto->set_id(++exporter_.last_instruction_id_);
    return proto;
  }

  // An instruction that the module does not have, with a name of its own.
  hlo::HloInstructionProto* AddMade(const std::string& opcode, const std::string& name,
                                    const hlo::ShapeProto& shape) {
    auto* proto = Add(opcode, exporter_.names_.Take(name));
    *proto->mutable_shape() = shape;
    return proto;
  }

  int64_t Tuple(const std::vector<Value>& values) {
    auto* tuple = AddMade("tuple", "tuple", TupleShapeProto(ShapesOf(computation_, values)));
    for (const Value value : values) tuple->add_operand_ids(IdOf(value));
    return tuple->id();
  }

  // The arrays of a nested shape taken from `leaves` in order, as nested tuples.
  int64_t Nested(const hlo::ShapeProto& shape, const std::vector<Value>& leaves, size_t& next) {
    if (!IsTuple(shape)) return IdOf(leaves[next++]);
    std::vector<int64_t> elements;
    for (const hlo::ShapeProto& element : shape.tuple_shapes()) {
      elements.push_back(Nested(element, leaves, next));
    }
    auto* tuple = AddMade("tuple", "tuple", shape);
    tuple->mutable_operand_ids()->Assign(elements.begin(), elements.end());
    return tuple->id();
  }

  void Export(InstructionId id) {
    const Instruction& instruction = computation_.instructions[id];
    if (instruction.opcode == Opcode::kParameter) {
      ExportParameter(id, instruction);
      return;
    }
    const std::vector<int64_t> operands = OperandIds(instruction);
    const auto* opaque = std::get_if<OpaqueAttributes>(&instruction.attributes);
    const bool is_other = instruction.opcode == Opcode::kOther;
    auto* proto = Add("", names_[id]);
    Describe(instruction, *proto);
    proto->set_opcode(is_other ? opaque->name : std::string(OpcodeName(instruction.opcode)));
    *proto->mutable_shape() = ResultShape(instruction);
    proto->mutable_operand_ids()->Assign(operands.begin(), operands.end());
    for (size_t i = 0; i < instruction.called.size(); ++i) {
      const Convention convention = CallConvention(exporter_.module_, instruction, i);
      proto->add_called_computation_ids(
          exporter_.computation_ids_.at({instruction.called[i], convention}));
    }
    EncodeAttributes(instruction, ShapesOf(computation_, instruction.operands), *proto);
    ids_[id].resize(instruction.results.size(), -1);
    int next = 0;
    SplitResult(id, proto->id(), hlo::ShapeProto(proto->shape()), next);
  }

  void ExportParameter(InstructionId id, const Instruction& instruction) {
    const auto number = instruction.As<ParameterAttributes>().number;
    auto* proto = Add("", names_[id]);
    Describe(instruction, *proto);
    *proto->mutable_shape() = ArrayShapeProto(instruction.shape());
    if (convention_.tuple_parameters) {
      proto->set_opcode("get-tuple-element");
      proto->set_tuple_index(number);
      proto->add_operand_ids(tuple_parameter_id_);
    } else {
      proto->set_opcode("parameter");
      proto->set_parameter_number(number);
    }
    ids_[id] = {proto->id()};
  }

  std::vector<int64_t> OperandIds(const Instruction& instruction) {
    const std::vector<Value>& operands = instruction.operands;
    if (instruction.opcode == Opcode::kWhile) return {Tuple(operands)};
    if (instruction.opcode == Opcode::kOptBarrier && operands.size() != 1) {
      return {Tuple(operands)};
    }
    if (instruction.opcode == Opcode::kConditional) return ConditionalOperandIds(instruction);
    if (const auto* opaque = std::get_if<OpaqueAttributes>(&instruction.attributes)) {
      if (!opaque->operand_structure.empty()) {
        return StructuredOperandIds(opaque->operand_structure, operands);
      }
    }
    std::vector<int64_t> ids;
    for (const Value operand : operands) ids.push_back(IdOf(operand));
    return ids;
  }

  // The predicate, then one argument per branch: its only parameter or a tuple of all.
  std::vector<int64_t> ConditionalOperandIds(const Instruction& instruction) {
    std::vector<int64_t> ids = {IdOf(instruction.operands[0])};
    auto next = instruction.operands.begin() + 1;
    for (const ComputationId branch : instruction.called) {
      const auto count =
          static_cast<int64_t>(exporter_.module_.computations[branch].parameters.size());
      const std::vector<Value> arguments(next, next + count);
      ids.push_back(count == 1 ? IdOf(arguments[0]) : Tuple(arguments));
      next += count;
    }
    return ids;
  }

  std::vector<int64_t> StructuredOperandIds(const std::string& structure,
                                            const std::vector<Value>& operands) {
    const hlo::ShapeProto shape = StructureShape(structure, ShapesOf(computation_, operands));
    std::vector<int64_t> ids;
    size_t next = 0;
    for (const hlo::ShapeProto& element : shape.tuple_shapes()) {
      ids.push_back(Nested(element, operands, next));
    }
    return ids;
  }

  bool IsRead(Value value) const { return uses_.is_result(value) || !uses_.uses(value).empty(); }

  bool IsAnyRead(InstructionId id, int first, int64_t count) const {
    for (int i = first; i < first + count; ++i) {
      if (IsRead({id, i})) return true;
    }
    return false;
  }

  // Takes the tuple `tuple_id` apart as far as its elements are read; `next` counts results.
  void SplitResult(InstructionId id, int64_t tuple_id, const hlo::ShapeProto& shape, int& next) {
    if (!IsTuple(shape)) {
      ids_[id][next++] = tuple_id;
      return;
    }
    for (int i = 0; i < shape.tuple_shapes_size(); ++i) {
      const hlo::ShapeProto& element = shape.tuple_shapes(i);
      const int64_t num_leaves = NumLeaves(element);
      if (!IsAnyRead(id, next, num_leaves)) {
        next += static_cast<int>(num_leaves);
        continue;
      }
      auto* part = AddMade("get-tuple-element", fmt::format("{}.{}", names_[id], i), element);
      part->set_tuple_index(i);
      part->add_operand_ids(tuple_id);
      SplitResult(id, part->id(), element, next);
    }
  }

  ModuleExporter& exporter_;
  const Computation& computation_;
  const std::vector<std::string>& names_;
  Convention convention_;
  UseTable uses_;
  hlo::HloComputationProto* proto_ = nullptr;
  std::vector<std::vector<int64_t>> ids_;  // by instruction and result; -1: nobody reads it
  int64_t tuple_parameter_id_ = -1;
};

void ModuleExporter::ExportComputation(ComputationId id, Convention convention) {
  constexpr Convention kEntry = {.tuple_parameters = false, .tuple_result = true};
  if (id == module_.entry && convention == kEntry) entry_position_ = proto_.computations_size();
  auto* proto = proto_.add_computations();
  const int64_t proto_id = proto_.computations_size();
  const std::string name = SanitizedName(module_.computations[id].name);
  proto->set_id(proto_id);
  proto->set_name(computation_names_.Take(name.empty() ? "computation" : name));
  proto->set_is_fusion_computation(fused_.contains(id));
  ComputationExporter(*this, id, convention).Run(proto);
  computation_ids_[{id, convention}] = proto_id;
  // A second copy for another signature gets names of its own.
  for (std::string& instruction_name : names_by_computation_[id]) {
    if (conventions_[id].size() > 1) instruction_name = names_.Take(instruction_name);
  }
}

}  // namespace

hlo::HloModuleProto ModuleToProto(const Module& module) { return ModuleExporter(module).Run(); }

std::string ExportHlo(const Module& module) { return Serialized(ModuleToProto(module)); }

}  // namespace minka
