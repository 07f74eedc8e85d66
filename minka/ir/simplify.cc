#include "minka/ir/simplify.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "minka/ir/call_graph.h"
#include "minka/ir/names.h"
#include "minka/ir/structure_key.h"

namespace minka {
namespace {

// Copies instructions into a new computation and remembers what became of each value.
class Copier {
 public:
  Copier(const Computation& source, Computation& target, UniqueNames& names)
      : source_(source), target_(target), names_(names), values_(source.instructions.size()) {}

  Value Mapped(Value value) const { return values_[value.instruction][value.result]; }

  void Map(InstructionId id, std::vector<Value> values) { values_[id] = std::move(values); }

  // The instruction with mapped operands, not yet part of the target.
  Instruction Translated(InstructionId id) const {
    Instruction instruction = source_.instructions[id];
    for (Value& operand : instruction.operands) operand = Mapped(operand);
    return instruction;
  }

  void Append(InstructionId id, Instruction instruction) {
    const InstructionId new_id = target_.num_instructions();
    values_[id].clear();
    for (size_t i = 0; i < instruction.results.size(); ++i) {
      values_[id].push_back({new_id, static_cast<int32_t>(i)});
    }
    instruction.name = names_.Take(instruction.name);
    target_.instructions.push_back(std::move(instruction));
  }

  std::vector<Value> MappedResults() const {
    std::vector<Value> results;
    results.reserve(source_.results.size());
    for (const Value value : source_.results) results.push_back(Mapped(value));
    return results;
  }

  std::vector<InstructionId> MappedParameters() const {
    std::vector<InstructionId> parameters;
    parameters.reserve(source_.parameters.size());
    for (const InstructionId id : source_.parameters) {
      parameters.push_back(Mapped({id, 0}).instruction);
    }
    return parameters;
  }

 private:
  const Computation& source_;
  Computation& target_;
  UniqueNames& names_;
  std::vector<std::vector<Value>> values_;  // by instruction and result of the source
};

// Copies `callee`, which has no calls any more, into `target`; returns its results there.
std::vector<Value> InlineInto(const Computation& callee, const std::vector<Value>& arguments,
                              Computation& target, UniqueNames& names) {
  Copier copier(callee, target, names);
  for (InstructionId id = 0; id < callee.num_instructions(); ++id) {
    const Instruction& instruction = callee.instructions[id];
    if (instruction.opcode == Opcode::kParameter) {
      copier.Map(id, {arguments[instruction.As<ParameterAttributes>().number]});
    } else {
      copier.Append(id, copier.Translated(id));
    }
  }
  return copier.MappedResults();
}

Computation WithoutCalls(const Module& module, const Computation& source) {
  Computation target = {.name = source.name};
  UniqueNames names;
  Copier copier(source, target, names);
  for (InstructionId id = 0; id < source.num_instructions(); ++id) {
    Instruction instruction = copier.Translated(id);
    if (instruction.opcode == Opcode::kCall) {
      copier.Map(id, InlineInto(module.computations[instruction.called[0]], instruction.operands,
                                target, names));
    } else {
      copier.Append(id, std::move(instruction));
    }
  }
  target.results = copier.MappedResults();
  target.parameters = copier.MappedParameters();
  return target;
}

std::vector<bool> FindLive(const Module& module, const Computation& computation) {
  std::vector<bool> live(computation.instructions.size());
  for (const Value result : computation.results) live[result.instruction] = true;
  for (InstructionId id = computation.num_instructions() - 1; id >= 0; --id) {
    const Instruction& instruction = computation.instructions[id];
    if (instruction.opcode == Opcode::kParameter || HasSideEffect(module, instruction)) {
      live[id] = true;
    }
    if (!live[id]) continue;
    for (const Value operand : instruction.operands) live[operand.instruction] = true;
  }
  return live;
}

Computation WithoutDeadCode(const Module& module, const Computation& source) {
  const std::vector<bool> live = FindLive(module, source);
  Computation target = {.name = source.name};
  UniqueNames names;
  Copier copier(source, target, names);
  for (InstructionId id = 0; id < source.num_instructions(); ++id) {
    if (live[id]) copier.Append(id, copier.Translated(id));
  }
  target.results = copier.MappedResults();
  target.parameters = copier.MappedParameters();
  return target;
}

bool MayMerge(const Module& module, const Instruction& instruction) {
  return instruction.opcode != Opcode::kParameter && instruction.opcode != Opcode::kOptBarrier &&
         instruction.opcode != Opcode::kRng && !HasSideEffect(module, instruction);
}

std::vector<Value> ResultsOf(InstructionId id, const Computation& computation) {
  std::vector<Value> values;
  values.reserve(computation.instructions[id].results.size());
  for (size_t i = 0; i < computation.instructions[id].results.size(); ++i) {
    values.push_back({id, static_cast<int32_t>(i)});
  }
  return values;
}

// Does the permutation leave the dot's batch dimensions and put what the right operand keeps before
// what the left one keeps, each in its order?
bool ExchangesOperands(const DotAttributes& dot, int64_t lhs_rank,
                       const std::vector<int64_t>& permutation) {
  const auto batch = static_cast<int64_t>(dot.lhs_batch.size());
  const int64_t lhs_kept = lhs_rank - batch - static_cast<int64_t>(dot.lhs_contracting.size());
  std::vector<int64_t> exchanged(permutation.size());
  std::iota(exchanged.begin(), exchanged.end(), 0);
  std::rotate(exchanged.begin() + batch, exchanged.begin() + batch + lhs_kept, exchanged.end());
  return permutation == exchanged;
}

Instruction WithOperandsExchanged(Instruction dot) {
  auto& attributes = std::get<DotAttributes>(dot.attributes);
  std::swap(attributes.lhs_contracting, attributes.rhs_contracting);
  std::swap(attributes.lhs_batch, attributes.rhs_batch);
  std::swap(dot.operands[0], dot.operands[1]);
  return dot;
}

std::vector<int> NumReaders(const Computation& computation) {
  std::vector<int> readers(computation.num_instructions(), 0);
  for (const Instruction& instruction : computation.instructions) {
    for (const Value& operand : instruction.operands) ++readers[operand.instruction];
  }
  for (const Value& result : computation.results) ++readers[result.instruction];
  return readers;
}

}  // namespace

Module InlineCalls(const Module& module) {
  Module inlined = module;
  // In order, because callees come before callers: what is inlined has no calls left.
  for (Computation& computation : inlined.computations) {
    computation = WithoutCalls(inlined, computation);
  }
  const std::vector<ComputationId> reachable = ReachableComputations(inlined);
  return KeepComputations(std::move(inlined), reachable);
}

Module EliminateDeadCode(const Module& module) {
  Module kept = module;
  for (Computation& computation : kept.computations) {
    computation = WithoutDeadCode(module, computation);
  }
  const std::vector<ComputationId> reachable = ReachableComputations(kept);
  return KeepComputations(std::move(kept), reachable);
}

Module EliminateCommonSubexpressions(const Module& module) {
  const Computation& source = module.entry_computation();
  Computation target = {.name = source.name};
  UniqueNames names;
  Copier copier(source, target, names);
  const std::vector<uint64_t> hashes = ComputationHashes(module);
  std::unordered_map<std::string, InstructionId> first_with_key;
  for (InstructionId id = 0; id < source.num_instructions(); ++id) {
    Instruction instruction = copier.Translated(id);
    if (MayMerge(module, instruction)) {
      const std::string key = StructureKey(instruction, PackValue,
                                           [&](ComputationId called) { return hashes[called]; });
      const auto [entry, is_new] = first_with_key.try_emplace(key, target.num_instructions());
      if (!is_new) {
        copier.Map(id, ResultsOf(entry->second, target));
        continue;
      }
    }
    copier.Append(id, std::move(instruction));
  }
  target.results = copier.MappedResults();
  target.parameters = copier.MappedParameters();
  Module merged = module;
  merged.computations[module.entry] = std::move(target);
  return merged;
}

Module ExchangeTransposedDots(const Module& module) {
  Module exchanged = module;
  for (Computation& computation : exchanged.computations) {
    const std::vector<int> readers = NumReaders(computation);
    for (Instruction& transpose : computation.instructions) {
      if (transpose.opcode != Opcode::kTranspose) continue;
      const InstructionId of = transpose.operands[0].instruction;
      const Instruction& dot = computation.instructions[of];
      if (dot.opcode != Opcode::kDot || readers[of] != 1) continue;
      if (!ExchangesOperands(dot.As<DotAttributes>(), computation.shape(dot.operands[0]).rank(),
                             transpose.As<DimensionsAttributes>().dims)) {
        continue;
      }
      Instruction replacement = WithOperandsExchanged(dot);
      replacement.name = transpose.name;
      replacement.results = transpose.results;
      transpose = std::move(replacement);
    }
  }
  return exchanged;
}

}  // namespace minka
