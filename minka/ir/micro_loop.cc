#include "minka/ir/micro_loop.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <string>
#include <string_view>

#include "fmt/ranges.h"
#include "minka/base/check.h"
#include "minka/base/status.h"

namespace minka {
namespace {

constexpr char kRoleAttribute[] = "minka.micro";

// By LoopRole.
constexpr std::array<std::string_view, 5> kRoles = {"", "index", "body", "sum", "stack"};

std::optional<LoopRole> RoleNamed(std::string_view text) {
  const auto found = std::find(kRoles.begin() + 1, kRoles.end(), text);
  if (found == kRoles.end()) return std::nullopt;
  return static_cast<LoopRole>(found - kRoles.begin());
}

std::optional<Accumulator> AccumulatorOf(const Computation& entry, InstructionId id) {
  const Instruction& instruction = entry.instructions[id];
  switch (instruction.part.loop) {
    case LoopRole::kSum:
      return Accumulator{Accumulator::Kind::kSum, id, instruction.operands[0]};
    case LoopRole::kStack:
      return Accumulator{Accumulator::Kind::kStack, id, instruction.operands[1]};
    case LoopRole::kOutside:
    case LoopRole::kIndex:
    case LoopRole::kBody:
      return std::nullopt;
  }
  MINKA_CHECK(false);
}

// Of the attribute's text.
absl::Status ReadRole(std::string_view text, Instruction& instruction) {
  const std::optional<LoopRole> role = RoleNamed(text);
  if (!role) {
    return InvalidArgument("{}: '{}' is \"{}\"; there are {}", kRoleAttribute, instruction.name,
                           text, fmt::join(kRoles.begin() + 1, kRoles.end(), ", "));
  }
  const Opcode opcode = instruction.opcode;
  const bool fits =
      *role == LoopRole::kBody || (*role == LoopRole::kIndex && opcode == Opcode::kConstant) ||
      (*role == LoopRole::kSum && (opcode == Opcode::kCopy || opcode == Opcode::kConvert)) ||
      (*role == LoopRole::kStack && opcode == Opcode::kDynamicUpdateSlice);
  if (!fits) {
    return InvalidArgument("{}: '{}' is {}, which cannot be \"{}\"", kRoleAttribute,
                           instruction.name, OpcodeName(opcode), text);
  }
  instruction.part.loop = *role;
  return absl::OkStatus();
}

// A body is in one piece, and somebody says how often it runs.
absl::Status CheckLoop(const Module& module) {
  const Computation& entry = module.entry_computation();
  const MicroLoop loop = FindMicroLoop(module);
  if (loop.exists() && module.num_micro_batches == 1) {
    return InvalidArgument("{}: '{}' has one, but '{}' no {}", kRoleAttribute,
                           entry.instructions[loop.begin].name, module.name,
                           kNumMicroBatchesAttribute);
  }
  for (InstructionId id = loop.begin; id < loop.end; ++id) {
    if (entry.instructions[id].part.loop != LoopRole::kOutside) continue;
    return InvalidArgument("{}: '{}' has none, but stands in the loop", kRoleAttribute,
                           entry.instructions[id].name);
  }
  return absl::OkStatus();
}

absl::Status ReadNumMicroBatches(Module& module) {
  const auto found = module.frontend_attributes.find(kNumMicroBatchesAttribute);
  if (found == module.frontend_attributes.end()) return absl::OkStatus();
  const std::string& text = found->second;
  const char* const end = text.data() + text.size();
  const auto [read, error] = std::from_chars(text.data(), end, module.num_micro_batches);
  if (error != std::errc() || read != end || module.num_micro_batches < 2) {
    return InvalidArgument("{}: \"{}\" is no number of micro-batches", kNumMicroBatchesAttribute,
                           text);
  }
  module.frontend_attributes.erase(found);
  return absl::OkStatus();
}

}  // namespace

LoopPart MicroLoop::PartOf(InstructionId id) const {
  if (IsInside(id)) return LoopPart::kInside;
  return exists() && id < begin ? LoopPart::kFront : LoopPart::kBehind;
}

const Accumulator* MicroLoop::FindAccumulator(InstructionId id) const {
  const auto found = std::ranges::lower_bound(accumulators, id, {}, &Accumulator::id);
  return found != accumulators.end() && found->id == id ? &*found : nullptr;
}

MicroLoop FindMicroLoop(const Module& module) {
  MicroLoop loop{.num_micro_batches = module.num_micro_batches};
  const Computation& entry = module.entry_computation();
  for (InstructionId id = 0; id < entry.num_instructions(); ++id) {
    const LoopRole role = entry.instructions[id].part.loop;
    if (role == LoopRole::kOutside) continue;
    if (!loop.exists()) loop.begin = id;
    loop.end = id + 1;
    if (role == LoopRole::kIndex) loop.indices.push_back(id);
    if (const auto accumulator = AccumulatorOf(entry, id)) {
      loop.accumulators.push_back(*accumulator);
    }
  }
  return loop;
}

void WriteLoopAttributes(Module& module) {
  if (module.num_micro_batches == 1) return;
  module.frontend_attributes[kNumMicroBatchesAttribute] = fmt::to_string(module.num_micro_batches);
  for (Instruction& instruction : module.entry_computation().instructions) {
    const LoopRole role = instruction.part.loop;
    if (role == LoopRole::kOutside) continue;
    instruction.frontend_attributes[kRoleAttribute] = kRoles[static_cast<size_t>(role)];
  }
}

absl::Status ReadLoopAttributes(Module& module) {
  RETURN_IF_ERROR(ReadNumMicroBatches(module));
  for (Instruction& instruction : module.entry_computation().instructions) {
    const auto found = instruction.frontend_attributes.find(kRoleAttribute);
    if (found == instruction.frontend_attributes.end()) continue;
    RETURN_IF_ERROR(ReadRole(found->second, instruction));
    instruction.frontend_attributes.erase(found);
  }
  return CheckLoop(module);
}

}  // namespace minka
