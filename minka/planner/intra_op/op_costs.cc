#include "minka/planner/intra_op/op_costs.h"

#include <algorithm>

#include "fmt/format.h"
#include "minka/analysis/flops.h"
#include "minka/planner/intra_op/formulation.h"

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

}  // namespace

const std::vector<double>& OpCosts::Costs(InstructionId id) {
  const Instruction& instruction = facts_.entry.instructions[id];
  const int32_t number = tables_.of_instruction[id];
  std::string key = fmt::format("{} {}", number, static_cast<int>(facts_.leads_group[id]));
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
  const InstructionWork work = WorkOf(facts_.step.module, facts_.entry, id);
  const auto parts = static_cast<double>(NumWorkParts(strategy, mesh_));
  LocalWork local = {
      .opcode = instruction.opcode,
      .type = instruction.results.empty() ? ElementType::kF32 : instruction.shape().type,
      .flops = work.flops / parts,
      .elementwise = work.elementwise / parts,
      .bytes = OutsideBytes(id, choices, choice),
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
        work.flops / parts);
  }
  double cost = cost_.Operation(local);
  if (const AxisSet axes = CombineAxes(choices.rule, strategy); !axes.empty()) {
    for (size_t result = 0; result < instruction.results.size(); ++result) {
      const Shape& shape = instruction.results[result];
      const Sharding sharding = ResultSharding(choices.rule, strategy, static_cast<int>(result));
      cost += cost_.Collective(ReshardKind::kAllReduce, LocalBytes(shape, sharding, mesh_), axes,
                               shape.type);
    }
  }
  return cost;
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
