#include "minka/planner/intra_op/formulation.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <span>
#include <tuple>

#include "minka/base/check.h"
#include "minka/planner/intra_op/op_costs.h"

namespace minka {
namespace {

// Finest unit: small enough that tie-breaking fractions of Alpa's costs survive.
constexpr double kMaxUnitsPerCost = 1e5;
// In a port, of choices that leave nothing in memory.
constexpr ShardingId kNoBytes = -1;
// What an operation costs at least is at most this part of what a cell can hold.
constexpr double kHeadroom = 1e4;

int64_t ToUnits(double cost, const Formulation& formulation) {
  if (std::isinf(cost)) return kForbidden;
  return static_cast<int64_t>(
      std::min(cost * formulation.units_per_cost, formulation.most_per_cell));
}

// Versions that every micro-batch needs cost their bytes all the time when they are made once.
bool HoistsReshards(const IntraOpOptions& options) {
  return options.method != Method::kZero3 && !options.search.memory_limit_bytes;
}

class Formulator {
 public:
  Formulator(const StepFacts& facts, ChoiceTables& tables, ReshardCosts& reshards, const Mesh& mesh,
             const CostModel& cost, const IntraOpOptions& options)
      : facts_(facts),
        tables_(tables),
        ports_(tables.ports),
        reshards_(reshards),
        mesh_(mesh),
        cost_(cost),
        options_(options),
        op_costs_(facts, tables, mesh, cost) {}

  Formulation Run() {
    const Computation& entry = facts_.entry;
    out_.hoists_reshards = HoistsReshards(options_);
    ChooseUnits();
    out_.layouts.resize(entry.num_instructions());
    for (InstructionId id = 0; id < entry.num_instructions(); ++id) AddOperation(id);
    for (InstructionId id = 0; id < entry.num_instructions(); ++id) {
      for (int result = 0; result < static_cast<int>(entry.instructions[id].results.size());
           ++result) {
        AddValue({id, result});
      }
    }
    out_.problem.set_usage_limit(options_.search.memory_limit_bytes);
    return std::move(out_);
  }

 private:
  const OpChoices& choices(InstructionId id) const {
    return tables_.op_choices[tables_.of_instruction[id]];
  }
  const Shape& shape(Value value) const { return facts_.entry.shape(value); }

  // The solver wants the sum of the largest costs of all nodes and edges below 2^62. A cell that
  // would need more than its share is cut to it, and all are rounded down: choices only become
  // cheaper, so the bound stays one.
  void ChooseUnits() {
    double dearest = 0;
    for (InstructionId id = 0; id < facts_.entry.num_instructions(); ++id) {
      dearest = std::max(dearest, std::ranges::min(op_costs_.Costs(id)));
    }
    out_.most_per_cell = std::ldexp(1.0, 61) / (8.0 * facts_.entry.num_instructions() + 1);
    out_.units_per_cost =
        std::min(kMaxUnitsPerCost, out_.most_per_cell / (kHeadroom * dearest + 1));
  }

  void AddOperation(InstructionId id) {
    std::vector<int64_t> costs;
    for (double cost : op_costs_.Costs(id)) costs.push_back(ToUnits(cost, out_));
    out_.operations.push_back(out_.problem.AddNode(costs));
    out_.ports.push_back(choices(id).results.empty() ? -1 : choices(id).results[0]);
  }

  void AddValue(Value value) {
    const std::vector<User> users = UsersOf(facts_, value);
    const NodeId producer = out_.operations[value.instruction];
    const PortId producer_port = choices(value.instruction).results[value.result];
    ValueLayout layout{.kept = producer};
    const bool is_parameter = IsParameter(value);
    const auto pinned = tables_.pinned_values.find(value);
    const bool is_pinned = pinned != tables_.pinned_values.end();
    const bool is_kept = !is_parameter && (users.size() > 1 || IsPlainResult(value) || is_pinned);
    PortId kept_port = producer_port;
    use_ = {facts_.ClassOf(value), facts_.IsReadLate(value)};
    is_filled_ = users.size() == 1 && users[0].operands.size() <= 1 && IsFilled(value);
    if (is_kept) {
      kept_port = is_pinned ? ports_.Intern({tables_.shardings.Intern(pinned->second)})
                            : KeptPort(value, producer_port, users);
      layout.kept = AddSharded(kept_port);
      runs_ = facts_.loop.IsTransient(value.instruction) ? facts_.loop.num_micro_batches : 1;
      AddEdge(producer, producer_port, layout.kept, {kept_port}, shape(value));
    }
    const ViewGroups groups = ViewGroupsOf(users, is_parameter);
    TimeInterval kept_time = TimeOfKept(value, users, groups);
    if (TakesMemory(value)) {
      const MicroLoop& loop = facts_.loop;
      if (is_kept && loop.LeavesLoop(value.instruction)) {
        // What micro-batches come to is as it is made until all of them are there.
        AddBytes(producer, value, ports_[producer_port], {loop.begin, loop.end});
        kept_time.begin = loop.end;
      }
      AddBytes(layout.kept, value, ports_[kept_port], kept_time);
    }
    AddViews(value, groups, kept_time, kept_port, layout);
    for (const User& user : users) Connect(value, user, layout, kept_port);
    out_.layouts[value.instruction].push_back(layout);
  }

  // A constant over and over: every device can make any part of it.
  bool IsFilled(Value value) const {
    const Instruction& instruction = facts_.entry.instruction(value);
    return instruction.opcode == Opcode::kBroadcast &&
           facts_.entry.instruction(instruction.operands[0]).opcode == Opcode::kConstant &&
           facts_.entry.shape(instruction.operands[0]).num_elements() == 1;
  }

  // A result that is not the new value of state: somebody reads it, so it must be complete.
  bool IsPlainResult(Value value) const {
    return facts_.uses.is_result(value) &&
           (value.result > 0 || facts_.state_parameters[value.instruction].empty());
  }

  NodeId AddSharded(PortId port) {
    const std::vector<int64_t> zeros(ports_[port].size(), 0);
    out_.ports.push_back(port);
    return out_.problem.AddNode(zeros);
  }

  PortId UserPort(const User& user, int operand) const {
    return user.state_parameter >= 0 ? choices(ParameterInstruction(user)).results[0]
                                     : choices(user.instruction).operands[operand];
  }
  InstructionId ParameterInstruction(const User& user) const {
    return facts_.entry.parameters[user.state_parameter];
  }

  // Complete shardings that the producer makes or a user wants.
  PortId KeptPort(Value value, PortId producer_port, const std::vector<User>& users) {
    std::vector<PortId> wanted = {producer_port};
    for (const User& user : users) {
      if (user.state_parameter >= 0) wanted.push_back(UserPort(user, 0));
      for (int operand : user.operands) wanted.push_back(UserPort(user, operand));
    }
    std::ranges::sort(wanted);
    wanted.erase(std::unique(wanted.begin(), wanted.end()), wanted.end());
    const auto [found, added] = kept_ports_.try_emplace(wanted, -1);
    if (!added) return found->second;
    std::set<ShardingId> complete;
    for (PortId port : wanted) {
      for (ShardingId id : ports_[port]) {
        if (tables_.shardings[id].partial.empty()) complete.insert(id);
      }
    }
    MINKA_CHECK(!complete.empty(), "value {}.{} has no complete sharding", value.instruction,
                value.result);
    found->second = ports_.Intern(Port(complete.begin(), complete.end()));
    return found->second;
  }

  // The readers of one value by view group.
  struct ViewGroups {
    std::array<bool, StepFacts::kNumViewGroups> has_view = {};
    std::array<bool, StepFacts::kNumViewGroups> is_late = {};  // as ReshardUse::is_late
    std::array<InstructionId, StepFacts::kNumViewGroups> first = {}, last = {};
    // When the last of them runs.
    std::array<InstructionId, StepFacts::kNumViewGroups> last_runs = {};
  };

  ViewGroups ViewGroupsOf(const std::vector<User>& users, bool is_parameter) const {
    ViewGroups groups;
    std::array<int, StepFacts::kNumViewGroups> num_users = {};
    for (const User& user : users) {
      if (user.state_parameter >= 0) continue;
      const int group = facts_.ViewGroup(user.instruction);
      const bool user_is_late = facts_.leads_to_apply_only[user.instruction];
      groups.is_late[group] = user_is_late && (num_users[group] == 0 || groups.is_late[group]);
      if (num_users[group]++ == 0) groups.first[group] = user.instruction;
      groups.last[group] = user.instruction;
      groups.last_runs[group] =
          std::max(groups.last_runs[group], facts_.last_runs[user.instruction]);
    }
    const auto num_groups = std::ranges::count_if(num_users, [](int n) { return n > 0; });
    for (int group = 0; group < StepFacts::kNumViewGroups; ++group) {
      groups.has_view[group] = num_users[group] >= 2 && (num_groups >= 2 || is_parameter);
    }
    return groups;
  }

  // While the kept value is there, whatever is chosen: a view may be a fresh copy, and then it
  // reads the kept value where its first reader stands.
  TimeInterval TimeOfKept(Value value, const std::vector<User>& users,
                          const ViewGroups& groups) const {
    if (IsParameter(value) && !IsReceivedOnce(value))
      return {0, facts_.entry.num_instructions() + 1};
    TimeInterval time = {facts_.FirstTime(value), facts_.LastUse(value) + 1};
    const bool has_fresh_views = options_.search.memory_limit_bytes.has_value();
    if (!has_fresh_views || facts_.uses.is_result(value) || facts_.loop.exists()) return time;
    InstructionId last = value.instruction;
    for (const User& user : users) {
      const int group = facts_.ViewGroup(user.instruction);
      last = std::max(
          last, groups.has_view[group] ? groups.first[group] : facts_.last_runs[user.instruction]);
    }
    time.end = last + 1;
    return time;
  }

  // What another stage makes is there from its first reader to its last where there are no
  // micro-batches.
  bool IsReceivedOnce(Value value) const {
    const auto number = static_cast<size_t>(
        facts_.entry.instructions[value.instruction].As<ParameterAttributes>().number);
    return !facts_.loop.exists() && facts_.step.parameters[number].received;
  }

  void AddViews(Value value, const ViewGroups& groups, TimeInterval kept_time, PortId kept_port,
                ValueLayout& layout) {
    for (int group = 0; group < StepFacts::kNumViewGroups; ++group) {
      if (!groups.has_view[group]) continue;
      use_.is_late = groups.is_late[group];
      TimeInterval fresh = {groups.first[group], groups.last[group] + 1};
      runs_ = facts_.RunsOfReshard(value, groups.first[group], out_.hoists_reshards);
      const bool is_hoisted = facts_.loop.IsInside(groups.first[group]) && runs_ == 1;
      if (is_hoisted) fresh = {facts_.loop.begin, facts_.loop.end};
      layout.views[group] = AddView(value, layout.kept, kept_port);
      if (!options_.search.memory_limit_bytes) continue;
      const Port& shardings = ports_[kept_port];
      Port doubled(2 * shardings.size(), kNoBytes);
      std::ranges::copy(shardings, doubled.begin() + static_cast<int64_t>(shardings.size()));
      if (facts_.IsMaterialised(value)) AddBytes(layout.views[group], value, doubled, fresh);
      // Read as kept, the kept value stays for as long as the readers need it.
      const TimeInterval longer = {kept_time.end, groups.last_runs[group] + 1};
      if (longer.end <= longer.begin || facts_.loop.exists() || !TakesMemory(value)) continue;
      std::ranges::fill(doubled, kNoBytes);
      std::ranges::copy(shardings, doubled.begin());
      AddBytes(layout.views[group], value, doubled, longer);
    }
  }

  NodeId AddView(Value value, NodeId kept, PortId kept_port) {
    const Port& shardings = ports_[kept_port];
    const size_t num_shardings = shardings.size();
    if (!options_.search.memory_limit_bytes) {
      const NodeId view = AddSharded(kept_port);
      AddEdge(kept, kept_port, view, {kept_port}, shape(value));
      return view;
    }
    Port doubled = shardings;  // "as kept", then "fresh"
    doubled.insert(doubled.end(), shardings.begin(), shardings.end());
    const NodeId view = AddSharded(ports_.Intern(doubled));
    std::vector<int64_t> cells(num_shardings * num_shardings * 2, kForbidden);
    for (size_t i = 0; i < num_shardings; ++i) {
      cells[i * 2 * num_shardings + i] = 0;
      ReshardCosts::Source& reshards = reshards_.From(shape(value), ports_[kept_port][i], use_);
      for (size_t j = 0; j < num_shardings; ++j) {
        if (i == j) continue;
        const double cost = reshards.To(ports_[kept_port][j]);
        cells[(i * 2 + 1) * num_shardings + j] = ToUnits(static_cast<double>(runs_) * cost, out_);
      }
    }
    const auto size = static_cast<int32_t>(num_shardings);
    out_.problem.AddEdge(
        {.a = kept, .b = view, .table = out_.problem.AddTable(size, 2 * size, cells)});
    out_.reshards_of_edge.push_back(AddReshards(kept_port, {out_.ports[view]}, shape(value)));
    return view;
  }

  void Connect(Value value, const User& user, const ValueLayout& layout, PortId kept_port) {
    use_.is_late = user.state_parameter >= 0 || facts_.leads_to_apply_only[user.instruction];
    if (user.state_parameter >= 0) {
      runs_ = 1;
      AddEdge(layout.kept, kept_port, out_.operations[ParameterInstruction(user)],
              {UserPort(user, 0)}, shape(value));
      return;
    }
    const NodeId source = layout.SourceFor(facts_.ViewGroup(user.instruction));
    runs_ = facts_.RunsOfReshard(value, user.instruction, out_.hoists_reshards);
    std::vector<PortId> wanted;
    for (int operand : user.operands) wanted.push_back(UserPort(user, operand));
    std::ranges::sort(wanted);
    wanted.erase(std::unique(wanted.begin(), wanted.end()), wanted.end());
    const PortId port = source == layout.kept ? kept_port : out_.ports[source];
    AddEdge(source, port, out_.operations[user.instruction], wanted, shape(value));
  }

  // The cost of turning `from` into what the other node wants; an operand read twice in one
  // sharding is paid once.
  void AddEdge(NodeId from, PortId from_port, NodeId to, const std::vector<PortId>& to_ports,
               const Shape& shape) {
    if (from == to) return;
    const auto key =
        std::tuple(from_port, to_ports, use_, is_filled_, runs_, shape.type, shape.dims);
    const auto [found, added] = edge_tables_.try_emplace(key);
    if (added) {
      found->second = {MakeTable(from_port, to_ports, shape),
                       AddReshards(from_port, to_ports, shape)};
    }
    out_.problem.AddEdge({.a = from, .b = to, .table = found->second.table});
    out_.reshards_of_edge.push_back(found->second.reshards);
  }

  int32_t AddReshards(PortId from, const std::vector<PortId>& to, const Shape& shape) {
    out_.reshards.push_back({.from = from, .to = to, .use = use_, .runs = runs_, .shape = shape});
    return static_cast<int32_t>(out_.reshards.size()) - 1;
  }

  TableId MakeTable(PortId from_port, const std::vector<PortId>& to_ports, const Shape& shape) {
    const Port& from = ports_[from_port];
    const size_t num_columns = ports_[to_ports[0]].size();
    std::vector<int64_t> cells;
    cells.reserve(from.size() * num_columns);
    std::vector<ShardingId> wanted;
    for (ShardingId source : from) {
      ReshardCosts::Source& reshards = reshards_.From(shape, source, use_);
      for (size_t j = 0; j < num_columns; ++j) {
        wanted.clear();
        double cost = 0;
        for (PortId port : to_ports) {
          const ShardingId target = ports_[port][j];
          if (std::ranges::find(wanted, target) != wanted.end()) continue;
          wanted.push_back(target);
          const double to_target = reshards.To(target);
          // What is filled is made as it is wanted, where it can be: XLA would fold what is sent.
          const bool is_made = is_filled_ && std::ranges::find(from, target) != from.end();
          cost += is_made && to_target > 0 ? std::numeric_limits<double>::infinity() : to_target;
        }
        cells.push_back(ToUnits(static_cast<double>(runs_) * cost, out_));
      }
    }
    return out_.problem.AddTable(static_cast<int32_t>(from.size()),
                                 static_cast<int32_t>(num_columns), cells);
  }

  bool IsParameter(Value value) const {
    return facts_.entry.instruction(value).opcode == Opcode::kParameter;
  }

  // Not inside a fusion, nor written into the buffer of the state it replaces.
  bool TakesMemory(Value value) const {
    return IsParameter(value) ||
           (facts_.IsMaterialised(value) && facts_.state_parameters[value.instruction].empty());
  }

  // By choice of the node, the local bytes of a sharding or none.
  void AddBytes(NodeId node, Value value, const Port& port, TimeInterval interval) {
    std::vector<int64_t> bytes;
    for (const ShardingId id : port) {
      bytes.push_back(id == kNoBytes ? 0 : LocalBytes(shape(value), tables_.shardings[id], mesh_));
    }
    out_.problem.AddUsage(node, interval, out_.problem.AddUsageRow(bytes));
  }

  struct EdgeTable {
    TableId table = -1;
    int32_t reshards = -1;
  };

  const StepFacts& facts_;
  ChoiceTables& tables_;
  PortTable& ports_;
  ReshardCosts& reshards_;
  const Mesh& mesh_;
  const CostModel& cost_;
  const IntraOpOptions& options_;
  OpCosts op_costs_;
  Formulation out_;
  std::map<std::vector<PortId>, PortId> kept_ports_;
  ReshardUse use_;          // of the reshards being added
  bool is_filled_ = false;  // of their value
  int64_t runs_ = 1;        // per step, of the same
  std::map<std::tuple<PortId, std::vector<PortId>, ReshardUse, bool, int64_t, ElementType,
                      std::vector<int64_t>>,
           EdgeTable>
      edge_tables_;
};

std::vector<InstructionId> LastRuns(const Computation& entry, const UseTable& uses,
                                    const FusionPartition& fusions) {
  std::vector<InstructionId> last(entry.num_instructions());
  for (InstructionId id = entry.num_instructions(); id-- > 0;) {
    last[id] = id;
    if (entry.instructions[id].results.size() > 1 || fusions.IsMaterialised(uses, {id, 0}))
      continue;
    for (const Use& use : uses.uses({id, 0})) last[id] = std::max(last[id], last[use.user]);
  }
  return last;
}

std::vector<bool> FindActivations(const Step& step, const std::vector<Phase>& phases) {
  const Computation& entry = step.module.entry_computation();
  std::vector<bool> found(entry.num_instructions());
  for (InstructionId id = 0; id < entry.num_instructions(); ++id) {
    const Instruction& instruction = entry.instructions[id];
    if (instruction.opcode == Opcode::kParameter) {
      const auto number = static_cast<size_t>(instruction.As<ParameterAttributes>().number);
      found[id] = step.parameters[number].role == ParameterRole::kBatch;
    }
    for (const Value operand : instruction.operands) {
      found[id] = found[id] || found[operand.instruction];
    }
    found[id] = found[id] && phases[id] != Phase::kApply;
  }
  for (const Accumulator& accumulator : FindMicroLoop(step.module).accumulators) {
    found[accumulator.id] = false;
  }
  return found;
}

// Does the operation only arrange what it reads, or reduce over dimensions of size 1?
bool IsArranging(const Computation& entry, InstructionId id) {
  const Instruction& instruction = entry.instructions[id];
  switch (instruction.opcode) {
    case Opcode::kTranspose:
    case Opcode::kReshape:
    case Opcode::kConvert:
    case Opcode::kCopy:
      return true;
    case Opcode::kReduce:
      return instruction.results.size() == 1 &&
             instruction.shape().num_elements() ==
                 entry.shape(instruction.operands[0]).num_elements();
    default:
      return false;
  }
}

// Apply operations, and those that only arrange gradients on their way there.
std::vector<bool> LeadToApplyOnly(const Computation& entry, const UseTable& uses,
                                  const std::vector<Phase>& phases) {
  std::vector<bool> leads(entry.num_instructions());
  for (InstructionId id = entry.num_instructions() - 1; id >= 0; --id) {
    const Value value = {id, 0};
    const std::span<const Use> readers = uses.uses(value);
    leads[id] = phases[id] == Phase::kApply ||
                (IsArranging(entry, id) && !readers.empty() && !uses.is_result(value) &&
                 std::ranges::all_of(readers, [&](const Use& use) { return leads[use.user]; }));
  }
  return leads;
}

std::vector<Phase> PhasesOf(const Step& step) {
  MINKA_CHECK(step.num_layers.has_value(), "a step without its structure");
  std::vector<Phase> phases;
  for (const Instruction& instruction : step.module.entry_computation().instructions) {
    phases.push_back(instruction.part.phase);
  }
  return phases;
}

InstructionId FirstBackward(const Computation& entry, const std::vector<Phase>& phases,
                            const MicroLoop& loop, const std::vector<bool>& is_activation) {
  const auto works_backwards = [&](InstructionId id) {
    return phases[id] == Phase::kBackward && is_activation[id] &&
           entry.instructions[id].opcode != Opcode::kParameter &&
           (!loop.exists() || loop.IsInside(id));
  };
  InstructionId first = 0;
  while (first < entry.num_instructions() && !works_backwards(first)) ++first;
  return first;
}

}  // namespace

StepFacts::StepFacts(const Step& step_in, Platform platform)
    : step(step_in),
      platform(platform),
      entry(step_in.module.entry_computation()),
      uses(entry),
      phases(PhasesOf(step_in)),
      fusions(PartitionIntoFusions(entry, {.platform = platform, .keeps_programs = true})),
      last_runs(LastRuns(entry, uses, fusions)),
      state_parameters(entry.num_instructions()),
      loop(FindMicroLoop(step_in.module)),
      is_activation(FindActivations(step_in, phases)),
      turning_point(FirstBackward(entry, phases, loop, is_activation)),
      leads_to_apply_only(LeadToApplyOnly(entry, uses, phases)) {
  for (size_t parameter = 0; parameter < step.parameters.size(); ++parameter) {
    const int result = step.parameters[parameter].state_result;
    if (result < 0) continue;
    const Value value = entry.results[result];
    // A parameter handed through keeps its sharding by itself when it is its own new value.
    if (value.instruction == entry.parameters[parameter]) continue;
    if (value.result == 0)
      state_parameters[value.instruction].push_back(static_cast<int>(parameter));
  }
}

TensorClass StepFacts::ClassOf(Value value) const {
  if (!is_activation[value.instruction]) return TensorClass::kState;
  const std::span<const Use> readers = uses.uses(value);
  const bool is_gradient = !readers.empty() && std::ranges::all_of(readers, [this](const Use& use) {
    return leads_to_apply_only[use.user];
  });
  return is_gradient ? TensorClass::kGradient : TensorClass::kActivation;
}

int StepFacts::NumEnteringApply() const {
  int count = 0;
  for (InstructionId id = 0; id < entry.num_instructions(); ++id) {
    const Opcode opcode = entry.instructions[id].opcode;
    if (leads_to_apply_only[id] || opcode == Opcode::kParameter || opcode == Opcode::kConstant) {
      continue;
    }
    for (int result = 0; result < static_cast<int>(entry.instructions[id].results.size());
         ++result) {
      count += !uses.uses({id, result}).empty() && IsReadLate({id, result});
    }
  }
  return std::max(count, 1);
}

bool StepFacts::IsReadLate(Value value) const {
  return std::ranges::all_of(uses.uses(value),
                             [this](const Use& use) { return leads_to_apply_only[use.user]; });
}

bool StepFacts::IsMaterialised(Value value) const { return fusions.IsMaterialised(uses, value); }

InstructionId StepFacts::FirstTime(Value value) const {
  return loop.LeavesLoop(value.instruction) ? loop.begin : value.instruction;
}

InstructionId StepFacts::LastUse(Value value) const {
  if (uses.is_result(value)) return entry.num_instructions();
  InstructionId last = value.instruction;
  for (const Use& use : uses.uses(value)) {
    last = std::max(last, last_runs[use.user]);
    const bool is_carried = loop.IsInside(use.user) && !loop.IsTransient(value.instruction);
    if (is_carried) last = std::max(last, loop.end - 1);
  }
  return last;
}

std::vector<User> UsersOf(const StepFacts& facts, Value value) {
  const std::span<const Use> readers = facts.uses.uses(value);
  std::vector<Use> uses(readers.begin(), readers.end());
  std::ranges::sort(uses);
  std::vector<User> users;
  for (const Use& use : uses) {
    if (users.empty() || users.back().instruction != use.user)
      users.push_back({.instruction = use.user});
    users.back().operands.push_back(use.operand);
  }
  if (value.result == 0) {
    for (int parameter : facts.state_parameters[value.instruction]) {
      users.push_back({.state_parameter = parameter});
    }
  }
  return users;
}

Formulation Formulate(const StepFacts& facts, ChoiceTables& tables, ReshardCosts& reshards,
                      const Mesh& mesh, const CostModel& cost, const IntraOpOptions& options) {
  return Formulator(facts, tables, reshards, mesh, cost, options).Run();
}

namespace {

// Of what is there at these times, how many are there at once while micro-batches are computed,
// temporaries left out.
double CopiesHeld(const StepFacts& facts, TimeInterval time, double in_flight) {
  const MicroLoop& loop = facts.loop;
  const int64_t num_instructions = facts.entry.num_instructions();
  const bool is_static = loop.exists() ? time.begin <= loop.begin && time.end >= loop.end
                                       : time.begin == 0 && time.end > num_instructions;
  if (is_static) return 1;
  const int64_t last = std::min(time.end, num_instructions) - 1;
  if (last < time.begin) return 0;
  const bool is_kept =
      facts.phases[time.begin] == Phase::kForward && facts.phases[last] == Phase::kBackward;
  return is_kept ? in_flight : 0;
}

}  // namespace

ChargedProblem ChargeMemory(const StepFacts& facts, const Formulation& formulation,
                            const MemoryPrice& price) {
  const SolverProblem& problem = formulation.problem;
  ChargedProblem charged{.problem = problem};
  if (price.us_per_byte <= 0) return charged;
  std::vector<int64_t> costs;
  for (size_t usage = 0; usage < problem.usages().size(); ++usage) {
    const NodeUsage& used = problem.usages()[usage];
    const double us_per_byte =
        price.us_per_byte * CopiesHeld(facts, used.interval, price.in_flight);
    charged.us_per_byte.push_back(us_per_byte);
    if (us_per_byte == 0) continue;
    costs.clear();
    for (const int64_t bytes : problem.usage_row(used.row))
      costs.push_back(ToUnits(us_per_byte * static_cast<double>(bytes), formulation));
    charged.problem.AddCosts(problem.usage_node(usage), costs);
  }
  return charged;
}

double ChargedProblem::HeldCost(std::span<const int32_t> choice) const {
  double cost = 0;
  for (size_t usage = 0; usage < us_per_byte.size(); ++usage) {
    const int64_t bytes =
        problem.usage_row(problem.usages()[usage].row)[choice[problem.usage_node(usage)]];
    cost += us_per_byte[usage] * static_cast<double>(bytes);
  }
  return cost;
}

namespace {

// Of one edge.
ReshardTimes TimesOf(const EdgeReshards& edge, const ChoiceTables& tables, ReshardCosts& reshards,
                     int32_t from, int32_t to) {
  const ShardingId source = tables.ports[edge.from][from];
  std::set<ShardingId> wanted;
  for (const PortId port : edge.to) wanted.insert(tables.ports[port][to]);
  wanted.erase(source);
  const auto runs = static_cast<double>(edge.runs);
  ReshardTimes times;
  for (const ShardingId target : wanted) {
    const double time = reshards.SearchCost(edge.shape, tables.shardings[source],
                                            tables.shardings[target], edge.use);
    times.time += runs * time;
    if (!reshards.limits().put_penalties()) continue;
    times.penalties += runs * (reshards.Cost(edge.shape, source, target, edge.use) - time);
  }
  return times;
}

}  // namespace

ReshardTimes ReshardTimesOf(const Formulation& formulation, const ChoiceTables& tables,
                            ReshardCosts& reshards, std::span<const int32_t> choice) {
  ReshardTimes total;
  // Equal layers ask for the same.
  std::map<std::tuple<int32_t, int32_t, int32_t>, ReshardTimes> known;
  for (size_t i = 0; i < formulation.problem.edges().size(); ++i) {
    const ProblemEdge& edge = formulation.problem.edges()[i];
    const int32_t from = choice[edge.a], to = choice[edge.b];
    const int32_t asked = formulation.reshards_of_edge[i];
    const auto [found, added] = known.try_emplace({asked, from, to});
    if (added) {
      found->second = TimesOf(formulation.reshards[asked], tables, reshards, from, to);
    }
    total.time += found->second.time;
    total.penalties += found->second.penalties;
  }
  total.penalties = std::max(0.0, total.penalties);
  return total;
}

}  // namespace minka
