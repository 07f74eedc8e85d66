#include "minka/planner/intra_op/choices.h"

#include <algorithm>
#include <optional>
#include <set>

#include "minka/base/status.h"
#include "minka/ir/micro_loop.h"
#include "minka/planner/intra_op/restrictions.h"

namespace minka {
namespace {

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

// How many axes are left once neighbours that do the same are joined; those of size 1 do not count.
int NumRuns(const Strategy& strategy, const Mesh& mesh) {
  int runs = 0;
  const AxisUse* last = nullptr;
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    if (mesh.size(axis) == 1) continue;
    runs += last == nullptr || strategy.axes[axis] != *last;
    last = &strategy.axes[axis];
  }
  return runs;
}

// How many different things axes of size above 1 do.
size_t NumUses(const Strategy& strategy, const Mesh& mesh) {
  std::set<AxisUse> uses;
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    if (mesh.size(axis) > 1) uses.insert(strategy.axes[axis]);
  }
  return uses.size();
}

// What goes last beyond the limits on choices has the least; -1: never goes.
int Unusualness(const Strategy& strategy, const Mesh& mesh) {
  if (NumRuns(strategy, mesh) <= 2) return -1;
  if (NumUses(strategy, mesh) <= 2) return 0;
  const int num_linear = NumLinearAxes(strategy);
  return 1 + 4 * (num_linear > 1) + 2 * (NumIdleAxes(strategy, mesh) > num_linear) +
         (SharesFactor(strategy, mesh) ? 1 : 0);
}

bool IsContraction(Opcode opcode) {
  return opcode == Opcode::kDot || opcode == Opcode::kConvolution;
}

class Enumerator {
 public:
  Enumerator(const Step& step, const Mesh& mesh, bool forbid_replicated_dots,
             const IntraOpOptions& options)
      : step_(step),
        mesh_(mesh),
        forbid_replicated_dots_(forbid_replicated_dots),
        options_(options),
        loop_(FindMicroLoop(step.module)) {}

  absl::StatusOr<ChoiceTables> Run() {
    ASSIGN_OR_RETURN(Restrictions restrictions, Restrictions::Create(step_, mesh_, options_));
    const Computation& entry = step_.module.entry_computation();
    tables_.of_instruction.assign(entry.num_instructions(), -1);
    for (InstructionId id = 0; id < entry.num_instructions(); ++id) {
      RETURN_IF_ERROR(AddInstruction(entry, id, restrictions));
    }
    ASSIGN_OR_RETURN(tables_.pinned_values, restrictions.OfValues());
    RETURN_IF_ERROR(restrictions.CheckAllUsed());
    restrictions.NoteExceptions();
    restrictions.NoteUndivided();
    tables_.notes.insert(tables_.notes.end(), restrictions.notes().begin(),
                         restrictions.notes().end());
    return std::move(tables_);
  }

 private:
  absl::Status AddInstruction(const Computation& entry, InstructionId id,
                              Restrictions& restrictions) {
    const Instruction& instruction = entry.instructions[id];
    OpRule rule = RuleFor(step_.module, entry, id);
    Restriction restriction;
    if (instruction.opcode == Opcode::kParameter) {
      ASSIGN_OR_RETURN(restriction, restrictions.OfParameter(id));
    } else if (loop_.IsSum(id)) {
      restriction = restrictions.OfSum(id);
    }
    restrictions.AddOfExamples(id, rule, restriction);
    const std::string key = fmt::format("{}{} {}", restriction.Key(mesh_),
                                        OpcodeName(instruction.opcode), RuleKey(rule, entry, id));
    const auto [found, added] =
        by_key_.try_emplace(key, static_cast<int32_t>(tables_.op_choices.size()));
    if (added) {
      ASSIGN_OR_RETURN(OpChoices choices,
                       Choices(std::move(rule), entry, id, restriction, restrictions));
      Add(std::move(choices));
    }
    tables_.of_instruction[id] = found->second;
    const OpChoices& choices = tables_.op_choices[found->second];
    restrictions.NoteIfWhole(restriction,
                             instruction.results.empty() ? Shape() : instruction.shape(),
                             choices.rule, choices.strategies);
    return absl::OkStatus();
  }

  int32_t Add(OpChoices choices) {
    tables_.op_choices.push_back(std::move(choices));
    return static_cast<int32_t>(tables_.op_choices.size()) - 1;
  }

  absl::StatusOr<OpChoices> Choices(OpRule rule, const Computation& entry, InstructionId id,
                                    const Restriction& restriction,
                                    const Restrictions& restrictions) {
    const Instruction& instruction = entry.instructions[id];
    OpChoices choices;
    choices.strategies = EnumerateStrategies(rule, mesh_);
    choices.rule = std::move(rule);
    if (IsDataParallel(options_.method) && !restriction.exact) KeepUniform(choices.strategies);
    if (!restriction.empty()) {
      RETURN_IF_ERROR(restrictions.Keep(restriction, choices.rule, choices.strategies));
    }
    const Opcode opcode = instruction.opcode;
    if (IsContraction(opcode)) KeepDivided(choices.strategies);
    Cut(opcode, choices.strategies);
    FillPorts(instruction, choices);
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
  // the cost model lets it compete.
  void KeepDivided(std::vector<Strategy>& strategies) const {
    if (!forbid_replicated_dots_) return;
    int least = mesh_.num_axes();
    for (const Strategy& strategy : strategies)
      least = std::min(least, NumIdleAxes(strategy, mesh_));
    std::erase_if(strategies,
                  [&](const Strategy& strategy) { return NumIdleAxes(strategy, mesh_) > least; });
  }

  // Beyond the limits the unusual goes first: several partial axes, idle axes, two axes on one
  // factor; then what two axes could do that are made by joining others than neighbours. What two
  // axes could do that are made by joining neighbours stays.
  void Cut(Opcode opcode, std::vector<Strategy>& strategies) {
    const size_t num_all = strategies.size();
    const size_t most =
        IsContraction(opcode) ? options_.max_contraction_choices : options_.max_choices;
    if (num_all <= most) return;
    const auto unusual = [&](const Strategy& strategy) { return Unusualness(strategy, mesh_); };
    const size_t num_kept = std::max<size_t>(std::ranges::count(strategies, -1, unusual), most);
    if (num_all <= num_kept) return;
    std::ranges::stable_sort(strategies, {}, unusual);
    strategies.resize(num_kept);
    std::ranges::sort(strategies);
    CutChoices& cut = tables_.cut[std::string(OpcodeName(opcode))];
    cut.num_cut += static_cast<int64_t>(num_all - num_kept);
    cut.num_choices += static_cast<int64_t>(num_all);
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

  const Step& step_;
  const Mesh& mesh_;
  const bool forbid_replicated_dots_;
  const IntraOpOptions& options_;
  const MicroLoop loop_;
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
