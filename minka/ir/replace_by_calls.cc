#include "minka/ir/replace_by_calls.h"

#include <iterator>
#include <utility>
#include <vector>

#include "minka/ir/names.h"

namespace minka {
namespace {

void ShiftCalls(Computation& computation, ComputationId offset) {
  for (Instruction& instruction : computation.instructions) {
    for (ComputationId& called : instruction.called) called += offset;
  }
}

}  // namespace

Module ReplaceByCalls(Module module, const BodyOf& body_of) {
  std::vector<Computation> bodies;
  std::vector<std::pair<Instruction*, ComputationId>> calls;
  for (Computation& computation : module.computations) {
    for (Instruction& instruction : computation.instructions) {
      std::optional<Module> body = body_of(computation, instruction);
      if (!body) continue;
      const auto offset = static_cast<ComputationId>(bodies.size());
      for (Computation& part : body->computations) {
        ShiftCalls(part, offset);
        bodies.push_back(std::move(part));
      }
      calls.emplace_back(&instruction, body->entry + offset);
    }
  }
  if (calls.empty()) return module;
  const auto offset = static_cast<ComputationId>(bodies.size());
  for (Computation& computation : module.computations) ShiftCalls(computation, offset);
  for (const auto& [instruction, body] : calls) {
    instruction->opcode = Opcode::kCall;
    instruction->attributes = {};
    instruction->undecoded = nullptr;
    instruction->called = {body};
  }
  // Callees before callers.
  module.computations.insert(module.computations.begin(), std::make_move_iterator(bodies.begin()),
                             std::make_move_iterator(bodies.end()));
  module.entry += offset;
  UniqueNames names;
  for (Computation& computation : module.computations) {
    computation.name = names.Take(computation.name);
  }
  return module;
}

}  // namespace minka
