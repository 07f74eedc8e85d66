#include "minka/lowering/local_writer.h"

#include <utility>

#include "minka/lowering/reshard_steps.h"
#include "minka/plan/combine.h"

namespace minka {

Value LocalWriter::Read(const ValueVersion& made) {
  const auto found = values_.find(made);
  if (found != values_.end()) return found->second;
  const Value brought = bring_(made);
  return values_[made] = brought;
}

void LocalWriter::Write(int node) {
  if (!stage_.IsInstruction(node)) return WriteReshards(stage_.list(node));
  const std::vector<Value> results = Results(node);
  for (size_t i = 0; i < results.size(); ++i) {
    Set({{node, static_cast<int32_t>(i)}}, results[i]);
  }
}

std::vector<Value> LocalWriter::Results(InstructionId id, std::optional<Value> operand_0) {
  const OpPlan& op = stage_.plan().ops[id];
  std::vector<Value> operands;
  for (int i = 0; i < static_cast<int>(stage_.instruction(id).operands.size()); ++i) {
    operands.push_back(i == 0 && operand_0 ? *operand_0 : Read(stage_.Operand(id, i)));
  }
  builder().SetOpName(stage_.instruction(id).op_name);
  return EmitLocalOperation(
      {stage_.module(), stage_.entry(), id, stage_.rule(id), op.strategy, op.called},
      std::move(operands), position_, called_);
}

Value LocalWriter::WriteSteps(Value x, const Reshard& reshard, size_t begin, size_t end) {
  for (size_t i = begin; i < end; ++i) x = EmitStep(position_, x, reshard.steps[i]);
  return x;
}

Value LocalWriter::Source(int reshard) {
  const Value source = Read(stage_.SourceOf(reshard));
  if (!stage_.plan().reshards[reshard].isolated) return source;
  // A second barrier stands on the first: equal ones would be merged.
  const auto [last, is_new] = barriers_.try_emplace(source, source);
  const Value values[] = {last->second};
  return last->second = builder().OptBarrier(values)[0];
}

void LocalWriter::WriteReshards(const std::vector<int>& list) {
  const std::vector<Reshard>& reshards = stage_.plan().reshards;
  const auto set = [&](int i, Value made) { Set({reshards[i].value, i + 1}, made); };
  const Reshard& first = reshards[list[0]];
  builder().SetOpName(stage_.instruction(first.value.instruction).op_name);
  if (list.size() == 1) {
    return set(list[0], WriteSteps(Source(list[0]), first, 0, first.steps.size()));
  }
  std::vector<Value> values;
  std::vector<ReshardStep> steps;
  for (const int member : list) {
    const int step = *OnlyCollective(reshards[member]);
    values.push_back(WriteSteps(Source(member), reshards[member], 0, step));
    steps.push_back(reshards[member].steps[step]);
  }
  const std::vector<Value> results = EmitCombinedStep(position_, values, steps);
  for (size_t i = 0; i < list.size(); ++i) {
    const Reshard& reshard = reshards[list[i]];
    set(list[i],
        WriteSteps(results[i], reshard, *OnlyCollective(reshard) + 1, reshard.steps.size()));
  }
}

Value WriteZeros(ComputationBuilder& builder, const Shape& shape) {
  const Value zero = builder.Scalar(shape.type, 0);
  return shape.rank() > 0 ? builder.Broadcast(zero, shape.dims, {}) : zero;
}

}  // namespace minka
