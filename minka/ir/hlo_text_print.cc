#include "absl/container/flat_hash_map.h"
#include "absl/strings/escaping.h"
#include "fmt/ranges.h"
#include "minka/base/check.h"
#include "minka/ir/hlo_literal.h"
#include "minka/ir/hlo_message.h"
#include "minka/ir/hlo_proto.h"
#include "minka/ir/hlo_shape.h"
#include "minka/ir/hlo_text_attributes.h"
#include "minka/ir/hlo_text_syntax.h"

namespace minka {
namespace {

// Fields without a syntax in text travel as bytes.
constexpr std::string_view kExtraAttribute = "minka_extra";

std::string ExtraText(const google::protobuf::MessageLite& rest) {
  const std::string bytes = Serialized(rest);
  return bytes.empty() ? ""
                       : fmt::format(", {}=\"{}\"", kExtraAttribute, absl::Base64Escape(bytes));
}

std::string SignatureText(const hlo::ProgramShapeProto& program) {
  std::vector<std::string> parameters;
  for (int i = 0; i < program.parameters_size(); ++i) {
    parameters.push_back(
        fmt::format("{}: {}", program.parameter_names(i), ShapeText(program.parameters(i))));
  }
  return fmt::format("({}) -> {}", fmt::join(parameters, ", "), ShapeText(program.result()));
}

class ComputationPrinter {
 public:
  ComputationPrinter(const absl::flat_hash_map<int64_t, std::string>& computation_names,
                     std::string& text)
      : computation_names_(computation_names), text_(text) {}

  void Print(hlo::HloComputationProto& computation, bool is_entry) {
    text_ += fmt::format("\n{}%{} {} {{\n", is_entry ? "ENTRY " : "", computation.name(),
                         SignatureText(computation.program_shape()));
    for (hlo::HloInstructionProto& instruction : *computation.mutable_instructions()) {
      printed_.emplace(instruction.id(), &instruction);
      const bool is_root = instruction.id() == computation.root_id();
      text_ += fmt::format("  {}%{} = {} {}(", is_root ? "ROOT " : "", instruction.name(),
                           ShapeText(instruction.shape()), instruction.opcode());
      PrintInside(instruction);
      text_ += ')';
      PrintCalled(instruction);
      PrintAttributes(instruction);
      text_ += '\n';
    }
    text_ += "}\n";
  }

 private:
  void PrintInside(hlo::HloInstructionProto& instruction) {
    if (instruction.opcode() == "parameter") {
      text_ += fmt::format("{}", instruction.parameter_number());
      instruction.clear_parameter_number();
      return;
    }
    if (instruction.opcode() == "constant") {
      const auto literal = LiteralFromProto(*instruction.mutable_literal());
      MINKA_CHECK(literal.ok(), "{}", Message(literal.status()));
      text_ += LiteralText(*literal);
      instruction.clear_literal();
      return;
    }
    std::vector<std::string> operands;
    for (const int64_t id : instruction.operand_ids()) {
      operands.push_back("%" + printed_.at(id)->name());
    }
    text_ += fmt::format("{}", fmt::join(operands, ", "));
  }

  void PrintCalled(hlo::HloInstructionProto& instruction) {
    const int num_called = instruction.called_computation_ids_size();
    if (num_called == 0) return;
    const bool by_predicate = instruction.opcode() == "conditional" &&
                              printed_.at(instruction.operand_ids(0))->shape().element_type() ==
                                  static_cast<int32_t>(ElementType::kPred);
    const CalledAttributes attributes =
        CalledAttributesOf(instruction.opcode(), num_called, by_predicate);
    std::vector<std::string> names;
    for (const int64_t id : instruction.called_computation_ids()) {
      names.push_back("%" + computation_names_.at(id));
    }
    if (attributes.is_list) {
      text_ += fmt::format(", {}={{{}}}", attributes.names[0], fmt::join(names, ", "));
      return;
    }
    for (size_t i = 0; i < names.size(); ++i) {
      text_ += fmt::format(", {}={}", attributes.names[i], names[i]);
    }
  }

  // Keeps name, shape and id, which later instructions look up.
  void PrintAttributes(const hlo::HloInstructionProto& instruction) {
    hlo::HloInstructionProto rest = instruction;
    for (const auto& [name, value] : TakeTextAttributes(rest)) {
      text_ += fmt::format(", {}={}", name, value);
    }
    rest.clear_name();
    rest.clear_opcode();
    rest.clear_shape();
    rest.clear_id();
    rest.clear_operand_ids();
    rest.clear_called_computation_ids();
    text_ += ExtraText(rest);
  }

  const absl::flat_hash_map<int64_t, std::string>& computation_names_;
  std::string& text_;
  absl::flat_hash_map<int64_t, const hlo::HloInstructionProto*> printed_;
};

// { {0}: (3, {}, may-alias) }
std::string AliasesText(const hlo::HloInputOutputAlias& aliases) {
  std::vector<std::string> entries;
  for (const auto& alias : aliases.entries()) {
    entries.push_back(fmt::format("{{{}}}: ({}, {{}}, may-alias)",
                                  fmt::join(alias.output_shape_index(), ","),
                                  alias.parameter_number()));
  }
  return fmt::format("{{ {} }}", fmt::join(entries, ", "));
}

}  // namespace

std::string PrintHlo(hlo::HloModuleProto proto) {
  std::string text = "HloModule " + proto.name();
  if (proto.input_output_alias().entries_size() > 0) {
    text += ", input_output_alias=" + AliasesText(proto.input_output_alias());
  }
  if (!proto.frontend_attributes().map().empty()) {
    text += ", frontend_attributes=" + FrontendAttributesText(proto.frontend_attributes());
  }
  google::protobuf::RepeatedPtrField<hlo::HloComputationProto> computations;
  computations.Swap(proto.mutable_computations());
  const int64_t entry_id = proto.entry_computation_id();
  proto.clear_name();
  proto.clear_entry_computation_name();
  proto.clear_entry_computation_id();
  proto.clear_host_program_shape();
  proto.clear_input_output_alias();
  proto.clear_frontend_attributes();
  text += ExtraText(proto) + "\n";

  absl::flat_hash_map<int64_t, std::string> names;
  for (hlo::HloComputationProto& computation : computations) {
    names.emplace(computation.id(), computation.name());
    const bool is_entry = computation.id() == entry_id;
    ComputationPrinter(names, text).Print(computation, is_entry);
  }
  return text;
}

std::string HloText(const Module& module) { return PrintHlo(ModuleToProto(module)); }

}  // namespace minka
