#include "tests/oracle/rewrite.h"

#include <map>
#include <utility>

#include "minka/base/check.h"
#include "minka/base/status.h"

namespace minka {
namespace {

Module Rewrite(const Module& module, Site site, const ReplaceInstruction& replace,
               const ReplaceResults& replace_results) {
  ModuleBuilder target(module.name);
  std::map<ComputationId, ComputationId> ids;
  for (ComputationId id = 0; id < static_cast<ComputationId>(module.computations.size()); ++id) {
    const Computation& source = module.computations[id];
    ComputationBuilder builder =
        id == module.entry ? target.Entry() : target.AddComputation(source.name);
    ids[id] = target.id(builder);
    std::vector<std::vector<Value>> values;
    for (InstructionId i = 0; i < source.num_instructions(); ++i) {
      Instruction instruction = source.instructions[i];
      for (Value& operand : instruction.operands) {
        operand = values[operand.instruction][operand.result];
      }
      for (ComputationId& called : instruction.called) called = ids.at(called);
      const bool is_site = replace && site.computation == id && site.instruction == i;
      values.push_back(is_site ? replace(builder, instruction)
                               : AppendAsItIs(builder, instruction));
    }
    std::vector<Value> results, parameters;
    for (const Value value : source.results) {
      results.push_back(values[value.instruction][value.result]);
    }
    for (const InstructionId i : source.parameters) parameters.push_back(values[i][0]);
    if (id == module.entry && replace_results) {
      results = replace_results(builder, parameters, std::move(results));
    }
    builder.SetResults(std::move(results));
  }
  for (const Alias& alias : module.aliases) target.AddAlias(alias);
  absl::StatusOr<Module> finished = std::move(target).Finish();
  MINKA_CHECK(finished.ok(), "{}", Message(finished.status()));
  return *std::move(finished);
}

}  // namespace

std::vector<Value> AppendAsItIs(ComputationBuilder& builder, const Instruction& instruction) {
  const Value first = builder.Append(instruction);
  std::vector<Value> values;
  for (size_t i = 0; i < instruction.results.size(); ++i) {
    values.push_back({first.instruction, static_cast<int32_t>(i)});
  }
  return values;
}

Module RewriteAt(const Module& module, Site site, const ReplaceInstruction& replace) {
  return Rewrite(module, site, replace, nullptr);
}

Module RewriteResults(const Module& module, const ReplaceResults& replace) {
  return Rewrite(module, {}, nullptr, replace);
}

}  // namespace minka
