#include <algorithm>
#include <map>

#include "absl/strings/escaping.h"
#include "minka/ir/hlo_literal.h"
#include "minka/ir/hlo_message.h"
#include "minka/ir/hlo_proto.h"
#include "minka/ir/hlo_shape.h"
#include "minka/ir/hlo_text_attributes.h"
#include "minka/ir/hlo_text_syntax.h"

namespace minka {
namespace {

// Attributes of XLA's text that say nothing here: layouts, schedules and sizes of its own.
bool IsDropped(std::string_view name) {
  constexpr std::string_view kDropped[] = {
      "entry_computation_layout", "is_scheduled",  "allow_spmd_sharding_propagation_to_output",
      "num_partitions",           "replica_count", "allow_spmd_sharding_propagation_to_parameters",
      "execution_thread"};
  return std::ranges::find(kDropped, name) != std::end(kDropped);
}

absl::Status DropValue(TextCursor& cursor) {
  if (cursor.LooksAt("{")) return cursor.Braced().status();
  if (cursor.LooksAt("\"")) return cursor.String().status();
  return cursor.Name().status();
}

// %name, or name alone.
absl::StatusOr<std::string> ReadName(TextCursor& cursor) {
  cursor.Consume("%");
  return cursor.Name();
}

absl::Status MergeExtra(TextCursor& cursor, google::protobuf::MessageLite& message) {
  ASSIGN_OR_RETURN(const std::string text, cursor.String());
  std::string bytes;
  if (!absl::Base64Unescape(text, &bytes)) return cursor.Error("base64 expected");
  if (!message.MergeFromString(bytes)) return cursor.Error("minka_extra is no proto");
  return absl::OkStatus();
}

class ModuleParser {
 public:
  explicit ModuleParser(std::string_view text) : cursor_(text) {}

  absl::StatusOr<hlo::HloModuleProto> Run() {
    RETURN_IF_ERROR(ParseHeader());
    while (!cursor_.AtEnd()) RETURN_IF_ERROR(ParseComputation());
    if (module_.entry_computation_id() == 0) {
      return InvalidArgument("no computation is marked as ENTRY");
    }
    return std::move(module_);
  }

 private:
  absl::Status ParseHeader() {
    RETURN_IF_ERROR(cursor_.Expect("HloModule"));
    ASSIGN_OR_RETURN(const std::string module_name, ReadName(cursor_));
    module_.set_name(module_name);
    while (cursor_.Consume(",")) {
      ASSIGN_OR_RETURN(const std::string name, cursor_.Name());
      RETURN_IF_ERROR(cursor_.Expect("="));
      if (name == "input_output_alias") {
        RETURN_IF_ERROR(ParseAliases());
      } else if (name == "frontend_attributes") {
        RETURN_IF_ERROR(ParseFrontendAttributes(cursor_, *module_.mutable_frontend_attributes()));
      } else if (name == "minka_extra") {
        RETURN_IF_ERROR(MergeExtra(cursor_, module_));
      } else if (IsDropped(name)) {
        RETURN_IF_ERROR(DropValue(cursor_));
      } else {
        return cursor_.Error("a module has no attribute '{}' that is supported", name);
      }
    }
    // What the extra bytes may not say.
    module_.clear_computations();
    module_.clear_entry_computation_id();
    return absl::OkStatus();
  }

  // { {0}: (3, {}, may-alias), {1}: (4, {0}) }
  absl::Status ParseAliases() {
    RETURN_IF_ERROR(cursor_.Expect("{"));
    while (!cursor_.Consume("}")) {
      auto* alias = module_.mutable_input_output_alias()->add_entries();
      ASSIGN_OR_RETURN(const auto result, ParseIntegerList(cursor_));
      RETURN_IF_ERROR(cursor_.Expect(":"));
      RETURN_IF_ERROR(cursor_.Expect("("));
      ASSIGN_OR_RETURN(const int64_t number, cursor_.Integer());
      alias->mutable_output_shape_index()->Assign(result.begin(), result.end());
      alias->set_parameter_number(number);
      if (cursor_.Consume(",")) {
        ASSIGN_OR_RETURN(const auto index, ParseIntegerList(cursor_));
        alias->mutable_parameter_shape_index()->Assign(index.begin(), index.end());
      }
      if (cursor_.Consume(",")) RETURN_IF_ERROR(cursor_.Name().status());
      RETURN_IF_ERROR(cursor_.Expect(")"));
      if (!cursor_.LooksAt("}")) RETURN_IF_ERROR(cursor_.Expect(","));
    }
    return absl::OkStatus();
  }

  // The signature repeats what the instructions say; it is read for its syntax only.
  absl::Status ParseSignature() {
    if (!cursor_.Consume("(")) return absl::OkStatus();
    while (!cursor_.Consume(")")) {
      RETURN_IF_ERROR(ReadName(cursor_).status());
      RETURN_IF_ERROR(cursor_.Expect(":"));
      RETURN_IF_ERROR(ParseShape(cursor_).status());
      if (!cursor_.LooksAt(")")) RETURN_IF_ERROR(cursor_.Expect(","));
    }
    RETURN_IF_ERROR(cursor_.Expect("->"));
    return ParseShape(cursor_).status();
  }

  absl::Status ParseComputation() {
    ASSIGN_OR_RETURN(std::string name, ReadName(cursor_));
    const bool is_entry = name == "ENTRY" && !cursor_.LooksAt("{") && !cursor_.LooksAt("(");
    if (is_entry) {
      ASSIGN_OR_RETURN(name, ReadName(cursor_));
    }
    RETURN_IF_ERROR(ParseSignature());
    RETURN_IF_ERROR(cursor_.Expect("{"));
    computation_ = module_.add_computations();
    computation_->set_name(name);
    computation_->set_id(module_.computations_size());
    instructions_.clear();
    while (!cursor_.Consume("}")) RETURN_IF_ERROR(ParseInstruction());
    RETURN_IF_ERROR(DropComputationAttributes());
    if (computation_->instructions_size() == 0) return cursor_.Error("'{}' is empty", name);
    if (computation_->root_id() == 0) computation_->set_root_id(last_id_);
    if (!computations_.emplace(name, computation_->id()).second) {
      return cursor_.Error("another computation is named '{}', too", name);
    }
    if (!is_entry) return absl::OkStatus();
    if (module_.entry_computation_id() != 0) return cursor_.Error("there are two ENTRY");
    module_.set_entry_computation_id(computation_->id());
    module_.set_entry_computation_name(name);
    return absl::OkStatus();
  }

  absl::Status DropComputationAttributes() {
    while (cursor_.Consume(",")) {
      ASSIGN_OR_RETURN(const std::string name, cursor_.Name());
      if (!IsDropped(name)) {
        return cursor_.Error("a computation has no attribute '{}' that is supported", name);
      }
      RETURN_IF_ERROR(cursor_.Expect("="));
      RETURN_IF_ERROR(DropValue(cursor_));
    }
    return absl::OkStatus();
  }

  // ROOT %name = shape opcode(operands), attribute=value, ...
  absl::Status ParseInstruction() {
    ASSIGN_OR_RETURN(std::string name, ReadName(cursor_));
    const bool is_root = name == "ROOT" && !cursor_.LooksAt("=");
    if (is_root) {
      ASSIGN_OR_RETURN(name, ReadName(cursor_));
    }
    hlo::HloInstructionProto& instruction = *computation_->add_instructions();
    instruction.set_id(++last_id_);
    instruction.set_name(name);
    RETURN_IF_ERROR(cursor_.Expect("="));
    ASSIGN_OR_RETURN(*instruction.mutable_shape(), ParseShape(cursor_));
    ASSIGN_OR_RETURN(*instruction.mutable_opcode(), cursor_.Name());
    RETURN_IF_ERROR(cursor_.Expect("("));
    RETURN_IF_ERROR(ParseInside(instruction));
    RETURN_IF_ERROR(cursor_.Expect(")"));
    while (cursor_.Consume(",")) RETURN_IF_ERROR(ParseAttribute(instruction));
    for (const int64_t id : instruction.called_computation_ids()) {
      if (id == 0) return cursor_.Error("'{}' lacks one of its computations", name);
    }
    if (is_root) computation_->set_root_id(instruction.id());
    if (instructions_.emplace(name, instruction.id()).second) return absl::OkStatus();
    return cursor_.Error("another instruction is named '{}', too", name);
  }

  absl::Status ParseInside(hlo::HloInstructionProto& instruction) {
    if (instruction.opcode() == "parameter") {
      ASSIGN_OR_RETURN(const int64_t number, cursor_.Integer());
      instruction.set_parameter_number(number);
      return absl::OkStatus();
    }
    if (instruction.opcode() == "constant") {
      if (IsTuple(instruction.shape())) return cursor_.Error("constants are arrays");
      ASSIGN_OR_RETURN(const Literal literal,
                       ParseLiteral(cursor_, ArrayShape(instruction.shape())));
      *instruction.mutable_literal() = LiteralToProto(literal);
      return absl::OkStatus();
    }
    while (!cursor_.LooksAt(")")) {
      RETURN_IF_ERROR(ParseOperand(instruction));
      if (!cursor_.LooksAt(")")) RETURN_IF_ERROR(cursor_.Expect(","));
    }
    return absl::OkStatus();
  }

  // %name, or shape and %name.
  absl::Status ParseOperand(hlo::HloInstructionProto& instruction) {
    const size_t start = cursor_.position();
    const bool starts_with_shape =
        cursor_.LooksAt("(") || (!cursor_.Word().empty() && cursor_.LooksAt("["));
    cursor_.set_position(start);
    if (starts_with_shape) RETURN_IF_ERROR(ParseShape(cursor_).status());
    ASSIGN_OR_RETURN(const std::string name, ReadName(cursor_));
    const auto found = instructions_.find(name);
    if (found == instructions_.end()) return cursor_.Error("no '{}' before this line", name);
    instruction.add_operand_ids(found->second);
    return absl::OkStatus();
  }

  absl::Status ParseAttribute(hlo::HloInstructionProto& instruction) {
    ASSIGN_OR_RETURN(const std::string name, cursor_.Name());
    RETURN_IF_ERROR(cursor_.Expect("="));
    if (name == "minka_extra") return MergeExtra(cursor_, instruction);
    if (name == "branch_computations" || name == "called_computations") {
      RETURN_IF_ERROR(cursor_.Expect("{"));
      while (!cursor_.Consume("}")) {
        ASSIGN_OR_RETURN(const int64_t id, ParseCalled());
        instruction.add_called_computation_ids(id);
        if (!cursor_.LooksAt("}")) RETURN_IF_ERROR(cursor_.Expect(","));
      }
      return absl::OkStatus();
    }
    // "scatter" is an attribute of select-and-scatter; the same words name nothing else.
    if (const auto position = CalledPosition(name)) {
      ASSIGN_OR_RETURN(const int64_t id, ParseCalled());
      auto* ids = instruction.mutable_called_computation_ids();
      while (ids->size() <= *position) ids->Add(0);
      ids->Set(*position, id);
      return absl::OkStatus();
    }
    ASSIGN_OR_RETURN(const bool known, ParseTextAttribute(name, cursor_, instruction));
    if (known) return absl::OkStatus();
    return cursor_.Error("'{}' has no attribute '{}' that is supported", instruction.opcode(),
                         name);
  }

  absl::StatusOr<int64_t> ParseCalled() {
    ASSIGN_OR_RETURN(const std::string name, ReadName(cursor_));
    const auto found = computations_.find(name);
    if (found != computations_.end()) return found->second;
    return cursor_.Error("no computation '{}' before this line", name);
  }

  TextCursor cursor_;
  hlo::HloModuleProto module_;
  hlo::HloComputationProto* computation_ = nullptr;
  std::map<std::string, int64_t> instructions_;  // ids in the computation at hand
  std::map<std::string, int64_t> computations_;
  int64_t last_id_ = 0;
};

}  // namespace

absl::StatusOr<hlo::HloModuleProto> ParseHlo(std::string_view text) {
  return ModuleParser(text).Run();
}

absl::StatusOr<Module> ParseHloText(std::string_view text) {
  ASSIGN_OR_RETURN(hlo::HloModuleProto proto, ParseHlo(text));
  return ModuleFromProto(std::move(proto));
}

}  // namespace minka
