#include "minka/planner/intra_op/op_costs.h"

#include <algorithm>

#include "fmt/format.h"
#include "minka/analysis/flops.h"
#include "minka/analysis/trip_count.h"
#include "minka/planner/intra_op/formulation.h"
#include "minka/sharding/called_plan.h"

namespace minka {
namespace {

// Into how many equal parts a strategy divides the work of an operation.
int64_t NumWorkParts(const Strategy& strategy, const Mesh& mesh) {
  int64_t parts = 1;
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    if (strategy.axes[axis].kind == AxisUse::Kind::kFactor) parts *= mesh.size(axis);
  }
  return parts;
}

// {batch, m, n, k} of a dot on local shapes.
std::vector<int64_t> DotSizes(const DotAttributes& dot, const Shape& lhs, const Shape& rhs) {
  int64_t batch = 1, k = 1;
  for (int64_t dim : dot.lhs_batch) batch *= lhs.dims[dim];
  for (int64_t dim : dot.lhs_contracting) k *= lhs.dims[dim];
  const int64_t whole = std::max<int64_t>(batch * k, 1);  // empty operands: no work
  return {batch, lhs.num_elements() / whole, rhs.num_elements() / whole, k};
}

// The same of the matrix multiplication that a convolution on local shapes is: per group, positions
// times features, over as many inputs under the window as `flops` says.
std::vector<int64_t> ConvolutionSizes(const ConvolutionAttributes& convolution, const Shape& result,
                                      double flops) {
  const int64_t elements = std::max<int64_t>(result.num_elements(), 1);
  const int64_t features = std::max<int64_t>(result.dims[convolution.output_feature], 1);
  const int64_t groups =
      std::min(features, std::max(convolution.feature_group_count, convolution.batch_group_count));
  const auto inputs = static_cast<int64_t>(flops / 2 / static_cast<double>(elements));
  return {groups, elements / features, features / groups, std::max<int64_t>(inputs, 1)};
}

InstructionWork Scaled(InstructionWork work, double factor) {
  work.flops *= factor;
  work.elementwise *= factor;
  work.bytes = static_cast<int64_t>(static_cast<double>(work.bytes) * factor);
  return work;
}

double TripsOf(const Module& module, const Computation& computation, InstructionId loop) {
  return static_cast<double>(TripCount(module, computation, loop).value_or(1));
}

// What one device does of an operation; of control flow, operation by operation, because a factor
// does not divide all of them. Bytes are those that operations inside control flow move (outside,
// OutsideBytes knows more); elementwise ones read what others wrote.
InstructionWork LocalWorkOf(const Module& module, const Computation& computation, InstructionId id,
                            const OpRule& rule, const Strategy& strategy, const Mesh& mesh) {
  const Instruction& instruction = computation.instructions[id];
  const bool is_loop = instruction.opcode == Opcode::kWhile;
  if (!is_loop && instruction.opcode != Opcode::kConditional) {
    return Scaled(WorkOf(module, computation, id),
                  1 / static_cast<double>(NumWorkParts(strategy, mesh)));
  }
  InstructionWork most;
  for (size_t index = 0; index < (is_loop ? 1 : instruction.called.size()); ++index) {
    const Computation& called = module.computations[instruction.called[index]];
    const CalledPlan plan = PlanCalledBy(module, computation, id, rule, strategy, index, mesh);
    InstructionWork sum;
    for (InstructionId i = 0; i < called.num_instructions(); ++i) {
      InstructionWork work =
          LocalWorkOf(module, called, i, plan.rules[i], plan.strategies[i], mesh);
      if (IsElementwise(called.instructions[i].opcode)) work.bytes = 0;
      sum += work;
    }
    if (sum.flops + sum.elementwise >= most.flops + most.elementwise) most = sum;
  }
  return is_loop ? Scaled(most, TripsOf(module, computation, id)) : most;
}

}  // namespace

const std::vector<double>& OpCosts::Costs(InstructionId id) {
  const Instruction& instruction = facts_.entry.instructions[id];
  const int32_t number = tables_.of_instruction[id];
  std::string key = fmt::format(
      "{} {}", number, static_cast<int>(facts_.leads_group[id]) + 2 * facts_.loop.IsInside(id));
  for (const Value& operand : instruction.operands) {
    key += facts_.IsInside(operand, id) ? 'i' : 'o';
  }
  for (int result = 0; result < static_cast<int>(instruction.results.size()); ++result) {
    key += facts_.IsMaterialised({id, result}) ? 'm' : 'f';
  }
  const auto [found, added] = costs_.try_emplace(key);
  if (added) {
    const OpChoices& choices = tables_.op_choices[number];
    for (size_t choice = 0; choice < choices.strategies.size(); ++choice) {
      found->second.push_back(Cost(id, choices, choice));
    }
  }
  return found->second;
}

double OpCosts::Cost(InstructionId id, const OpChoices& choices, size_t choice) const {
  const Instruction& instruction = facts_.entry.instructions[id];
  const Strategy& strategy = choices.strategies[choice];
  const InstructionWork work =
      LocalWorkOf(facts_.step.module, facts_.entry, id, choices.rule, strategy, mesh_);
  const bool controls =
      instruction.opcode == Opcode::kWhile || instruction.opcode == Opcode::kConditional;
  LocalWork local = {
      .opcode = instruction.opcode,
      .type = instruction.results.empty() ? ElementType::kF32 : instruction.shape().type,
      .flops = work.flops,
      .elementwise = work.elementwise,
      .bytes = OutsideBytes(id, choices, choice) + (controls ? work.bytes : 0),
      .launches = facts_.leads_group[id]};
  if (instruction.opcode == Opcode::kDot) {
    const auto local_operand = [&](int operand) {
      return LocalShape(facts_.entry.shape(instruction.operands[operand]),
                        OperandSharding(choices.rule, strategy, operand), mesh_);
    };
    local.dot_sizes = DotSizes(instruction.As<DotAttributes>(), local_operand(0), local_operand(1));
  }
  if (instruction.opcode == Opcode::kConvolution) {
    local.dot_sizes = ConvolutionSizes(
        instruction.As<ConvolutionAttributes>(),
        LocalShape(instruction.shape(), ResultSharding(choices.rule, strategy, 0), mesh_),
        work.flops);
  }
  const auto runs = static_cast<double>(facts_.loop.RunsOf(id));
  double cost = cost_.Operation(local);
  const Trips trips = [this](const Computation& computation, InstructionId loop) {
    return TripsOf(facts_.step.module, computation, loop);
  };
  for (const OperationCollective& own :
       CollectivesOf(facts_.step.module, facts_.entry, id, choices.rule, strategy, mesh_, trips)) {
    cost += own.times * cost_.Collective(own.kind, own.bytes, own.axes, own.type);
  }
  return runs * cost;
}

int64_t OpCosts::OutsideBytes(InstructionId id, const OpChoices& choices, size_t choice) const {
  const Instruction& instruction = facts_.entry.instructions[id];
  if (instruction.opcode == Opcode::kParameter || instruction.opcode == Opcode::kConstant) return 0;
  int64_t bytes = 0;
  for (size_t operand = 0; operand < instruction.operands.size(); ++operand) {
    const Value value = instruction.operands[operand];
    if (facts_.IsInside(value, id)) continue;
    bytes += LocalBytes(
        facts_.entry.shape(value),
        OperandSharding(choices.rule, choices.strategies[choice], static_cast<int>(operand)),
        mesh_);
  }
  for (int result = 0; result < static_cast<int>(instruction.results.size()); ++result) {
    if (!facts_.IsMaterialised({id, result})) continue;
    bytes += LocalBytes(instruction.results[result],
                        ResultSharding(choices.rule, choices.strategies[choice], result), mesh_);
  }
  return bytes;
}

}  // namespace minka
