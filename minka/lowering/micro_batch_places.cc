#include "minka/lowering/micro_batch_places.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "minka/base/status.h"
#include "minka/sharding/called_plan.h"

namespace minka {
namespace {

bool IsHeavy(Opcode opcode) {
  return opcode == Opcode::kDot || opcode == Opcode::kWhile || Family(opcode) == OpFamily::kOther ||
         opcode == Opcode::kConvolution;
}

class PlaceFinder {
 public:
  PlaceFinder(const Step& step, const MicroBatchOptions& options, const Mesh& mesh)
      : step_(step),
        entry_(step.module.entry_computation()),
        options_(options),
        mesh_(mesh),
        feeds_state_(FeedsState()) {}

  absl::StatusOr<MicroPlaces> Run() {
    for (InstructionId id = 0; id < entry_.num_instructions(); ++id) {
      const Instruction& instruction = entry_.instructions[id];
      out_.strategies.emplace_back();
      out_.from_inputs.push_back(DependsOnInputsOnly(id));
      if (instruction.opcode == Opcode::kParameter) {
        RETURN_IF_ERROR(PlaceParameter(id));
      } else {
        RETURN_IF_ERROR(PlaceOperation(id));
      }
      out_.has_local.push_back(HasLocal(id));
    }
    return std::move(out_);
  }

 private:
  std::vector<bool> FeedsState() const {
    std::vector<bool> feeds(entry_.instructions.size());
    for (size_t i = 0; i < entry_.results.size() && i < step_.results.size(); ++i) {
      if (step_.results[i].role == ResultRole::kState) feeds[entry_.results[i].instruction] = true;
    }
    for (InstructionId id = entry_.num_instructions() - 1; id >= 0; --id) {
      if (!feeds[id]) continue;
      for (const Value operand : entry_.instructions[id].operands) {
        feeds[operand.instruction] = true;
      }
    }
    return feeds;
  }

  bool DependsOnInputsOnly(InstructionId id) const {
    const Instruction& instruction = entry_.instructions[id];
    if (instruction.opcode == Opcode::kParameter) {
      const auto number = static_cast<size_t>(instruction.As<ParameterAttributes>().number);
      const ParameterRole role = step_.parameters[number].role;
      // A loss scale is known in front of the loop, too.
      const bool is_scalar = instruction.shape().num_elements() == 1;
      return role == ParameterRole::kBatch || role == ParameterRole::kKey || is_scalar;
    }
    return !IsHeavy(instruction.opcode) && instruction.opcode != Opcode::kRng &&
           std::ranges::all_of(instruction.operands, [&](Value operand) {
             return out_.from_inputs[operand.instruction];
           });
  }

  absl::Status PlaceParameter(InstructionId id) {
    const Instruction& instruction = entry_.instructions[id];
    const auto number = static_cast<size_t>(instruction.As<ParameterAttributes>().number);
    const ParameterInfo& info = step_.parameters[number];
    if (info.role != ParameterRole::kBatch || info.batch_dim < 0) {
      out_.places.push_back({{MicroPlace::Kind::kInvariant}});
      return absl::OkStatus();
    }
    const int64_t size = instruction.shape().dims[info.batch_dim];
    if (size % options_.num_micro_batches != 0) {
      return InvalidArgument("{} micro-batches do not divide the {} examples of {} {}",
                             options_.num_micro_batches, size, info.name,
                             ToString(instruction.shape()));
    }
    out_.places.push_back({{MicroPlace::Kind::kSplit, info.batch_dim}});
    return absl::OkStatus();
  }

  void PlaceAll(InstructionId id, MicroPlace::Kind kind) {
    out_.places.emplace_back(entry_.instructions[id].results.size(), MicroPlace{kind});
  }

  bool AnyOperand(InstructionId id, MicroPlace::Kind kind) const {
    return std::ranges::any_of(entry_.instructions[id].operands,
                               [&](Value operand) { return out_.at(operand).kind == kind; });
  }

  absl::Status PlaceOperation(InstructionId id) {
    const bool reads_slices = AnyOperand(id, MicroPlace::Kind::kSplit);
    const bool reads_loop = reads_slices || AnyOperand(id, MicroPlace::Kind::kPartial) ||
                            AnyOperand(id, MicroPlace::Kind::kSame);
    if (entry_.instructions[id].part.phase == Phase::kApply ||
        (!reads_slices && AnyOperand(id, MicroPlace::Kind::kAfter))) {
      PlaceAll(id, MicroPlace::Kind::kAfter);
      return absl::OkStatus();
    }
    if (!reads_loop) {
      PlaceAll(id, MicroPlace::Kind::kInvariant);
      return absl::OkStatus();
    }
    const OpRule rule = RuleFor(step_.module, entry_, id);
    if (const std::optional<Strategy> strategy = BestStrategy(id, rule)) {
      out_.strategies[id] = *strategy;
      std::vector<MicroPlace>& places = out_.places.emplace_back();
      for (size_t r = 0; r < entry_.instructions[id].results.size(); ++r) {
        places.push_back(PlaceOf(ResultSharding(rule, *strategy, static_cast<int>(r))));
      }
      return absl::OkStatus();
    }
    if (reads_slices && out_.from_inputs[id]) {
      PlaceAll(id, MicroPlace::Kind::kInvariant);
      return absl::OkStatus();
    }
    if (reads_slices && feeds_state_[id]) return Refuse(id);
    PlaceAll(id, MicroPlace::Kind::kAfter);
    return absl::OkStatus();
  }

  // The strategy along the micro-batches that takes the operands as they are with the least ado.
  std::optional<Strategy> BestStrategy(InstructionId id, const OpRule& rule) const {
    if (!rule.supported || rule.num_lanes > 1) return std::nullopt;
    // What one micro-batch estimates is worked on whole in each, not a slice of its features.
    const bool may_repeat = options_.per_micro_batch && !AnyOperand(id, MicroPlace::Kind::kSplit);
    std::optional<Strategy> best;
    int least = 0;
    for (Strategy& strategy : EnumerateStrategies(rule, mesh_)) {
      if (strategy.axes[kMicroAxis].kind == AxisUse::Kind::kIdle && !may_repeat) continue;
      if (!CombineAxes(rule, strategy).empty()) continue;
      if (IsControlFlow(entry_.instructions[id].opcode) && Communicates(id, rule, strategy))
        continue;
      const std::optional<int> ado = AdoOf(id, rule, strategy);
      if (!ado || (best && *ado >= least)) continue;
      least = *ado;
      best = std::move(strategy);
    }
    return best;
  }

  // Would one micro-batch need something of another inside the loop or branch?
  bool Communicates(InstructionId id, const OpRule& rule, const Strategy& strategy) const {
    const std::vector<CalledPlan> called =
        PlanCalledBy(step_.module, entry_, id, rule, strategy, mesh_, kTrialPrices);
    const Trips once = [](const Computation&, InstructionId) { return 1.0; };
    return !CollectivesOf(step_.module, entry_, id, rule, strategy, called, mesh_, once).empty();
  }

  std::optional<int> AdoOf(InstructionId id, const OpRule& rule, const Strategy& strategy) const {
    int total = 0;
    const std::vector<Value>& operands = entry_.instructions[id].operands;
    for (size_t i = 0; i < operands.size(); ++i) {
      const MicroPlace wanted = PlaceOf(OperandSharding(rule, strategy, static_cast<int>(i)));
      const std::optional<int> ado = AdoOfOperand(id, operands[i], wanted);
      if (!ado) return std::nullopt;
      total += *ado;
    }
    return total;
  }

  std::optional<int> AdoOfOperand(InstructionId id, Value operand, const MicroPlace& wanted) const {
    const MicroPlace& place = out_.at(operand);
    const bool wants_whole = wanted.kind == MicroPlace::Kind::kSame;
    switch (place.kind) {
      case MicroPlace::Kind::kInvariant:
      case MicroPlace::Kind::kSame:
        // What a loop adds its sums to counts once.
        if (wanted.kind == MicroPlace::Kind::kPartial) {
          return entry_.instructions[id].opcode == Opcode::kWhile ? std::optional(1) : std::nullopt;
        }
        return wants_whole ? 0 : 1;
      case MicroPlace::Kind::kSplit:
        return place == wanted ? std::optional(0) : std::nullopt;
      case MicroPlace::Kind::kPartial:
        if (wanted.kind == MicroPlace::Kind::kPartial) return 0;
        break;
      case MicroPlace::Kind::kAfter:
        break;
    }
    if (wanted.kind == MicroPlace::Kind::kPartial) return std::nullopt;
    if (out_.from_inputs[operand.instruction]) return 4;
    if (options_.per_micro_batch && out_.has_local[operand.instruction]) return wants_whole ? 3 : 4;
    return std::nullopt;
  }

  bool HasLocal(InstructionId id) const {
    const Instruction& instruction = entry_.instructions[id];
    if (instruction.opcode == Opcode::kParameter) {
      return out_.places[id][0].kind == MicroPlace::Kind::kInvariant;
    }
    if (instruction.part.phase == Phase::kApply) return false;
    if (out_.places[id].size() != 1) return false;
    if (out_.places[id][0].kind == MicroPlace::Kind::kPartial) return true;
    return std::ranges::all_of(instruction.operands,
                               [&](Value operand) { return out_.has_local[operand.instruction]; });
  }

  absl::Status Refuse(InstructionId id) const {
    const Instruction& instruction = entry_.instructions[id];
    const std::string name =
        fmt::format("{} '{}'{}", OpcodeName(instruction.opcode), instruction.name,
                    instruction.op_name.empty() ? "" : fmt::format(" ({})", instruction.op_name));
    for (const Value operand : instruction.operands) {
      const MicroPlace::Kind kind = out_.at(operand).kind;
      if (kind != MicroPlace::Kind::kPartial && kind != MicroPlace::Kind::kAfter) continue;
      return InvalidArgument(
          "micro-batches: {} works on slices of the batch but needs '{}' of the whole batch; plan "
          "without micro-batches, or let each micro-batch stand for the whole (--per-micro-batch)",
          name, entry_.instruction(operand).name);
    }
    return InvalidArgument(
        "micro-batches: {} cannot work on slices of the batch; plan without micro-batches", name);
  }

  const Step& step_;
  const Computation& entry_;
  const MicroBatchOptions& options_;
  const Mesh& mesh_;
  const std::vector<bool> feeds_state_;
  MicroPlaces out_;
};

}  // namespace

MicroPlace PlaceOf(const Sharding& sharding) {
  if (sharding.partial.contains(kMicroAxis)) return {MicroPlace::Kind::kPartial};
  for (size_t dim = 0; dim < sharding.dims.size(); ++dim) {
    if (!sharding.dims[dim].empty()) return {MicroPlace::Kind::kSplit, static_cast<int>(dim)};
  }
  return {MicroPlace::Kind::kSame};
}

absl::StatusOr<MicroPlaces> FindMicroPlaces(const Step& step, const MicroBatchOptions& options,
                                            const Mesh& mesh) {
  return PlaceFinder(step, options, mesh).Run();
}

}  // namespace minka
