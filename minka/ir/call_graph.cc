#include "minka/ir/call_graph.h"

#include <algorithm>
#include <optional>

#include "minka/base/status.h"

namespace minka {
namespace {

enum class Visit : uint8_t { kNot, kOpen, kDone };

class CallOrder {
 public:
  explicit CallOrder(const Module& module)
      : module_(module), visits_(module.computations.size(), Visit::kNot) {}

  absl::Status Add(ComputationId id) {
    if (visits_[id] == Visit::kDone) return absl::OkStatus();
    const Computation& computation = module_.computations[id];
    if (visits_[id] == Visit::kOpen) {
      return InvalidArgument("computation '{}' calls itself", computation.name);
    }
    visits_[id] = Visit::kOpen;
    for (const Instruction& instruction : computation.instructions) {
      for (const ComputationId called : instruction.called) {
        if (called < 0 || called >= static_cast<int>(visits_.size())) {
          return InvalidArgument("computation '{}': {} calls computation {}, which does not exist",
                                 computation.name, OpcodeName(instruction.opcode), called);
        }
        RETURN_IF_ERROR(Add(called));
      }
    }
    visits_[id] = Visit::kDone;
    order_.push_back(id);
    return absl::OkStatus();
  }

  std::vector<ComputationId> Take() && { return std::move(order_); }

 private:
  const Module& module_;
  std::vector<Visit> visits_;
  std::vector<ComputationId> order_;
};

// Varint at `position`, which it moves behind; nullopt: the bytes end inside.
std::optional<uint64_t> ReadVarint(const std::string& bytes, size_t& position) {
  uint64_t value = 0;
  for (int shift = 0; shift < 64 && position < bytes.size(); shift += 7) {
    const auto byte = static_cast<uint8_t>(bytes[position++]);
    value |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if ((byte & 0x80) == 0) return value;
  }
  return std::nullopt;
}

// HloInstructionProto.custom_call_has_side_effect, read from the wire format; true for bytes that
// do not parse.
bool SaysSideEffect(const std::string& undecoded) {
  constexpr uint64_t kHasSideEffect = 65;
  size_t position = 0;
  bool result = false;
  while (position < undecoded.size()) {
    const auto tag = ReadVarint(undecoded, position);
    if (!tag) return true;
    switch (*tag & 7) {
      case 0: {
        const auto value = ReadVarint(undecoded, position);
        if (!value) return true;
        if (*tag >> 3 == kHasSideEffect) result = *value != 0;
        break;
      }
      case 1:
        position += 8;
        break;
      case 2: {
        const auto length = ReadVarint(undecoded, position);
        if (!length || *length > undecoded.size() - position) return true;
        position += *length;
        break;
      }
      case 5:
        position += 4;
        break;
      default:
        return true;
    }
  }
  return result;
}

}  // namespace

absl::StatusOr<std::vector<ComputationId>> CalleesFirst(const Module& module) {
  CallOrder order(module);
  for (ComputationId id = 0; id < static_cast<int>(module.computations.size()); ++id) {
    if (id != module.entry) RETURN_IF_ERROR(order.Add(id));
  }
  RETURN_IF_ERROR(order.Add(module.entry));
  return std::move(order).Take();
}

std::vector<ComputationId> ReachableComputations(const Module& module) {
  std::vector<bool> reached(module.computations.size());
  reached[module.entry] = true;
  std::vector<ComputationId> pending = {module.entry};
  while (!pending.empty()) {
    const ComputationId id = pending.back();
    pending.pop_back();
    for (const Instruction& instruction : module.computations[id].instructions) {
      for (const ComputationId called : instruction.called) {
        if (reached[called]) continue;
        reached[called] = true;
        pending.push_back(called);
      }
    }
  }
  std::vector<ComputationId> reachable;
  for (size_t id = 0; id < reached.size(); ++id) {
    if (reached[id]) reachable.push_back(static_cast<ComputationId>(id));
  }
  return reachable;
}

Module KeepComputations(Module module, std::span<const ComputationId> kept) {
  std::vector<ComputationId> new_ids(module.computations.size(), -1);
  for (size_t i = 0; i < kept.size(); ++i) new_ids[kept[i]] = static_cast<ComputationId>(i);
  std::vector<Computation> computations;
  computations.reserve(kept.size());
  for (const ComputationId id : kept) {
    computations.push_back(std::move(module.computations[id]));
    for (Instruction& instruction : computations.back().instructions) {
      for (ComputationId& called : instruction.called) called = new_ids[called];
    }
  }
  module.computations = std::move(computations);
  module.entry = new_ids[module.entry];
  return module;
}

bool HasSideEffect(const Module& module, const Instruction& instruction) {
  if (instruction.opcode == Opcode::kOther) return true;
  if (instruction.opcode == Opcode::kCustomCall) {
    return instruction.undecoded && SaysSideEffect(*instruction.undecoded);
  }
  return std::ranges::any_of(instruction.called, [&](ComputationId called) {
    return std::ranges::any_of(
        module.computations[called].instructions,
        [&](const Instruction& inner) { return HasSideEffect(module, inner); });
  });
}

bool GivesTheSameAgain(const Module& module, const Instruction& instruction) {
  return instruction.opcode != Opcode::kRng && instruction.opcode != Opcode::kCustomCall &&
         !HasSideEffect(module, instruction) &&
         std::ranges::all_of(instruction.called, [&](ComputationId called) {
           return std::ranges::all_of(
               module.computations[called].instructions,
               [&](const Instruction& inner) { return GivesTheSameAgain(module, inner); });
         });
}

}  // namespace minka
