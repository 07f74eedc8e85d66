// Loops and branches on local shapes: their computations are written again, each operation as its
// strategy in the called plan says, with the reshards in between. Coordinates that only the caller
// knows (the number of a micro-batch) are further operands.
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "minka/lowering/local_operation.h"
#include "minka/lowering/reshard_steps.h"

namespace minka {
namespace {

// Writes one called computation, which takes the caller's `given` coordinates behind its parameters
// and, the body of a loop, leaves them behind its results.
class CalledWriter {
 public:
  CalledWriter(const Module& module, const Computation& computation, const CalledPlan& plan,
               ComputationBuilder builder, const DevicePosition& caller, bool is_body,
               CalledComputations& called)
      : module_(module),
        computation_(computation),
        plan_(plan),
        rules_(RulesOf(module, computation)),
        position_(builder, caller.mesh(), caller.departures()),
        given_(caller.given()),
        is_body_(is_body),
        called_(called),
        values_(computation.instructions.size()),
        versions_(plan.reshards.size()) {}

  void Write() && {
    for (size_t i = 0; i < computation_.parameters.size(); ++i) {
      const InstructionId id = computation_.parameters[i];
      const Instruction& parameter = computation_.instructions[id];
      const Shape local = LocalShape(parameter.shape(), plan_.parameters[i], position_.mesh());
      values_[id] = {position_.builder().Parameter(local, parameter.name)};
    }
    for (const auto& [axis, coordinate] : given_) {
      position_.SetCoordinate(axis,
                              position_.builder().Parameter({ElementType::kS32, {}}, "coordinate"));
    }
    for (InstructionId id = 0; id < computation_.num_instructions(); ++id) {
      const Instruction& instruction = computation_.instructions[id];
      if (instruction.opcode == Opcode::kParameter) continue;
      const CalledPlan::Operation& operation = plan_.operations[id];
      std::vector<Value> operands;
      for (size_t i = 0; i < instruction.operands.size(); ++i) {
        operands.push_back(Read(instruction.operands[i], operation.operand_versions[i]));
      }
      position_.builder().SetOpName(instruction.op_name);
      values_[id] = EmitLocalOperation(
          {module_, computation_, id, rules_[id], operation.strategy, operation.called},
          std::move(operands), position_, called_);
    }
    std::vector<Value> results;
    for (size_t i = 0; i < computation_.results.size(); ++i) {
      results.push_back(Read(computation_.results[i], plan_.result_versions[i]));
    }
    if (is_body_) {
      for (const auto& [axis, coordinate] : position_.given()) results.push_back(coordinate);
    }
    position_.builder().SetResults(std::move(results));
  }

 private:
  // Each version is written where it is first read.
  Value Read(Value value, int version) {
    const Value made = values_[value.instruction][value.result];
    if (version == 0) return made;
    Value& written = versions_[version - 1];
    if (written.instruction < 0) {
      written = made;
      for (const ReshardStep& step : plan_.reshards[version - 1].steps) {
        written = EmitStep(position_, written, step);
      }
    }
    return written;
  }

  const Module& module_;
  const Computation& computation_;
  const CalledPlan& plan_;
  const std::vector<OpRule> rules_;
  DevicePosition position_;
  const std::map<int, Value>& given_;
  const bool is_body_;
  CalledComputations& called_;
  std::vector<std::vector<Value>> values_;
  std::vector<Value> versions_;  // by reshard
};

// The caller's coordinates behind the operands of each called computation; body and condition of a
// loop have the same.
std::vector<Value> WithGiven(const SourceOperation& source, const std::vector<Value>& operands,
                             const DevicePosition& position) {
  const auto append_given = [&](std::vector<Value>& all) {
    for (const auto& [axis, coordinate] : position.given()) all.push_back(coordinate);
  };
  std::vector<Value> all;
  if (source.instruction().opcode == Opcode::kWhile) {
    all = operands;
    append_given(all);
    return all;
  }
  all.push_back(operands[0]);
  auto next = operands.begin() + 1;
  for (const ComputationId id : source.instruction().called) {
    const auto end = next + source.module.computations[id].parameters.size();
    all.insert(all.end(), next, end);
    append_given(all);
    next = end;
  }
  return all;
}

}  // namespace

std::vector<Value> EmitLocalControl(const SourceOperation& source,
                                    const std::vector<Value>& operands, DevicePosition& position,
                                    CalledComputations& called) {
  const Instruction& instruction = source.instruction();
  const bool is_loop = instruction.opcode == Opcode::kWhile;
  Instruction local = instruction;
  local.operands = WithGiven(source, operands, position);
  local.called.clear();
  for (size_t index = 0; index < instruction.called.size(); ++index) {
    const Computation& computation = source.module.computations[instruction.called[index]];
    const ComputationBuilder builder = called.target().AddComputation(computation.name);
    CalledWriter(source.module, computation, source.called[index], builder, position,
                 /*is_body=*/is_loop && index == 0, called)
        .Write();
    local.called.push_back(called.target().id(builder));
  }
  for (int i = 0; i < static_cast<int>(local.results.size()); ++i) {
    local.results[i] = LocalShape(local.results[i], ResultSharding(source.rule, source.strategy, i),
                                  position.mesh());
  }
  if (is_loop) local.results.resize(local.operands.size(), {ElementType::kS32, {}});
  const Value first = position.builder().Append(std::move(local));
  std::vector<Value> results;
  for (size_t i = 0; i < instruction.results.size(); ++i) {
    results.push_back({first.instruction, static_cast<int32_t>(i)});
  }
  return results;
}

}  // namespace minka
