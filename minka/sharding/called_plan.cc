#include "minka/sharding/called_plan.h"

#include <algorithm>
#include <map>
#include <utility>

namespace minka {
namespace {

using Kind = AxisUse::Kind;

double PriceOf(const CalledPrices& prices, ReshardKind kind, int64_t bytes) {
  if (!IsCollective(kind)) return 1e-3 * static_cast<double>(bytes);
  const double moved = kind == ReshardKind::kAllReduce ? 2 : 1;
  return prices.per_collective + prices.per_byte * moved * static_cast<double>(bytes);
}

// Where a value is along one mesh axis.
constexpr int kWhole = -1;
constexpr int kOwed = -2;  // partial; else the split dimension

int PlaceOf(const Sharding& sharding, int axis) {
  if (sharding.partial.contains(axis)) return kOwed;
  for (size_t dim = 0; dim < sharding.dims.size(); ++dim) {
    if (sharding.dims[dim].axes().contains(axis)) return static_cast<int>(dim);
  }
  return kWhole;
}

// About what the reshard will cost; bytes are those of the whole tensor.
double TransitionPrice(const CalledPrices& prices, int from, int to, double bytes) {
  if (from == to) return 0;
  if (from == kWhole) return 1e-3 * bytes;
  const double moved = from == kOwed && to == kWhole ? 2 : from != kOwed && to >= 0 ? 0.5 : 1;
  return prices.per_collective + prices.per_byte * moved * bytes;
}

bool IsIn(const std::vector<int>& list, int item) {
  return std::find(list.begin(), list.end(), item) != list.end();
}

class Planner {
 public:
  Planner(std::span<const OpRule> rules, const Computation& computation, const Mesh& mesh,
          const CalledPrices& prices)
      : rules_(rules),
        computation_(computation),
        mesh_(mesh),
        prices_(prices),
        uses_(computation) {}

  CalledPlan Run(std::span<const Sharding> parameters,
                 std::optional<std::span<const Sharding>> results) && {
    FindWelcome(results);
    plan_.parameters.assign(parameters.begin(), parameters.end());
    for (InstructionId id = 0; id < computation_.num_instructions(); ++id) {
      if (computation_.instructions[id].opcode == Opcode::kParameter) {
        const int64_t number = computation_.instructions[id].As<ParameterAttributes>().number;
        plan_.operations.push_back({.strategy = {std::vector<AxisUse>(mesh_.num_axes())}});
        made_.push_back({parameters[number]});
      } else {
        Plan(id);
      }
    }
    for (size_t i = 0; i < computation_.results.size(); ++i) {
      const Value value = computation_.results[i];
      plan_.result_versions.push_back(results ? Version(value, (*results)[i]) : 0);
    }
    MakeSlicesWhereTheyAreRead();
    DropUnread();
    return std::move(plan_);
  }

 private:
  const Sharding& Made(Value value) const { return made_[value.instruction][value.result]; }

  // welcome_[axis][instruction][result]: a sum owed over the axis may stay owed up to results that
  // are wanted so.
  void FindWelcome(std::optional<std::span<const Sharding>> results) {
    for (int axis = 0; axis < mesh_.num_axes(); ++axis) {
      auto& welcome = welcome_.emplace_back(computation_.instructions.size());
      for (InstructionId id = 0; id < computation_.num_instructions(); ++id) {
        welcome[id].resize(computation_.instructions[id].results.size());
      }
      if (!results) continue;
      for (InstructionId id = computation_.num_instructions(); id-- > 0;) {
        for (size_t result = 0; result < welcome[id].size(); ++result) {
          welcome[id][result] =
              IsWelcome({id, static_cast<int32_t>(result)}, *results, axis, welcome);
        }
      }
    }
  }

  bool IsWelcome(Value value, std::span<const Sharding> results, int axis,
                 const std::vector<std::vector<bool>>& welcome) const {
    for (size_t i = 0; i < computation_.results.size(); ++i) {
      if (computation_.results[i] == value && !results[i].partial.contains(axis)) return false;
    }
    for (const Use& use : uses_.uses(value)) {
      const OpRule& rule = rules_[use.user];
      const bool linear = std::ranges::any_of(
          rule.linear_groups, [&](const auto& group) { return IsIn(group, use.operand); });
      const int result = rule.num_lanes > 1 ? use.operand : 0;
      if (!linear || !welcome[use.user][result]) return false;
    }
    return true;
  }

  void Plan(InstructionId id) {
    const Instruction& instruction = computation_.instructions[id];
    const OpRule& rule = rules_[id];
    const int num_results = static_cast<int>(instruction.results.size());
    Strategy strategy{std::vector<AxisUse>(mesh_.num_axes() * rule.num_lanes)};
    if (rule.num_lanes == 1) {
      std::vector<int64_t> parts(rule.factors.size(), 1);
      for (int axis = 0; axis < mesh_.num_axes(); ++axis) {
        if (mesh_.size(axis) > 1) strategy.axes[axis] = Choose(id, axis, parts);
      }
    } else {
      for (int lane = 0; lane < rule.num_lanes; ++lane) {
        for (int axis = 0; axis < mesh_.num_axes(); ++axis) {
          strategy.axes[lane * mesh_.num_axes() + axis] = Kept(instruction.operands[lane], axis);
        }
      }
    }
    std::vector<Sharding>& made = made_.emplace_back();
    for (int result = 0; result < num_results; ++result) {
      made.push_back(ResultSharding(rule, strategy, result));
    }
    std::vector<int> versions;
    for (size_t i = 0; i < instruction.operands.size(); ++i) {
      versions.push_back(
          Version(instruction.operands[i], OperandSharding(rule, strategy, static_cast<int>(i))));
    }
    plan_.operations.push_back(
        {.strategy = std::move(strategy), .operand_versions = std::move(versions)});
  }

  // A lane of a barrier leaves its value as it comes.
  AxisUse Kept(Value value, int axis) const {
    const int place = PlaceOf(Made(value), axis);
    if (place == kWhole) return {};
    return place == kOwed ? AxisUse{Kind::kLinear, 0} : AxisUse{Kind::kFactor, place};
  }

  AxisUse Choose(InstructionId id, int axis, std::vector<int64_t>& parts) {
    const OpRule& rule = rules_[id];
    AxisUse best;
    double least = Price(id, axis, best);
    for (int factor = 0; factor < static_cast<int>(rule.factors.size()); ++factor) {
      const int64_t size = rule.factors[factor].size;
      if (size == 0 || size % (parts[factor] * mesh_.size(axis)) != 0) continue;
      if (!IsSplitAlready(id, axis, factor)) continue;
      const AxisUse use{Kind::kFactor, factor};
      if (const double price = Price(id, axis, use); price < least) {
        least = price;
        best = use;
      }
    }
    for (int group = 0; group < static_cast<int>(rule.linear_groups.size()); ++group) {
      if (!IsOwedAlready(id, axis, rule.linear_groups[group])) continue;
      const AxisUse use{Kind::kLinear, group};
      if (const double price = Price(id, axis, use); price < least) {
        least = price;
        best = use;
      }
    }
    if (best.kind == Kind::kFactor) parts[best.index] *= mesh_.size(axis);
    return best;
  }

  // Work is divided where values come split, never by splitting whole ones.
  bool IsSplitAlready(InstructionId id, int axis, int factor) const {
    const std::vector<Value>& operands = computation_.instructions[id].operands;
    for (size_t i = 0; i < operands.size(); ++i) {
      const int place = PlaceOf(Made(operands[i]), axis);
      if (place >= 0 && rules_[id].operand_dims[i][place] == factor) return true;
      if (place == kOwed && IsIn(rules_[id].factors[factor].partial_operands, static_cast<int>(i)))
        return true;
    }
    return false;
  }

  bool IsOwedAlready(InstructionId id, int axis, const std::vector<int>& group) const {
    return std::ranges::any_of(group, [&](int operand) {
      return PlaceOf(Made(computation_.instructions[id].operands[operand]), axis) == kOwed;
    });
  }

  double Price(InstructionId id, int axis, AxisUse use) const {
    const Instruction& instruction = computation_.instructions[id];
    const OpRule& rule = rules_[id];
    Strategy strategy{std::vector<AxisUse>(mesh_.num_axes())};
    strategy.axes[axis] = use;
    double price = RoughWork(computation_, id);
    if (use.kind == Kind::kFactor) price /= static_cast<double>(mesh_.size(axis));
    for (size_t i = 0; i < instruction.operands.size(); ++i) {
      const Value operand = instruction.operands[i];
      const Sharding wanted = OperandSharding(rule, strategy, static_cast<int>(i));
      price += TransitionPrice(prices_, PlaceOf(Made(operand), axis), PlaceOf(wanted, axis),
                               static_cast<double>(computation_.shape(operand).num_bytes()));
    }
    for (int32_t i = 0; i < static_cast<int32_t>(instruction.results.size()); ++i) {
      const auto bytes = static_cast<double>(instruction.results[i].num_bytes());
      const bool owed = ResultSharding(rule, strategy, i).partial.contains(axis);
      if (owed && !welcome_[axis][id][i]) price += TransitionPrice(prices_, kOwed, kWhole, bytes);
      if (!CombineAxes(rule, strategy).empty())
        price += TransitionPrice(prices_, kOwed, kWhole, bytes);
    }
    return price;
  }

  int Version(Value value, const Sharding& wanted) {
    if (Made(value) == wanted) return 0;
    const auto [found, added] =
        versions_.try_emplace({value, wanted}, static_cast<int>(plan_.reshards.size()) + 1);
    if (added) {
      const auto price = [&](const StepWork& work) {
        return PriceOf(prices_, work.kind, work.local_bytes);
      };
      plan_.reshards.push_back(
          {value, Made(value), wanted,
           CheapestReshard(computation_.shape(value), Made(value), wanted, mesh_, price).steps});
    }
    return found->second;
  }

  // What costs nothing to divide, and is read in slices alone, is made in slices: broadcasts of
  // biases and masks come whole, as nothing tells their reader's place when they are planned.
  void MakeSlicesWhereTheyAreRead() {
    for (InstructionId id = computation_.num_instructions(); id-- > 0;) {
      const Opcode opcode = computation_.instructions[id].opcode;
      if (opcode != Opcode::kBroadcast && opcode != Opcode::kIota && opcode != Opcode::kReshape) {
        continue;
      }
      const int read = OnlyVersionRead(id);
      if (read == 0) continue;
      const CalledReshard& reshard = plan_.reshards[read - 1];
      const bool slices = std::ranges::all_of(
          reshard.steps, [](const ReshardStep& step) { return step.kind == ReshardKind::kSlice; });
      if (!slices) continue;
      if (const auto strategy = StrategyThatMakes(id, reshard.to)) {
        MakeBy(id, *strategy);
      }
    }
  }

  // The version that all readers of the instruction's only result read; 0: they differ, or some
  // read what was made.
  int OnlyVersionRead(InstructionId id) const {
    if (uses_.is_result({id, 0}) || uses_.uses({id, 0}).empty()) return 0;
    int only = 0;
    for (const Use& use : uses_.uses({id, 0})) {
      const int read = plan_.operations[use.user].operand_versions[use.operand];
      if (read == 0 || (only > 0 && read != only)) return 0;
      only = read;
    }
    return only;
  }

  std::optional<Strategy> StrategyThatMakes(InstructionId id, const Sharding& wanted) const {
    const OpRule& rule = rules_[id];
    Strategy strategy{std::vector<AxisUse>(mesh_.num_axes())};
    std::vector<int64_t> parts(rule.factors.size(), 1);
    for (int axis = 0; axis < mesh_.num_axes(); ++axis) {
      const int dim = PlaceOf(wanted, axis);
      if (dim == kWhole) continue;
      if (dim == kOwed || rule.result_dims[0][dim] == kWholeDim) return std::nullopt;
      const int factor = rule.result_dims[0][dim];
      parts[factor] *= mesh_.size(axis);
      if (rule.factors[factor].size % parts[factor] != 0) return std::nullopt;
      strategy.axes[axis] = {Kind::kFactor, factor};
    }
    if (ResultSharding(rule, strategy, 0) != wanted) return std::nullopt;
    return strategy;
  }

  void MakeBy(InstructionId id, const Strategy& strategy) {
    const Instruction& instruction = computation_.instructions[id];
    plan_.operations[id].strategy = strategy;
    made_[id][0] = ResultSharding(rules_[id], strategy, 0);
    for (size_t i = 0; i < instruction.operands.size(); ++i) {
      plan_.operations[id].operand_versions[i] = Version(
          instruction.operands[i], OperandSharding(rules_[id], strategy, static_cast<int>(i)));
    }
    for (const Use& use : uses_.uses({id, 0})) {
      plan_.operations[use.user].operand_versions[use.operand] = 0;
    }
  }

  void DropUnread() {
    std::vector<int> new_version(plan_.reshards.size() + 1, 0);
    std::vector<CalledReshard> kept;
    const auto renumber = [&](int& version) {
      if (version == 0) return;
      if (new_version[version] == 0) {
        kept.push_back(std::move(plan_.reshards[version - 1]));
        new_version[version] = static_cast<int>(kept.size());
      }
      version = new_version[version];
    };
    for (CalledPlan::Operation& operation : plan_.operations) {
      for (int& version : operation.operand_versions) renumber(version);
    }
    for (int& version : plan_.result_versions) renumber(version);
    plan_.reshards = std::move(kept);
  }

  const std::span<const OpRule> rules_;
  const Computation& computation_;
  const Mesh& mesh_;
  const CalledPrices prices_;
  const UseTable uses_;
  CalledPlan plan_;
  std::vector<std::vector<Sharding>> made_;  // [instruction][result]: version 0
  std::vector<std::vector<std::vector<bool>>> welcome_;
  std::map<std::pair<Value, Sharding>, int> versions_;
};

AxisSet LargeAxes(const Mesh& mesh) {
  AxisSet axes;
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    if (mesh.size(axis) > 1) axes.Insert(axis);
  }
  return axes;
}

bool GathersParts(const OpRule& rule, const Strategy& strategy) {
  return std::ranges::any_of(strategy.axes, [&](const AxisUse& use) {
    return use.kind == Kind::kFactor &&
           rule.factors[use.index].local_form == LocalForm::kGatherAndReduce;
  });
}

void AppendOwnCollectives(const Instruction& instruction, const OpRule& rule,
                          const Strategy& strategy, const Mesh& mesh,
                          std::vector<OperationCollective>& collectives) {
  const bool is_rng = instruction.opcode == Opcode::kRng;
  const AxisSet axes = is_rng ? LargeAxes(mesh) : CombineAxes(rule, strategy);
  if (axes.empty()) return;
  const bool gathers = GathersParts(rule, strategy);
  for (int result = 0; result < static_cast<int>(instruction.results.size()); ++result) {
    const Shape& shape = instruction.results[result];
    const int64_t local = LocalBytes(shape, ResultSharding(rule, strategy, result), mesh);
    collectives.push_back(
        {.work = {.kind = gathers ? ReshardKind::kAllGather : ReshardKind::kAllReduce,
                  .local_bytes =
                      is_rng ? shape.num_bytes() : local * (gathers ? mesh.size(axes) : 1),
                  .axes = axes},
         .type = shape.type});
  }
}

std::vector<OperationCollective> CollectivesInside(const Module& module,
                                                   const Computation& computation,
                                                   const CalledPlan& plan, const Mesh& mesh,
                                                   const Trips& trips) {
  std::vector<OperationCollective> collectives;
  for (const CalledReshard& reshard : plan.reshards) {
    const Shape& shape = computation.shape(reshard.value);
    const Sharding* before = &reshard.from;
    for (const ReshardStep& step : reshard.steps) {
      if (IsCollective(step.kind)) {
        collectives.push_back({WorkOfStep(shape, *before, step, mesh), shape.type});
      }
      before = &step.result;
    }
  }
  const std::vector<OpRule> rules = RulesOf(module, computation);
  for (InstructionId id = 0; id < computation.num_instructions(); ++id) {
    const CalledPlan::Operation& operation = plan.operations[id];
    const auto own = CollectivesOf(module, computation, id, rules[id], operation.strategy,
                                   operation.called, mesh, trips);
    collectives.insert(collectives.end(), own.begin(), own.end());
  }
  return collectives;
}

}  // namespace

double RoughWork(const Computation& computation, InstructionId id) {
  const Instruction& instruction = computation.instructions[id];
  const auto operand_elements = [&](size_t operand) {
    return static_cast<double>(computation.shape(instruction.operands[operand]).num_elements());
  };
  double elements = 0;
  for (const Shape& result : instruction.results) {
    elements = std::max(elements, static_cast<double>(result.num_elements()));
  }
  switch (instruction.opcode) {
    case Opcode::kParameter:
    case Opcode::kConstant:
      return 0;
    case Opcode::kDynamicUpdateSlice:
      return operand_elements(1);
    case Opcode::kReduce:
      return operand_elements(0);
    case Opcode::kDot:
      for (const int64_t dim : instruction.As<DotAttributes>().lhs_contracting) {
        elements *= static_cast<double>(computation.shape(instruction.operands[0]).dims[dim]);
      }
      return 2 * elements;
    default:
      return elements;
  }
}

std::vector<OpRule> RulesOf(const Module& module, const Computation& computation) {
  std::vector<OpRule> rules;
  for (InstructionId id = 0; id < computation.num_instructions(); ++id) {
    rules.push_back(RuleFor(module, computation, id));
  }
  return rules;
}

Sharding VersionSharding(const Computation& computation, std::span<const OpRule> rules,
                         const CalledPlan& plan, Value value, int version) {
  if (version > 0) return plan.reshards[version - 1].to;
  const Instruction& producer = computation.instruction(value);
  if (producer.opcode == Opcode::kParameter) {
    return plan.parameters[producer.As<ParameterAttributes>().number];
  }
  return ResultSharding(rules[value.instruction], plan.operations[value.instruction].strategy,
                        value.result);
}

CalledPlan PlanCalled(std::span<const OpRule> rules, const Computation& computation,
                      std::span<const Sharding> parameters,
                      std::optional<std::span<const Sharding>> results, const Mesh& mesh,
                      const CalledPrices& prices) {
  return Planner(rules, computation, mesh, prices).Run(parameters, results);
}

CalledShardings ShardingsOfCalled(const Module& module, const Computation& computation,
                                  InstructionId id, const OpRule& rule, const Strategy& strategy,
                                  size_t index) {
  const Instruction& instruction = computation.instructions[id];
  const Computation& called = module.computations[instruction.called[index]];
  size_t first = 0;
  if (instruction.opcode == Opcode::kConditional) {
    first = 1;
    for (size_t branch = 0; branch < index; ++branch) {
      first += module.computations[instruction.called[branch]].parameters.size();
    }
  }
  CalledShardings shardings;
  for (size_t i = 0; i < called.parameters.size(); ++i) {
    shardings.parameters.push_back(OperandSharding(rule, strategy, static_cast<int>(first + i)));
  }
  const bool is_condition = instruction.opcode == Opcode::kWhile && index == 1;
  for (size_t i = 0; i < called.results.size(); ++i) {
    shardings.results.push_back(is_condition ? Sharding::Replicated(0)
                                             : ResultSharding(rule, strategy, static_cast<int>(i)));
  }
  return shardings;
}

bool IsControlFlow(Opcode opcode) {
  return opcode == Opcode::kWhile || opcode == Opcode::kConditional;
}

std::vector<CalledPlan> PlanCalledBy(const Module& module, const Computation& computation,
                                     InstructionId id, const OpRule& rule, const Strategy& strategy,
                                     const Mesh& mesh, const CalledPrices& prices) {
  std::vector<CalledPlan> plans;
  const Instruction& instruction = computation.instructions[id];
  if (!IsControlFlow(instruction.opcode)) return plans;
  for (size_t index = 0; index < instruction.called.size(); ++index) {
    const Computation& called = module.computations[instruction.called[index]];
    const CalledShardings shardings =
        ShardingsOfCalled(module, computation, id, rule, strategy, index);
    const std::vector<OpRule> rules = RulesOf(module, called);
    CalledPlan& plan = plans.emplace_back(
        PlanCalled(rules, called, shardings.parameters, shardings.results, mesh, prices));
    for (InstructionId inner = 0; inner < called.num_instructions(); ++inner) {
      CalledPlan::Operation& operation = plan.operations[inner];
      operation.called =
          PlanCalledBy(module, called, inner, rules[inner], operation.strategy, mesh, prices);
    }
  }
  return plans;
}

std::vector<OperationCollective> CollectivesOf(const Module& module, const Computation& computation,
                                               InstructionId id, const OpRule& rule,
                                               const Strategy& strategy,
                                               std::span<const CalledPlan> called, const Mesh& mesh,
                                               const Trips& trips) {
  const Instruction& instruction = computation.instructions[id];
  std::vector<OperationCollective> collectives;
  AppendOwnCollectives(instruction, rule, strategy, mesh, collectives);
  const double times = instruction.opcode == Opcode::kWhile ? trips(computation, id) : 1;
  for (size_t index = 0; index < called.size(); ++index) {
    const Computation& inside = module.computations[instruction.called[index]];
    for (OperationCollective& collective :
         CollectivesInside(module, inside, called[index], mesh, trips)) {
      collective.times *= times;
      collectives.push_back(collective);
    }
  }
  return collectives;
}

}  // namespace minka
