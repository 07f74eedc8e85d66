#include "minka/ir/simplify.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "minka/ir/call_graph.h"
#include "minka/ir/mark_text.h"
#include "minka/ir/names.h"
#include "minka/ir/rewriter.h"
#include "minka/ir/structure_key.h"

namespace minka {
namespace {

// Of several instructions with one name the first keeps it.
Computation WithUniqueNames(Computation computation) {
  UniqueNames names;
  for (Instruction& instruction : computation.instructions) {
    instruction.name = names.Take(instruction.name);
  }
  return computation;
}

// What is called has no calls any more.
Computation WithoutCalls(const Module& module, const Computation& source) {
  Rewriter rewriter(source);
  for (InstructionId id = 0; id < source.num_instructions(); ++id) {
    const Instruction& instruction = source.instructions[id];
    if (instruction.opcode == Opcode::kCall) {
      rewriter.Map(id, rewriter.Inline(module.computations[instruction.called[0]],
                                       rewriter.Translated(id).operands));
    } else {
      rewriter.Copy(id);
    }
  }
  return WithUniqueNames(std::move(rewriter).Finish());
}

bool MarksLoss(const Instruction& instruction) {
  const auto text = instruction.frontend_attributes.find(kMarkAttribute);
  if (text == instruction.frontend_attributes.end()) return false;
  const absl::StatusOr<Mark> mark = ParseMark(text->second);
  return mark.ok() && mark->kind == MarkKind::kLoss;
}

std::vector<bool> FindLive(const Module& module, const Computation& computation) {
  std::vector<bool> live(computation.instructions.size());
  for (const Value result : computation.results) live[result.instruction] = true;
  for (InstructionId id = computation.num_instructions() - 1; id >= 0; --id) {
    const Instruction& instruction = computation.instructions[id];
    if (instruction.opcode == Opcode::kParameter || HasSideEffect(module, instruction) ||
        MarksLoss(instruction)) {
      live[id] = true;
    }
    if (!live[id]) continue;
    for (const Value operand : instruction.operands) live[operand.instruction] = true;
  }
  return live;
}

Computation WithoutDead(const std::vector<bool>& live, Computation source) {
  Rewriter rewriter(source);
  for (InstructionId id = 0; id < source.num_instructions(); ++id) {
    if (live[id]) rewriter.Move(id, std::move(source.instructions[id]));
  }
  return WithUniqueNames(std::move(rewriter).Finish());
}

bool HasCalls(const Module& module) {
  return std::ranges::any_of(module.computations, [](const Computation& computation) {
    return std::ranges::any_of(computation.instructions, [](const Instruction& instruction) {
      return instruction.opcode == Opcode::kCall;
    });
  });
}

bool MayMerge(const Module& module, const Instruction& instruction) {
  return instruction.opcode != Opcode::kParameter && instruction.opcode != Opcode::kOptBarrier &&
         instruction.opcode != Opcode::kRng && !HasSideEffect(module, instruction);
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

Module InlineCalls(Module module) {
  if (HasCalls(module)) {
    // In order, because callees come before callers: what is inlined has no calls left.
    for (Computation& computation : module.computations)
      computation = WithoutCalls(module, computation);
  }
  const std::vector<ComputationId> reachable = ReachableComputations(module);
  return KeepComputations(std::move(module), reachable);
}

Module EliminateDeadCode(Module module) {
  for (Computation& computation : module.computations) {
    const std::vector<bool> live = FindLive(module, computation);
    computation = WithoutDead(live, std::move(computation));
  }
  const std::vector<ComputationId> reachable = ReachableComputations(module);
  return KeepComputations(std::move(module), reachable);
}

Module EliminateCommonSubexpressions(Module module) {
  const std::vector<uint64_t> hashes = ComputationHashes(module);
  Computation source = std::move(module.entry_computation());
  Rewriter rewriter(source);
  absl::flat_hash_map<std::string, std::vector<Value>> results_by_key;
  for (InstructionId id = 0; id < source.num_instructions(); ++id) {
    Instruction& instruction = source.instructions[id];
    for (Value& operand : instruction.operands) operand = rewriter.Now(operand);
    if (!MayMerge(module, instruction)) {
      rewriter.Map(id, rewriter.Append(std::move(instruction)));
      continue;
    }
    const auto [found, is_new] = results_by_key.try_emplace(
        StructureKey(instruction, PackValue, [&](ComputationId called) { return hashes[called]; }));
    if (is_new) found->second = rewriter.Append(std::move(instruction));
    rewriter.Map(id, found->second);
  }
  module.entry_computation() = WithUniqueNames(std::move(rewriter).Finish());
  return module;
}

Module ExchangeTransposedDots(Module module) {
  for (Computation& computation : module.computations) {
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
  return module;
}

}  // namespace minka
