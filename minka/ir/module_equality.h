// For tests: where two modules differ.
#pragma once

#include <string>

#include "fmt/format.h"
#include "minka/ir/module.h"

namespace minka {

inline bool SameBytes(const std::shared_ptr<const std::string>& a,
                      const std::shared_ptr<const std::string>& b) {
  return a == b || (a && b && *a == *b);
}

inline bool SameInstruction(const Instruction& a, const Instruction& b) {
  return a.opcode == b.opcode && a.name == b.name && a.operands == b.operands &&
         a.results == b.results && a.attributes == b.attributes && a.called == b.called &&
         a.op_name == b.op_name && a.frontend_attributes == b.frontend_attributes &&
         SameBytes(a.undecoded, b.undecoded);
}

// Names the first difference, field by field; empty: the modules are equal.
inline std::string Difference(const Module& a, const Module& b) {
  if (a.name != b.name || a.entry != b.entry || a.aliases != b.aliases ||
      a.frontend_attributes != b.frontend_attributes || !SameBytes(a.undecoded, b.undecoded)) {
    return "module";
  }
  if (a.computations.size() != b.computations.size()) return "number of computations";
  for (size_t c = 0; c < a.computations.size(); ++c) {
    const Computation& x = a.computations[c];
    const Computation& y = b.computations[c];
    if (x.name != y.name || x.parameters != y.parameters || x.results != y.results ||
        x.num_instructions() != y.num_instructions()) {
      return fmt::format("computation '{}' and '{}'", x.name, y.name);
    }
    for (InstructionId i = 0; i < x.num_instructions(); ++i) {
      if (SameInstruction(x.instructions[i], y.instructions[i])) continue;
      return fmt::format("'{}' and '{}' in '{}'", x.instructions[i].name, y.instructions[i].name,
                         x.name);
    }
  }
  return "";
}

}  // namespace minka
