// A while loop whose carried arrays are split: its body is written again on local shapes.
#include <string>
#include <utility>
#include <vector>

#include "minka/lowering/local_operation.h"

namespace minka {
namespace {

// Parts into which the strategy splits each factor.
std::vector<int64_t> PartsOfFactors(const SourceOperation& source, const Mesh& mesh) {
  std::vector<int64_t> parts(source.rule.factors.size(), 1);
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    const AxisUse& use = source.strategy.axes[axis];
    if (use.kind == AxisUse::Kind::kFactor) parts[use.index] *= mesh.size(axis);
  }
  return parts;
}

// What the writing of one called computation needs.
struct LocalBody {
  const Module& module;
  const Computation& computation;
  ComputationBuilder builder;
  CalledComputations& called;
  // [instruction][result]
  std::vector<std::vector<Shape>> local;

  void Write() {
    std::vector<Value> values(computation.instructions.size());
    for (const InstructionId id : computation.parameters) {
      values[id] = WriteInstruction(id, values);
    }
    for (InstructionId id = 0; id < computation.num_instructions(); ++id) {
      if (computation.instructions[id].opcode == Opcode::kParameter) continue;
      values[id] = WriteInstruction(id, values);
    }
    std::vector<Value> results;
    for (const Value result : computation.results) {
      results.push_back({values[result.instruction].instruction, result.result});
    }
    builder.SetResults(std::move(results));
  }

  Value WriteInstruction(InstructionId id, const std::vector<Value>& values) {
    const Instruction& source = computation.instructions[id];
    Instruction copy = source;
    std::vector<Shape> shapes, local_shapes;
    for (Value& operand : copy.operands) {
      shapes.push_back(computation.shape(operand));
      local_shapes.push_back(local[operand.instruction][operand.result]);
      operand = {values[operand.instruction].instruction, operand.result};
    }
    copy.results = local[id];
    copy.attributes = LocalAttributes(source, shapes, local_shapes, copy.results);
    if (auto* constant = std::get_if<ConstantAttributes>(&copy.attributes)) {
      if (constant->literal.shape != copy.results[0]) {
        constant->literal = {copy.results[0],
                             std::make_shared<const std::string>(constant->literal.bytes->substr(
                                 0, static_cast<size_t>(copy.results[0].num_bytes())))};
      }
    }
    for (ComputationId& computation_id : copy.called) {
      computation_id = called.Import(computation_id);
    }
    return builder.Append(std::move(copy));
  }
};

std::vector<std::vector<Shape>> BodyShapes(const SourceOperation& source, const Mesh& mesh) {
  const Computation& body = source.module.computations[source.instruction().called[0]];
  const std::vector<std::vector<std::vector<int>>> factors =
      WhileBodyDims(source.module, source.computation, source.id);
  const std::vector<int64_t> parts = PartsOfFactors(source, mesh);
  std::vector<std::vector<Shape>> shapes;
  for (size_t id = 0; id < body.instructions.size(); ++id) {
    shapes.push_back(body.instructions[id].results);
    for (size_t result = 0; result < shapes.back().size(); ++result) {
      Shape& shape = shapes.back()[result];
      for (size_t dim = 0; dim < shape.dims.size(); ++dim) {
        const int factor = factors[id][result][dim];
        if (factor != kWholeDim) shape.dims[dim] /= parts[factor];
      }
    }
  }
  return shapes;
}

// The condition reads whole values only; just its parameters' shapes follow the operands.
std::vector<std::vector<Shape>> ConditionShapes(const Computation& condition,
                                                const std::vector<Value>& operands,
                                                const ComputationBuilder& builder) {
  std::vector<std::vector<Shape>> shapes;
  for (const Instruction& instruction : condition.instructions) {
    shapes.push_back(instruction.results);
  }
  for (size_t i = 0; i < operands.size(); ++i) {
    shapes[condition.parameters[i]] = {builder.shape(operands[i])};
  }
  return shapes;
}

}  // namespace

std::vector<Value> EmitLocalWhile(const SourceOperation& source, std::vector<Value> operands,
                                  DevicePosition& position, CalledComputations& called) {
  const Instruction& instruction = source.instruction();
  if (source.strategy == Strategy{std::vector<AxisUse>(source.strategy.axes.size())}) {
    return AppendLocal(source, std::move(operands), position, called);
  }
  ModuleBuilder& target = called.target();
  const Computation& body = source.module.computations[instruction.called[0]];
  const Computation& condition = source.module.computations[instruction.called[1]];
  LocalBody local_body{source.module, body, target.AddComputation(body.name), called,
                       BodyShapes(source, position.mesh())};
  local_body.Write();
  LocalBody local_condition{source.module, condition, target.AddComputation(condition.name), called,
                            ConditionShapes(condition, operands, position.builder())};
  local_condition.Write();
  Instruction local = instruction;
  local.results.clear();
  for (const Value operand : operands) {
    local.results.push_back(position.builder().shape(operand));
  }
  local.operands = std::move(operands);
  local.called = {target.id(local_body.builder), target.id(local_condition.builder)};
  const Value first = position.builder().Append(std::move(local));
  std::vector<Value> results;
  for (size_t i = 0; i < instruction.results.size(); ++i) {
    results.push_back({first.instruction, static_cast<int32_t>(i)});
  }
  return results;
}

}  // namespace minka
