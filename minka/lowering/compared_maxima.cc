#include "minka/lowering/compared_maxima.h"

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "minka/base/check.h"
#include "minka/ir/builder.h"
#include "minka/ir/call_graph.h"
#include "minka/ir/names.h"
#include "minka/sharding/rule_builder.h"

namespace minka {
namespace {

using Direction = CompareAttributes::Direction;

Computation ComparingReducer(Opcode opcode, ElementType type) {
  ModuleBuilder module("reducer");
  ComputationBuilder b = module.Entry();
  const Value x = b.Parameter({type, {}}, "x"), y = b.Parameter({type, {}}, "y");
  const Value is_first =
      b.Compare(opcode == Opcode::kMaximum ? Direction::kGt : Direction::kLt, x, y);
  const Value is_no_number = b.Compare(Direction::kNe, x, x);
  b.SetResults({b.Select(b.Binary(Opcode::kOr, is_first, is_no_number), x, y)});
  Computation reducer = std::move(module).Finish().value().entry_computation();
  reducer.name = fmt::format("{}_{}_compared", OpcodeName(opcode), TypeName(type));
  return reducer;
}

}  // namespace

Module ComparedMaxima(Module module) {
  std::map<std::pair<Opcode, ElementType>, ComputationId> written;
  const auto num_source = static_cast<ComputationId>(module.computations.size());
  for (ComputationId id = 0; id < num_source; ++id) {
    for (size_t i = 0; i < module.computations[id].instructions.size(); ++i) {
      Instruction& reduce = module.computations[id].instructions[i];
      if (reduce.opcode != Opcode::kReduce || reduce.results.size() != 1) continue;
      const ElementType type = reduce.shape().type;
      const std::optional<Opcode> opcode = BinaryReducer(module, reduce.called[0]);
      if (!IsFloat(type) || (opcode != Opcode::kMaximum && opcode != Opcode::kMinimum)) continue;
      const auto [known, added] = written.try_emplace(
          {*opcode, type}, static_cast<ComputationId>(module.computations.size()));
      reduce.called[0] = known->second;
      if (added) module.computations.push_back(ComparingReducer(*opcode, type));
    }
  }
  if (written.empty()) return module;
  const auto order = CalleesFirst(module);
  MINKA_CHECK(order.ok());
  module = KeepComputations(std::move(module), *order);
  const std::vector<ComputationId> reachable = ReachableComputations(module);
  module = KeepComputations(std::move(module), reachable);
  UniqueNames names;
  for (Computation& computation : module.computations)
    computation.name = names.Take(computation.name);
  return module;
}

}  // namespace minka
