#include "minka/planner/intra_op/choices.h"

#include <algorithm>
#include <optional>

#include "minka/base/status.h"

namespace minka {
namespace {

struct Pin {
  std::string glob;
  Sharding sharding;
  bool used = false;
};

absl::StatusOr<std::vector<Pin>> ParsePins(const std::vector<std::string>& texts,
                                           const Mesh& mesh) {
  std::vector<Pin> pins;
  for (const std::string& text : texts) {
    const size_t cut = text.rfind('=');
    if (cut == std::string::npos || cut == 0) {
      return InvalidArgument("pin \"{}\": expected GLOB=SHARDING, e.g. '*/kernel=[-,model]'", text);
    }
    auto sharding = ParseSharding(std::string_view(text).substr(cut + 1), mesh);
    if (!sharding.ok()) return WithContext(sharding.status(), fmt::format("pin \"{}\"", text));
    pins.push_back({text.substr(0, cut), *std::move(sharding)});
  }
  return pins;
}

// The batch dimension over every axis; nullopt where the axes do not divide it.
std::optional<Sharding> BatchSharding(const Shape& shape, int batch_dim, const Mesh& mesh) {
  Sharding sharding = Sharding::Replicated(shape.rank());
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    if (mesh.size(axis) > 1) sharding.dims[batch_dim].PushMinor(axis);
  }
  if (!Validate(sharding, shape, mesh).ok()) return std::nullopt;
  return sharding;
}

int NumIdleAxes(const Strategy& strategy, const Mesh& mesh) {
  int idle = 0;
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    idle += mesh.size(axis) > 1 && strategy.axes[axis].kind != AxisUse::Kind::kFactor;
  }
  return idle;
}

// Whether two axes of size above 1 split the same factor.
bool SharesFactor(const Strategy& strategy, const Mesh& mesh) {
  for (int a = 0; a < mesh.num_axes(); ++a) {
    for (int b = a + 1; b < mesh.num_axes(); ++b) {
      if (mesh.size(a) > 1 && mesh.size(b) > 1 && strategy.axes[a].kind == AxisUse::Kind::kFactor &&
          strategy.axes[a] == strategy.axes[b]) {
        return true;
      }
    }
  }
  return false;
}

int NumLinearAxes(const Strategy& strategy) {
  return static_cast<int>(std::ranges::count_if(
      strategy.axes, [](const AxisUse& use) { return use.kind == AxisUse::Kind::kLinear; }));
}

class Enumerator {
 public:
  Enumerator(const Step& step, const Mesh& mesh, bool forbid_replicated_dots,
             const IntraOpOptions& options)
      : step_(step),
        mesh_(mesh),
        forbid_replicated_dots_(forbid_replicated_dots),
        options_(options) {}

  absl::StatusOr<ChoiceTables> Run() {
    ASSIGN_OR_RETURN(pins_, ParsePins(options_.pins, mesh_));
    const Computation& entry = step_.module.entry_computation();
    tables_.of_instruction.assign(entry.num_instructions(), -1);
    for (InstructionId id = 0; id < entry.num_instructions(); ++id) {
      RETURN_IF_ERROR(AddInstruction(entry, id));
    }
    for (const Pin& pin : pins_) {
      if (!pin.used) {
        return NotFound("pin \"{}\" names no parameter; names look like \"{}\"", pin.glob,
                        step_.parameters.empty() ? "" : step_.parameters.front().name);
      }
    }
    return std::move(tables_);
  }

 private:
  absl::Status AddInstruction(const Computation& entry, InstructionId id) {
    const Instruction& instruction = entry.instructions[id];
    OpRule rule = RuleFor(step_.module, entry, id);
    std::optional<Sharding> fixed;
    if (instruction.opcode == Opcode::kParameter) {
      ASSIGN_OR_RETURN(fixed, FixedParameterSharding(instruction));
    }
    if (fixed) {
      OpChoices choices = Choices(std::move(rule), entry, id);
      RETURN_IF_ERROR(KeepOnly(*fixed, choices));
      tables_.of_instruction[id] = Add(std::move(choices));
      return absl::OkStatus();
    }
    const std::string key =
        fmt::format("{} {}", OpcodeName(instruction.opcode), RuleKey(rule, entry, id));
    const auto [found, added] =
        by_key_.try_emplace(key, static_cast<int32_t>(tables_.op_choices.size()));
    if (added) Add(Choices(std::move(rule), entry, id));
    tables_.of_instruction[id] = found->second;
    return absl::OkStatus();
  }

  int32_t Add(OpChoices choices) {
    tables_.op_choices.push_back(std::move(choices));
    return static_cast<int32_t>(tables_.op_choices.size()) - 1;
  }

  // The sharding that a pin or the method dictates.
  absl::StatusOr<std::optional<Sharding>> FixedParameterSharding(const Instruction& instruction) {
    const int number = static_cast<int>(instruction.As<ParameterAttributes>().number);
    const ParameterInfo& info = step_.parameters[number];
    for (Pin& pin : pins_) {
      if (!MatchesGlob(pin.glob, info.name)) continue;
      pin.used = true;
      const absl::Status valid = Validate(pin.sharding, instruction.shape(), mesh_);
      if (!valid.ok()) return WithContext(valid, fmt::format("pin on {}", info.name));
      if (!pin.sharding.partial.empty()) {
        return InvalidArgument("pin on {}: a parameter cannot be partial", info.name);
      }
      return std::optional(pin.sharding);
    }
    if (options_.method != Method::kData) return std::optional<Sharding>();
    if (info.role != ParameterRole::kBatch || info.batch_dim < 0) {
      return std::optional(Sharding::Replicated(instruction.shape().rank()));
    }
    std::optional<Sharding> split = BatchSharding(instruction.shape(), info.batch_dim, mesh_);
    if (!split) {
      tables_.notes.push_back(
          fmt::format("{} stays whole: its batch dimension {} is not divided by {} devices",
                      info.name, ToString(instruction.shape()), mesh_.num_devices()));
      split = Sharding::Replicated(instruction.shape().rank());
    }
    return split;
  }

  OpChoices Choices(OpRule rule, const Computation& entry, InstructionId id) {
    OpChoices choices;
    choices.strategies = EnumerateStrategies(rule, mesh_);
    choices.rule = std::move(rule);
    if (options_.method == Method::kData) KeepUniform(choices.strategies);
    const Opcode opcode = entry.instructions[id].opcode;
    if (opcode == Opcode::kDot || opcode == Opcode::kConvolution) KeepDivided(choices.strategies);
    Cut(choices.strategies);
    FillPorts(entry.instructions[id], choices);
    return choices;
  }

  // Data parallelism treats the mesh as one axis: all axes do the same everywhere.
  void KeepUniform(std::vector<Strategy>& strategies) const {
    std::erase_if(strategies, [&](const Strategy& strategy) {
      const AxisUse* first = nullptr;
      for (int axis = 0; axis < mesh_.num_axes(); ++axis) {
        if (mesh_.size(axis) == 1) continue;
        if (first && strategy.axes[axis] != *first) return true;
        first = &strategy.axes[axis];
      }
      return false;
    });
  }

  // A dot that an axis does not divide repeats its work there: only where no choice divides it, or
  // the cost model lets it compete and there is room.
  void KeepDivided(std::vector<Strategy>& strategies) const {
    int least = mesh_.num_axes();
    for (const Strategy& strategy : strategies)
      least = std::min(least, NumIdleAxes(strategy, mesh_));
    const int allowed = forbid_replicated_dots_ || mesh_.num_axes() > 2 ? least : mesh_.num_axes();
    std::erase_if(strategies,
                  [&](const Strategy& strategy) { return NumIdleAxes(strategy, mesh_) > allowed; });
  }

  // Beyond max_choices the unusual goes first: several partial axes, two axes on one factor, idle
  // axes.
  void Cut(std::vector<Strategy>& strategies) {
    const size_t limit = static_cast<size_t>(options_.max_choices);
    if (strategies.size() <= limit) return;
    const auto unusual = [&](const Strategy& s) {
      const bool all_idle = NumIdleAxes(s, mesh_) == mesh_.num_axes() && NumLinearAxes(s) == 0;
      return all_idle ? -1 : 2 * (NumLinearAxes(s) > 1) + (SharesFactor(s, mesh_) ? 1 : 0);
    };
    std::ranges::stable_sort(strategies, {}, unusual);
    tables_.num_cut += static_cast<int64_t>(strategies.size() - limit);
    strategies.resize(limit);
    std::ranges::sort(strategies);
  }

  void FillPorts(const Instruction& instruction, OpChoices& choices) {
    for (size_t operand = 0; operand < instruction.operands.size(); ++operand) {
      Port port;
      for (const Strategy& strategy : choices.strategies) {
        port.push_back(tables_.shardings.Intern(
            OperandSharding(choices.rule, strategy, static_cast<int>(operand))));
      }
      choices.operands.push_back(tables_.ports.Intern(port));
    }
    for (size_t result = 0; result < instruction.results.size(); ++result) {
      Port port;
      for (const Strategy& strategy : choices.strategies) {
        port.push_back(tables_.shardings.Intern(
            ResultSharding(choices.rule, strategy, static_cast<int>(result))));
      }
      choices.results.push_back(tables_.ports.Intern(port));
    }
  }

  absl::Status KeepOnly(const Sharding& sharding, OpChoices& choices) {
    const auto match = std::ranges::find_if(choices.strategies, [&](const Strategy& strategy) {
      return ResultSharding(choices.rule, strategy, 0) == sharding;
    });
    if (match == choices.strategies.end()) {
      return InvalidArgument(
          "no strategy gives a parameter the sharding {}; axes of one dimension go in the order of "
          "the mesh {}",
          ToString(sharding, mesh_), mesh_.ToString());
    }
    choices.strategies = {*match};
    choices.operands.clear();
    choices.results = {tables_.ports.Intern({tables_.shardings.Intern(sharding)})};
    return absl::OkStatus();
  }

  const Step& step_;
  const Mesh& mesh_;
  const bool forbid_replicated_dots_;
  const IntraOpOptions& options_;
  std::vector<Pin> pins_;
  std::unordered_map<std::string, int32_t> by_key_;
  ChoiceTables tables_;
};

}  // namespace

ShardingId ShardingTable::Intern(const Sharding& sharding) {
  const auto [found, added] =
      ids_.try_emplace(sharding, static_cast<ShardingId>(shardings_.size()));
  if (added) shardings_.push_back(sharding);
  return found->second;
}

PortId PortTable::Intern(const Port& port) {
  const auto [found, added] = ids_.try_emplace(port, static_cast<PortId>(ports_.size()));
  if (added) ports_.push_back(port);
  return found->second;
}

absl::StatusOr<ChoiceTables> EnumerateChoices(const Step& step, const Mesh& mesh,
                                              bool forbid_replicated_dots,
                                              const IntraOpOptions& options) {
  return Enumerator(step, mesh, forbid_replicated_dots, options).Run();
}

}  // namespace minka
