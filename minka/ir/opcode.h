// HLO's opcodes by their text names; the list lives in opcode.def.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace minka {

enum class Opcode : uint8_t {
#define MINKA_OPCODE(Name, text, family) k##Name,
#include "minka/ir/opcode.def"
#undef MINKA_OPCODE
};

// How operand and result shapes relate; what has the same family is treated alike wherever elements
// do not matter.
enum class OpFamily : uint8_t {
  kUnary,      // elementwise, one operand, same dims
  kBinary,     // elementwise, two operands of the same dims
  kTernary,    // select, clamp: elementwise, scalar predicate or bounds allowed
  kData,       // moves, creates or indexes data
  kReduction,  // dot, reduce and their kin
  kStructure,  // parameter, call, while, barrier ...
  kCollective,
  kOther,  // unknown or opaque: runs replicated
};

std::string_view OpcodeName(Opcode opcode);
std::optional<Opcode> ParseOpcode(std::string_view name);  // nullopt: import keeps it as kOther
OpFamily Family(Opcode opcode);
bool IsElementwise(Opcode opcode);  // kUnary, kBinary or kTernary

}  // namespace minka
