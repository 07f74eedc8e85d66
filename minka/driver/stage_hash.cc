#include "minka/driver/stage_hash.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "minka/base/hash.h"
#include "minka/ir/structure_key.h"

namespace minka {
namespace {

// Are its results the numbers of its operands, elsewhere or in another type?
bool HandsOn(Opcode opcode) {
  return opcode == Opcode::kBroadcast || opcode == Opcode::kReshape || opcode == Opcode::kConvert ||
         opcode == Opcode::kCopy || opcode == Opcode::kTranspose || opcode == Opcode::kOptBarrier;
}

// Do analyses take numbers that it computes with for any? They ask select for a branch of zeros.
bool TakesAnyNumbers(Opcode opcode) {
  return (IsElementwise(opcode) && opcode != Opcode::kSelect) || opcode == Opcode::kConcatenate ||
         opcode == Opcode::kSlice;
}

}  // namespace

std::string PartText(const StepPart& part) {
  return {static_cast<char>('0' + static_cast<int>(part.phase)),
          static_cast<char>('a' + static_cast<int>(part.loop)),
          static_cast<char>('A' + part.program)};
}

std::string MeaningText(const ParameterInfo& info) {
  std::string text = fmt::format(" {}:{}", RoleName(info.role), info.batch_dim);
  if (info.received)
    text += fmt::format(":{}{},{}", info.received->batch, info.received->batch_is_merged,
                        fmt::join(info.received->within, ","));
  return text;
}

std::vector<bool> FindFreeValues(const Computation& entry) {
  std::vector<bool> is_asked_for(entry.num_instructions()), is_free(entry.num_instructions());
  for (InstructionId id = entry.num_instructions() - 1; id >= 0; --id) {
    const Instruction& instruction = entry.instructions[id];
    if (instruction.opcode == Opcode::kConstant) {
      const ElementType type = instruction.shape().type;
      is_free[id] = IsInteger(type) && !IsSigned(type) && !is_asked_for[id];
    }
    const bool asks =
        HandsOn(instruction.opcode) ? is_asked_for[id] : !TakesAnyNumbers(instruction.opcode);
    if (!asks) continue;
    for (const Value operand : instruction.operands) is_asked_for[operand.instruction] = true;
  }
  return is_free;
}

namespace {

// The module without values that no search looks at; nullopt: it has none.
std::optional<Module> WithoutFreeValues(const Module& module) {
  const std::vector<bool> is_free = FindFreeValues(module.entry_computation());
  if (std::ranges::find(is_free, true) == is_free.end()) return std::nullopt;
  Module out = module;
  Computation& entry = out.computations[out.entry];
  for (InstructionId id = 0; id < entry.num_instructions(); ++id) {
    if (is_free[id])
      std::get<ConstantAttributes>(entry.instructions[id].attributes).literal.bytes.reset();
  }
  return out;
}

// An operation is known by what it is computed from, then by what is computed from it: one that two
// others read is not two that one each reads.
class OrderFree {
 public:
  explicit OrderFree(const Step& step)
      : step_(step),
        without_(WithoutFreeValues(step.module)),
        module_(without_ ? *without_ : step.module),
        entry_(module_.entry_computation()) {}
  OrderFree(const OrderFree&) = delete;
  OrderFree& operator=(const OrderFree&) = delete;

  uint64_t Hash() && {
    const std::vector<uint64_t> computations = ComputationHashes(module_);
    for (const Instruction& instruction : entry_.instructions)
      below_.push_back(StableHash(TextOf(instruction, computations)));
    std::vector<std::vector<uint64_t>> uses(entry_.num_instructions());
    for (const Value result : entry_.results)
      uses[result.instruction].push_back(HashOf({0, static_cast<uint64_t>(result.result)}));
    std::vector<uint64_t> all(entry_.num_instructions());
    for (InstructionId id = entry_.num_instructions() - 1; id >= 0; --id) {
      std::ranges::sort(uses[id]);
      uses[id].push_back(below_[id]);
      all[id] = HashOf(uses[id]);
      const std::vector<Value>& operands = entry_.instructions[id].operands;
      for (size_t i = 0; i < operands.size(); ++i) {
        uses[operands[i].instruction].push_back(
            HashOf({1, static_cast<uint64_t>(operands[i].result), i, all[id]}));
      }
    }
    for (size_t i = 0; i < step_.parameters.size(); ++i) {
      const int result = step_.parameters[i].state_result;
      if (result < 0) continue;
      const Value value = entry_.results[result];
      all.push_back(StableHash(fmt::format("{} becomes {} {}", all[entry_.parameters[i]],
                                           all[value.instruction], value.result)));
    }
    std::ranges::sort(all);
    return HashOf(all);
  }

 private:
  std::string TextOf(const Instruction& instruction,
                     const std::vector<uint64_t>& computations) const {
    if (instruction.opcode == Opcode::kParameter) {
      const auto number = static_cast<size_t>(instruction.As<ParameterAttributes>().number);
      return ToString(instruction.shape()) + MeaningText(step_.parameters[number]) +
             PartText(instruction.part);
    }
    return StructureKey(
               instruction,
               [&](Value operand) { return below_[operand.instruction] + operand.result; },
               [&](ComputationId called) { return computations[called]; }) +
           PartText(instruction.part);
  }

  const Step& step_;
  const std::optional<Module> without_;
  const Module& module_;
  const Computation& entry_;
  std::vector<uint64_t> below_;  // by instruction: what it is computed from
};

}  // namespace

uint64_t HashOf(std::span<const uint64_t> numbers) {
  return StableHash({reinterpret_cast<const char*>(numbers.data()), numbers.size_bytes()});
}
uint64_t HashOf(std::initializer_list<uint64_t> numbers) {
  return HashOf(std::span(numbers.begin(), numbers.size()));
}

uint64_t StageHash(const Step& step) {
  const std::optional<Module> without = WithoutFreeValues(step.module);
  std::string text = fmt::to_string(ModuleHash(without ? *without : step.module));
  for (const Instruction& instruction : step.module.entry_computation().instructions)
    text += PartText(instruction.part);
  for (const ParameterInfo& info : step.parameters)
    text += fmt::format("{}:{}", MeaningText(info), info.state_result);
  return StableHash(text);
}

uint64_t OrderFreeStageHash(const Step& step) { return OrderFree(step).Hash(); }

}  // namespace minka
