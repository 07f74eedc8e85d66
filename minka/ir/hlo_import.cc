#include <algorithm>
#include <limits>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "minka/base/check.h"
#include "minka/base/status.h"
#include "minka/ir/hlo_attributes.h"
#include "minka/ir/hlo_literal.h"
#include "minka/ir/hlo_message.h"
#include "minka/ir/hlo_proto.h"
#include "minka/ir/hlo_shape.h"
#include "minka/ir/names.h"
#include "minka/ir/source_lines.h"
#include "minka/ir/verifier.h"

namespace minka {
namespace {

using Int64s = google::protobuf::RepeatedField<int64_t>;
using ComputationIds = absl::flat_hash_map<int64_t, ComputationId>;

std::map<std::string, std::string> AttributeMap(const hlo::FrontendAttributes& attributes) {
  std::map<std::string, std::string> map;
  for (const auto& entry : attributes.map()) map[entry.key()] = entry.value();
  return map;
}

// XLA refuses other strings.
absl::Status CheckText(const hlo::FrontendAttributes& attributes) {
  for (const auto& entry : attributes.map()) {
    if (IsUtf8(entry.key()) && IsUtf8(entry.value())) continue;
    return InvalidArgument("a frontend attribute is not UTF-8");
  }
  return absl::OkStatus();
}

std::shared_ptr<const std::string> BytesOrNull(const google::protobuf::MessageLite& message) {
  std::string bytes = Serialized(message);
  return bytes.empty() ? nullptr : std::make_shared<const std::string>(std::move(bytes));
}

// Position of the array at `index` in the depth-first order of the arrays of `shape`; nullopt where
// there is none.
std::optional<int64_t> LeafPosition(const hlo::ShapeProto& shape, const Int64s& index) {
  int64_t position = 0;
  const hlo::ShapeProto* part = &shape;
  for (const int64_t step : index) {
    if (!IsTuple(*part) || step < 0 || step >= part->tuple_shapes_size()) return std::nullopt;
    for (int i = 0; i < step; ++i) position += NumLeaves(part->tuple_shapes(i));
    part = &part->tuple_shapes(static_cast<int>(step));
  }
  if (IsTuple(*part)) return std::nullopt;
  return position;
}

bool IsOpaque(Opcode opcode) { return opcode == Opcode::kOther || opcode == Opcode::kCustomCall; }

// Opcodes that take tuples; the list of their operands is flattened.
bool TakesTuples(Opcode opcode) {
  return IsOpaque(opcode) || opcode == Opcode::kCall || opcode == Opcode::kConditional ||
         opcode == Opcode::kOptBarrier || opcode == Opcode::kWhile;
}

// The shape with its order of dimensions, without tiles, memory spaces and other fields.
hlo::ShapeProto WithoutTiling(const hlo::ShapeProto& shape) {
  const std::string text = ShapeText(shape);
  TextCursor cursor(text);
  return *ParseShape(cursor);
}

// What the exporter would write without being told: one array, or a flat tuple of several.
bool IsPlainStructure(const hlo::ShapeProto& shape) {
  if (!IsTuple(shape)) return HasDefaultLayout(shape);
  return shape.tuple_shapes_size() > 1 &&
         std::ranges::all_of(shape.tuple_shapes(), [](const hlo::ShapeProto& element) {
           return !IsTuple(element) && HasDefaultLayout(element);
         });
}

// XLA's writer sets these always; absent they mean the same.
void ClearDefaults(hlo::HloInstructionProto& proto) {
  if (proto.feature_group_count() == 1) proto.clear_feature_group_count();
  if (proto.batch_group_count() == 1) proto.clear_batch_group_count();
  const auto& precision = proto.precision_config();
  const bool is_default =
      precision.algorithm() == 0 &&
      std::ranges::all_of(precision.operand_precision(), [](int32_t level) { return level == 0; });
  if (is_default) proto.clear_precision_config();
}

// Arrays and tuples that the shape consists of.
int64_t NumParts(const hlo::ShapeProto& shape) {
  int64_t num_parts = 1;
  if (!IsTuple(shape)) return num_parts;
  for (const hlo::ShapeProto& element : shape.tuple_shapes()) num_parts += NumParts(element);
  return num_parts;
}

// An instruction that names one large tuple many times flattens to many operands; this many in a
// module are more than any real one has.
constexpr int64_t kMaxFlatOperands = int64_t{1} << 24;

// A computation and the shapes of its HLO signature, in which tuples nest.
struct ImportedComputation {
  Computation computation;
  std::vector<hlo::ShapeProto> parameters;
  hlo::ShapeProto result;
};

class ComputationImporter {
 public:
  // Counts the flattened operands in `num_operands`.
  ComputationImporter(hlo::HloComputationProto& proto, const ComputationIds& computation_ids,
                      const SourceLines& source_lines, int64_t& num_operands)
      : proto_(proto),
        computation_ids_(computation_ids),
        source_lines_(source_lines),
        num_operands_(num_operands) {}

  absl::StatusOr<ImportedComputation> Run() {
    result_.computation.name = proto_.name();
    RETURN_IF_ERROR(NumberParameters());
    ReserveNames();
    sources_.resize(proto_.instructions_size());
    for (int i = 0; i < proto_.instructions_size(); ++i) {
      if (absl::Status status = ImportInstruction(i); !status.ok()) {
        const std::string& name = sources_[i].name;
        return WithContext(status,
                           name.empty() ? fmt::format("instruction {}", i) : "'" + name + "'");
      }
    }
    RETURN_IF_ERROR(SetResults());
    ListParameters();
    return std::move(result_);
  }

 private:
  // What later instructions need of one instruction of the proto.
  struct Source {
    std::string name;
    bool owns_name = false;  // its name is reserved for it
    hlo::ShapeProto shape;
    // The values of its arrays, depth first. {-1, n} is flat parameter n, of tuple shape in the
    // proto and not read yet.
    std::vector<Value> leaves;
  };

  struct FlatParameter {
    Shape shape;
    std::string name;  // where no get-tuple-element gives one
    InstructionId instruction = -1;
  };

  // Tuple-shaped parameters become several: their numbers follow from the sizes of those before.
  absl::Status NumberParameters() {
    std::vector<const hlo::HloInstructionProto*> by_number;
    for (const hlo::HloInstructionProto& instruction : proto_.instructions()) {
      if (instruction.opcode() != "parameter") continue;
      const int64_t number = instruction.parameter_number();
      if (number < 0 || number >= proto_.instructions_size()) {
        return InvalidArgument("'{}': parameter number {}", instruction.name(), number);
      }
      by_number.resize(std::max<size_t>(by_number.size(), number + 1));
      if (by_number[number] != nullptr) {
        return InvalidArgument("'{}' and '{}' are both parameter {}", by_number[number]->name(),
                               instruction.name(), number);
      }
      by_number[number] = &instruction;
    }
    for (size_t number = 0; number < by_number.size(); ++number) {
      const hlo::HloInstructionProto* parameter = by_number[number];
      if (parameter == nullptr) return InvalidArgument("there is no parameter {}", number);
      RETURN_IF_ERROR(WithContext(CheckShape(parameter->shape()), "'" + parameter->name() + "'"));
      first_leaf_.push_back(static_cast<int>(parameters_.size()));
      for (Shape& leaf : Leaves(parameter->shape())) {
        parameters_.push_back(
            {.shape = std::move(leaf),
             .name = fmt::format("{}.{}", parameter->name(),
                                 parameters_.size() - static_cast<size_t>(first_leaf_.back()))});
      }
      result_.parameters.push_back(parameter->shape());
    }
    return absl::OkStatus();
  }

  // Names in the proto come before names made here.
  void ReserveNames() {
    owns_name_.resize(proto_.instructions_size());
    for (int i = 0; i < proto_.instructions_size(); ++i) {
      const std::string name = SanitizedName(proto_.instructions(i).name());
      owns_name_[i] = !name.empty() && names_.Reserve(name);
    }
  }

  std::string UniqueName(int index, const std::string& opcode) {
    std::string name = SanitizedName(sources_[index].name);
    if (owns_name_[index]) return name;
    return names_.Take(name.empty() ? SanitizedName(opcode) : name);
  }

  absl::Status ImportInstruction(int index) {
    hlo::HloInstructionProto& proto = *proto_.mutable_instructions(index);
    Source& source = sources_[index];
    source.name.swap(*proto.mutable_name());
    RETURN_IF_ERROR(CheckShape(proto.shape()));
    RETURN_IF_ERROR(CheckText(proto.frontend_attributes()));
    if (!IsUtf8(proto.metadata().op_name())) return InvalidArgument("its op_name is not UTF-8");
    source.shape.Swap(proto.mutable_shape());
    proto.clear_shape();
    const auto id = static_cast<uint32_t>(proto.id());
    proto.clear_id();
    RETURN_IF_ERROR(ImportByOpcode(index, proto));
    if (by_id_.emplace(id, index).second) return absl::OkStatus();
    return InvalidArgument("an instruction before it has its id {}, too", id);
  }

  absl::Status ImportByOpcode(int index, hlo::HloInstructionProto& proto) {
    const std::string opcode = std::move(*proto.mutable_opcode());
    proto.clear_opcode();
    if (opcode == "parameter") return ImportParameter(index, proto);
    if (opcode == "tuple") return ImportTuple(index, proto);
    if (opcode == "get-tuple-element") return ImportTupleElement(index, proto);
    if (opcode == "constant") {
      hlo::LiteralProto literal;
      literal.Swap(proto.mutable_literal());
      proto.clear_literal();
      return ImportConstant(index, sources_[index].shape, literal, proto);
    }
    return ImportOperation(index, opcode, proto);
  }

  // Appends with what every instruction has: its name, the frontend's name and attributes, and the
  // bytes of the fields that nobody took. Source positions but the line and XLA's own statistics
  // are dropped: they would keep equal operations apart. Control predecessors are, too: modules
  // have them after XLA's scheduling only.
  InstructionId Append(Instruction instruction, hlo::HloInstructionProto& rest) {
    instruction.op_name = rest.metadata().op_name();
    instruction.source_line = source_lines_.Of(rest.metadata());
    instruction.frontend_attributes = AttributeMap(rest.frontend_attributes());
    hlo::HloInstructionProto kept;
    kept.Swap(&rest);
    kept.clear_metadata();
    kept.clear_frontend_attributes();
    kept.clear_statistics_viz();
    kept.clear_control_predecessor_ids();
    kept.clear_operand_ids();
    kept.clear_called_computation_ids();
    ClearDefaults(kept);
    instruction.undecoded = BytesOrNull(kept);
    return Append(std::move(instruction));
  }

  InstructionId Append(Instruction instruction) {
    std::vector<Instruction>& instructions = result_.computation.instructions;
    instructions.push_back(std::move(instruction));
    return static_cast<InstructionId>(instructions.size() - 1);
  }

  absl::Status ImportParameter(int index, hlo::HloInstructionProto& proto) {
    Source& source = sources_[index];
    const int first = first_leaf_[proto.parameter_number()];
    proto.clear_parameter_number();
    const auto num_leaves = static_cast<int>(NumLeaves(source.shape));
    for (int i = 0; i < num_leaves; ++i) source.leaves.push_back({-1, first + i});
    if (!IsTuple(source.shape)) ReadParameter(index, proto);
    return absl::OkStatus();
  }

  static Instruction ParameterInstruction(int number, const FlatParameter& parameter) {
    Instruction instruction;
    instruction.opcode = Opcode::kParameter;
    instruction.results = {parameter.shape};
    instruction.attributes = ParameterAttributes{number};
    return instruction;
  }

  // Makes the parameter that the array `index` stands for, if that was not done yet: the
  // get-tuple-element that reads it first names it.
  void ReadParameter(int index, hlo::HloInstructionProto& proto) {
    Value& value = sources_[index].leaves[0];
    if (value.instruction >= 0) return;
    FlatParameter& parameter = parameters_[value.result];
    if (parameter.instruction < 0) {
      Instruction instruction = ParameterInstruction(value.result, parameter);
      instruction.name = UniqueName(index, "parameter");
      parameter.instruction = Append(std::move(instruction), proto);
    }
    value = {parameter.instruction, 0};
  }

  // The same for an element that is read with its whole tuple only.
  Value Resolved(Value value) {
    if (value.instruction >= 0) return value;
    FlatParameter& parameter = parameters_[value.result];
    if (parameter.instruction < 0) {
      Instruction instruction = ParameterInstruction(value.result, parameter);
      instruction.name = names_.Take(SanitizedName(parameter.name));
      parameter.instruction = Append(std::move(instruction));
    }
    return {parameter.instruction, 0};
  }

  absl::StatusOr<int> Find(int64_t id) const {
    const auto found = by_id_.find(static_cast<uint32_t>(id));
    if (found != by_id_.end()) return found->second;
    return InvalidArgument("no instruction before it has the id {}", static_cast<uint32_t>(id));
  }

  absl::Status ImportTuple(int index, const hlo::HloInstructionProto& proto) {
    Source& source = sources_[index];
    if (!IsTuple(source.shape) || source.shape.tuple_shapes_size() != proto.operand_ids_size()) {
      return InvalidArgument("tuple: {} operands, but its shape is {}", proto.operand_ids_size(),
                             ShapeText(source.shape));
    }
    for (int i = 0; i < proto.operand_ids_size(); ++i) {
      ASSIGN_OR_RETURN(const int operand_index, Find(proto.operand_ids(i)));
      const Source& operand = sources_[operand_index];
      if (!SameShape(operand.shape, source.shape.tuple_shapes(i))) {
        return InvalidArgument("tuple: operand {} is {}, its shape says {}", i,
                               ShapeText(operand.shape), ShapeText(source.shape.tuple_shapes(i)));
      }
      source.leaves.insert(source.leaves.end(), operand.leaves.begin(), operand.leaves.end());
    }
    return absl::OkStatus();
  }

  absl::Status ImportTupleElement(int index, hlo::HloInstructionProto& proto) {
    if (proto.operand_ids_size() != 1) {
      return InvalidArgument("get-tuple-element: {} operands", proto.operand_ids_size());
    }
    ASSIGN_OR_RETURN(const int operand, Find(proto.operand_ids(0)));
    const hlo::ShapeProto& tuple = sources_[operand].shape;
    const int64_t element = proto.tuple_index();
    proto.clear_tuple_index();
    if (!IsTuple(tuple) || element < 0 || element >= tuple.tuple_shapes_size()) {
      return InvalidArgument("get-tuple-element: {} has no element {}", ShapeText(tuple), element);
    }
    Source& source = sources_[index];
    if (!SameShape(tuple.tuple_shapes(static_cast<int>(element)), source.shape)) {
      return InvalidArgument("get-tuple-element: element {} of {} is not {}", element,
                             ShapeText(tuple), ShapeText(source.shape));
    }
    int64_t first = 0;
    for (int i = 0; i < element; ++i) first += NumLeaves(tuple.tuple_shapes(i));
    const auto begin = sources_[operand].leaves.begin() + first;
    source.leaves.assign(begin, begin + NumLeaves(source.shape));
    if (!IsTuple(source.shape)) ReadParameter(index, proto);
    return absl::OkStatus();
  }

  // A constant of tuple shape becomes several.
  absl::Status ImportConstant(int index, const hlo::ShapeProto& shape, hlo::LiteralProto& literal,
                              hlo::HloInstructionProto& proto) {
    if (IsTuple(shape)) {
      if (literal.tuple_literals_size() != shape.tuple_shapes_size()) {
        return InvalidArgument("constant: {} literals for {}", literal.tuple_literals_size(),
                               ShapeText(shape));
      }
      for (int i = 0; i < shape.tuple_shapes_size(); ++i) {
        RETURN_IF_ERROR(ImportConstant(index, shape.tuple_shapes(i),
                                       *literal.mutable_tuple_literals(i), proto));
      }
      return absl::OkStatus();
    }
    RETURN_IF_ERROR(WithContext(CheckShape(literal.shape()), "constant"));
    if (!SameShape(shape, literal.shape())) {
      return InvalidArgument("constant: the literal is {}, the instruction {}",
                             ShapeText(literal.shape()), ShapeText(shape));
    }
    ASSIGN_OR_RETURN(Literal value, LiteralFromProto(literal));
    Instruction instruction;
    instruction.opcode = Opcode::kConstant;
    instruction.name =
        sources_[index].leaves.empty() ? UniqueName(index, "constant") : names_.Take("constant");
    instruction.results = {ArrayShape(shape)};
    instruction.attributes = ConstantAttributes{std::move(value)};
    sources_[index].leaves.push_back({Append(std::move(instruction), proto), 0});
    return absl::OkStatus();
  }

  absl::Status ImportOperation(int index, const std::string& opcode,
                               hlo::HloInstructionProto& proto) {
    if (opcode.empty() || SanitizedName(opcode) != opcode) {
      return InvalidArgument("'{}' is no opcode", opcode);
    }
    Instruction instruction;
    instruction.opcode = ParseOpcode(opcode).value_or(Opcode::kOther);
    RETURN_IF_ERROR(WithContext(SetOperands(proto, instruction), opcode));
    RETURN_IF_ERROR(WithContext(SetCalled(proto, instruction), opcode));
    Source& source = sources_[index];
    if (IsOpaque(instruction.opcode)) {
      SetOpaqueAttributes(opcode, source, proto, instruction);
    } else {
      auto attributes = DecodeAttributes(instruction.opcode, proto);
      if (!attributes.ok()) return WithContext(attributes.status(), opcode);
      instruction.attributes = *std::move(attributes);
    }
    instruction.name = UniqueName(index, opcode);
    instruction.results = Leaves(source.shape);
    const auto num_results = static_cast<int>(instruction.results.size());
    const InstructionId id = Append(std::move(instruction), proto);
    for (int i = 0; i < num_results; ++i) source.leaves.push_back({id, i});
    return absl::OkStatus();
  }

  absl::Status SetOperands(const hlo::HloInstructionProto& proto, Instruction& instruction) {
    for (const int64_t operand_id : proto.operand_ids()) {
      ASSIGN_OR_RETURN(const int operand, Find(operand_id));
      const hlo::ShapeProto& shape = sources_[operand].shape;
      num_operands_ += NumParts(shape);
      if (num_operands_ > kMaxFlatOperands) {
        return InvalidArgument("the module's operands flatten to more than {}", kMaxFlatOperands);
      }
      if (IsTuple(shape) && !TakesTuples(instruction.opcode)) {
        return InvalidArgument("operand {} is {}, not an array", instruction.operands.size(),
                               ShapeText(shape));
      }
      for (const Value leaf : sources_[operand].leaves) {
        instruction.operands.push_back(Resolved(leaf));
      }
    }
    return absl::OkStatus();
  }

  absl::Status SetCalled(const hlo::HloInstructionProto& proto, Instruction& instruction) const {
    for (const int64_t id : proto.called_computation_ids()) {
      const auto found = computation_ids_.find(id);
      if (found == computation_ids_.end()) {
        return InvalidArgument("no computation before this one has the id {}", id);
      }
      instruction.called.push_back(found->second);
    }
    return absl::OkStatus();
  }

  void SetOpaqueAttributes(const std::string& opcode, const Source& source,
                           hlo::HloInstructionProto& proto, Instruction& instruction) const {
    OpaqueAttributes attributes{.name = opcode};
    if (instruction.opcode == Opcode::kCustomCall) {
      attributes.name = std::move(*proto.mutable_custom_call_target());
      proto.clear_custom_call_target();
    }
    for (hlo::ShapeProto& shape : *proto.mutable_operand_shapes_with_layout()) {
      if (CheckShape(shape).ok()) shape = WithoutTiling(shape);
    }
    hlo::ShapeProto operands;
    operands.set_element_type(kTuplePrimitiveType);
    bool has_tuple = false;
    for (const int64_t id : proto.operand_ids()) {
      const hlo::ShapeProto& shape = sources_[by_id_.at(static_cast<uint32_t>(id))].shape;
      has_tuple = has_tuple || IsTuple(shape);
      *operands.add_tuple_shapes() = shape;
    }
    if (has_tuple) attributes.operand_structure = ShapeText(operands);
    if (!IsPlainStructure(source.shape)) attributes.result_structure = ShapeText(source.shape);
    instruction.attributes = std::move(attributes);
  }

  absl::Status SetResults() {
    const auto root = by_id_.find(static_cast<uint32_t>(proto_.root_id()));
    if (root == by_id_.end()) {
      return InvalidArgument("no instruction has the root's id {}",
                             static_cast<uint32_t>(proto_.root_id()));
    }
    Source& source = sources_[root->second];
    for (const Value leaf : source.leaves) result_.computation.results.push_back(Resolved(leaf));
    result_.result.Swap(&source.shape);
    return absl::OkStatus();
  }

  // Elements of parameters that nothing reads are parameters all the same.
  void ListParameters() {
    for (int number = 0; number < static_cast<int>(parameters_.size()); ++number) {
      result_.computation.parameters.push_back(Resolved({-1, number}).instruction);
    }
  }

  hlo::HloComputationProto& proto_;
  const ComputationIds& computation_ids_;
  const SourceLines& source_lines_;
  int64_t& num_operands_;
  ImportedComputation result_;
  std::vector<FlatParameter> parameters_;
  std::vector<int> first_leaf_;  // by parameter number of the proto
  std::vector<bool> owns_name_;
  std::vector<Source> sources_;  // by position in the proto
  absl::flat_hash_map<uint32_t, int> by_id_;
  UniqueNames names_;
};

// The entry by its id; by its name where no id is given (id 0 is not on the wire).
absl::StatusOr<int> EntryIndex(const hlo::HloModuleProto& proto) {
  const std::string& name = proto.entry_computation_name();
  std::optional<int> by_id;
  std::optional<int> by_name;
  for (int i = 0; i < proto.computations_size(); ++i) {
    if (proto.computations(i).id() == proto.entry_computation_id()) by_id = i;
    if (!name.empty() && proto.computations(i).name() == name) by_name = i;
  }
  if (by_name && (proto.entry_computation_id() == 0 || !by_id)) return *by_name;
  if (by_id) return *by_id;
  return InvalidArgument("no computation has the entry's id {} or name '{}'",
                         proto.entry_computation_id(), name);
}

// Number after flattening of the array at `index` of parameter `number`; nullopt where there is
// none.
std::optional<int> FlatParameterNumber(const ImportedComputation& entry, int64_t number,
                                       const Int64s& index) {
  if (number < 0 || number >= static_cast<int64_t>(entry.parameters.size())) return std::nullopt;
  int64_t first = 0;
  for (int64_t i = 0; i < number; ++i) first += NumLeaves(entry.parameters[i]);
  const auto leaf = LeafPosition(entry.parameters[number], index);
  if (!leaf) return std::nullopt;
  return static_cast<int>(first + *leaf);
}

absl::Status ImportAliases(const hlo::HloInputOutputAlias& proto, const ImportedComputation& entry,
                           Module& module) {
  for (const auto& alias : proto.entries()) {
    const auto result = LeafPosition(entry.result, alias.output_shape_index());
    const auto parameter =
        FlatParameterNumber(entry, alias.parameter_number(), alias.parameter_shape_index());
    if (!result || !parameter) {
      return InvalidArgument("an alias of parameter {} names no array", alias.parameter_number());
    }
    module.aliases.push_back({static_cast<int>(*result), *parameter});
  }
  return absl::OkStatus();
}

// Donated parameters by their flat numbers; those that do not exist are dropped.
void FlattenDonors(const ImportedComputation& entry, hlo::HloBufferDonor& donors) {
  hlo::HloBufferDonor flat;
  for (const auto& donor : donors.entries()) {
    const auto number =
        FlatParameterNumber(entry, donor.parameter_number(), donor.parameter_shape_index());
    if (number) flat.add_entries()->set_parameter_number(*number);
  }
  donors.Swap(&flat);
}

void SetModuleUndecoded(const ImportedComputation& entry, hlo::HloModuleProto& proto,
                        Module& module) {
  proto.clear_name();
  proto.clear_entry_computation_name();
  proto.clear_computations();
  proto.clear_host_program_shape();
  proto.clear_id();
  proto.clear_entry_computation_id();
  proto.clear_schedule();
  proto.clear_input_output_alias();
  proto.clear_cross_program_prefetches();
  proto.clear_stack_frame_index();
  proto.clear_frontend_attributes();
  if (proto.has_buffer_donor()) FlattenDonors(entry, *proto.mutable_buffer_donor());
  if (proto.buffer_donor().entries_size() == 0) proto.clear_buffer_donor();
  module.undecoded = BytesOrNull(proto);
}

}  // namespace

std::string Serialized(const google::protobuf::MessageLite& message) {
  std::string bytes;
  MINKA_CHECK(message.SerializeToString(&bytes), "a module above 2 GiB has no proto");
  return bytes;
}

absl::StatusOr<Module> ModuleFromProto(hlo::HloModuleProto proto) {
  ASSIGN_OR_RETURN(const int entry_index, EntryIndex(proto));
  RETURN_IF_ERROR(CheckText(proto.frontend_attributes()));
  Module module;
  module.name = SanitizedName(proto.name());
  module.frontend_attributes = AttributeMap(proto.frontend_attributes());
  ComputationIds ids;
  UniqueNames names;
  ImportedComputation entry;
  const SourceLines source_lines(proto.stack_frame_index());
  int64_t num_operands = 0;
  for (int i = 0; i < proto.computations_size(); ++i) {
    hlo::HloComputationProto& computation = *proto.mutable_computations(i);
    auto imported = ComputationImporter(computation, ids, source_lines, num_operands).Run();
    if (!imported.ok()) {
      return WithContext(imported.status(), "in '" + computation.name() + "'");
    }
    const std::string name = SanitizedName(computation.name());
    imported->computation.name = names.Take(name.empty() ? "computation" : name);
    module.computations.push_back(std::move(imported->computation));
    if (!ids.emplace(computation.id(), i).second) {
      return InvalidArgument("two computations have the id {}", computation.id());
    }
    if (i == entry_index) entry = *std::move(imported);
    computation.Clear();  // its constants are in the module now
  }
  module.entry = entry_index;
  RETURN_IF_ERROR(ImportAliases(proto.input_output_alias(), entry, module));
  SetModuleUndecoded(entry, proto, module);
  RETURN_IF_ERROR(Verify(module));
  return module;
}

absl::StatusOr<Module> ImportHlo(std::string_view bytes) {
  if (bytes.size() > std::numeric_limits<int>::max()) {
    return InvalidArgument("{} bytes are more than a proto can have", bytes.size());
  }
  const int size = static_cast<int>(bytes.size());
  hlo::HloModuleHolder holder;
  if (holder.ParseFromArray(bytes.data(), size) && holder.hlo_module().computations_size() > 0) {
    return ModuleFromProto(std::move(*holder.mutable_hlo_module()));
  }
  hlo::HloModuleProto proto;
  if (!proto.ParseFromArray(bytes.data(), size)) {
    return InvalidArgument("not an HLO module: the bytes are no proto");
  }
  if (proto.computations_size() == 0) {
    return InvalidArgument("not an HLO module: there are no computations");
  }
  return ModuleFromProto(std::move(proto));
}

}  // namespace minka
