#include "minka/ir/opcode.h"

#include <array>
#include <map>

namespace minka {
namespace {

struct OpcodeTraits {
  std::string_view name;
  OpFamily family;
};

constexpr std::array kOpcodes = {
#define MINKA_OPCODE(Name, text, family) OpcodeTraits{text, OpFamily::family},
#include "minka/ir/opcode.def"
#undef MINKA_OPCODE
};

std::map<std::string_view, Opcode> OpcodesByName() {
  std::map<std::string_view, Opcode> by_name;
  for (size_t i = 0; i < kOpcodes.size(); ++i) {
    const auto opcode = static_cast<Opcode>(i);
    if (opcode != Opcode::kOther) by_name.emplace(kOpcodes[i].name, opcode);
  }
  return by_name;
}

}  // namespace

std::string_view OpcodeName(Opcode opcode) { return kOpcodes[static_cast<size_t>(opcode)].name; }

std::optional<Opcode> ParseOpcode(std::string_view name) {
  static const std::map<std::string_view, Opcode> by_name = OpcodesByName();
  const auto found = by_name.find(name);
  if (found == by_name.end()) return std::nullopt;
  return found->second;
}

OpFamily Family(Opcode opcode) { return kOpcodes[static_cast<size_t>(opcode)].family; }

bool IsElementwise(Opcode opcode) {
  const OpFamily family = Family(opcode);
  return family == OpFamily::kUnary || family == OpFamily::kBinary || family == OpFamily::kTernary;
}

}  // namespace minka
