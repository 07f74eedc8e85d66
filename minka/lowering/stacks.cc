#include "minka/lowering/stacks.h"

#include <algorithm>
#include <map>

#include "minka/sharding/rule_builder.h"

namespace minka {
namespace {

// A stack of which more rows would be written, instruction by instruction, stays whole.
constexpr int64_t kMostWrittenRows = 200000;

// Words of a random key are no layers.
bool MayHaveRowsOfLayers(const Shape& shape) {
  return shape.rank() > 1 || (shape.rank() == 1 && IsFloat(shape.type));
}

std::vector<bool> AllOperands(const Instruction& instruction) {
  return std::vector<bool>(instruction.operands.size(), true);
}

}  // namespace

std::optional<std::vector<bool>> ReadsByRow(const Computation& entry,
                                            const Instruction& instruction) {
  const auto shape = [&](size_t i) -> const Shape& { return entry.shape(instruction.operands[i]); };
  if (instruction.operands.empty() || instruction.shape().rank() == 0) return std::nullopt;
  if (IsElementwise(instruction.opcode)) {
    std::vector<bool> by_row;
    for (const Value operand : instruction.operands) {
      by_row.push_back(entry.shape(operand).rank() > 0);
    }
    return by_row;
  }
  switch (instruction.opcode) {
    case Opcode::kReshape:
      if (shape(0).rank() == 0 || shape(0).dims[0] != instruction.shape().dims[0]) break;
      return AllOperands(instruction);
    case Opcode::kTranspose:
    case Opcode::kBroadcast: {
      const std::vector<int64_t>& dims = instruction.As<DimensionsAttributes>().dims;
      if (dims.empty() || dims[0] != 0) break;
      return AllOperands(instruction);
    }
    case Opcode::kReverse:
      if (std::ranges::count(instruction.As<DimensionsAttributes>().dims, 0) > 0) break;
      return AllOperands(instruction);
    case Opcode::kSlice:
      if (shape(0).dims[0] != instruction.shape().dims[0]) break;
      return AllOperands(instruction);
    case Opcode::kReduce: {
      if (std::ranges::count(instruction.As<DimensionsAttributes>().dims, 0) > 0) break;
      std::vector<bool> by_row = AllOperands(instruction);
      std::fill(by_row.begin() + static_cast<int64_t>(by_row.size() / 2), by_row.end(), false);
      return by_row;
    }
    case Opcode::kDot: {
      const auto& dims = instruction.As<DotAttributes>();
      if (dims.lhs_batch.empty() || dims.lhs_batch[0] != 0 || dims.rhs_batch[0] != 0) break;
      return AllOperands(instruction);
    }
    default:
      break;
  }
  return std::nullopt;
}

bool IsMadeForEachReader(const Instruction& instruction) {
  switch (instruction.opcode) {
    case Opcode::kConstant:
    case Opcode::kIota:
      return true;
    case Opcode::kBroadcast: {
      const std::vector<int64_t>& dims = instruction.As<DimensionsAttributes>().dims;
      return std::ranges::count(dims, 0) == 0;
    }
    default:
      return false;
  }
}

std::optional<int64_t> RowTaken(const Computation& entry, const Instruction& instruction) {
  if (instruction.opcode != Opcode::kSlice) return std::nullopt;
  Shape row = entry.shape(instruction.operands[0]);
  if (!MayHaveRowsOfLayers(row)) return std::nullopt;
  row.dims[0] = 1;
  if (row != instruction.shape()) return std::nullopt;
  return instruction.As<SliceAttributes>().starts[0];
}

bool PutsRowsTogether(const Computation& entry, const Instruction& instruction) {
  return instruction.opcode == Opcode::kConcatenate && MayHaveRowsOfLayers(instruction.shape()) &&
         instruction.As<DimensionsAttributes>().dims[0] == 0 &&
         static_cast<int64_t>(instruction.operands.size()) == instruction.shape().dims[0] &&
         std::ranges::all_of(instruction.operands,
                             [&](Value operand) { return entry.shape(operand).dims[0] == 1; });
}

Stacks::Stacks(const Step& step) : step_(step), entry_(step.module.entry_computation()) {
  for (const Instruction& instruction : entry_.instructions) {
    first_.push_back(static_cast<int>(parents_.size()));
    for (size_t i = 0; i < instruction.results.size(); ++i) {
      parents_.push_back(static_cast<int>(parents_.size()));
    }
  }
  for (InstructionId id = 0; id < entry_.num_instructions(); ++id) Connect(id);
}

int Stacks::StackOf(Value value) {
  int at = first_[value.instruction] + value.result;
  while (parents_[at] != at) at = parents_[at] = parents_[parents_[at]];
  return at;
}

bool Stacks::IsMadeByRow(Value value) const {
  const Instruction& instruction = entry_.instruction(value);
  if (instruction.opcode == Opcode::kParameter) return IsResident(value.instruction);
  return PutsRowsTogether(entry_, instruction) || instruction.opcode == Opcode::kOptBarrier ||
         ReadsByRow(entry_, instruction).has_value();
}

std::set<int> Stacks::ParametersOfLayers() {
  std::set<int> of_layers = StacksOfLayers();
  std::map<int, int64_t> num_instructions;
  for (InstructionId id = 0; id < entry_.num_instructions(); ++id) {
    const Shape& shape = entry_.instructions[id].shape();
    if (shape.rank() > 0) num_instructions[StackOf({id})] += shape.dims[0];
  }
  std::set<int> parameters;
  for (size_t i = 0; i < entry_.parameters.size(); ++i) {
    const InstructionId id = entry_.parameters[i];
    const Shape& shape = entry_.instructions[id].shape();
    if (shape.rank() == 0 || shape.dims[0] < 2 || !IsResident(id)) continue;
    if (!IsUpdatedByRow(static_cast<int>(i)) ||
        num_instructions[StackOf({id})] > kMostWrittenRows) {
      of_layers.erase(StackOf({id}));
    }
    parameters.insert(static_cast<int>(i));
  }
  std::erase_if(parameters, [&](int number) {
    return !of_layers.contains(StackOf({entry_.parameters[number]}));
  });
  return parameters;
}

bool Stacks::IsResident(InstructionId parameter) const {
  const auto& attributes = entry_.instructions[parameter].As<ParameterAttributes>();
  const ParameterRole role = step_.parameters[attributes.number].role;
  return role == ParameterRole::kState || role == ParameterRole::kConstant;
}

void Stacks::Join(Value a, Value b) {
  if (IsMadeForEachReader(entry_.instruction(a)) || IsMadeForEachReader(entry_.instruction(b))) {
    return;
  }
  parents_[StackOf(a)] = StackOf(b);
}

void Stacks::Connect(InstructionId id) {
  const Instruction& instruction = entry_.instructions[id];
  if (instruction.opcode == Opcode::kOptBarrier) {
    for (int32_t i = 0; i < static_cast<int32_t>(instruction.operands.size()); ++i) {
      Join(instruction.operands[i], {id, i});
    }
    return;
  }
  const auto by_row = ReadsByRow(entry_, instruction);
  if (!by_row) return;
  for (int32_t i = 0; i < static_cast<int32_t>(instruction.results.size()); ++i) {
    for (size_t operand = 0; operand < by_row->size(); ++operand) {
      if ((*by_row)[operand]) Join(instruction.operands[operand], {id, i});
    }
  }
}

// Those whose rows are taken one by one, all of them, or that are put together of rows.
std::set<int> Stacks::StacksOfLayers() {
  std::map<Value, std::set<int64_t>> taken;
  std::set<int> found;
  for (InstructionId id = 0; id < entry_.num_instructions(); ++id) {
    const Instruction& instruction = entry_.instructions[id];
    if (const std::optional<int64_t> row = RowTaken(entry_, instruction)) {
      taken[instruction.operands[0]].insert(*row);
    }
    if (PutsRowsTogether(entry_, instruction)) found.insert(StackOf({id}));
  }
  for (const auto& [value, rows] : taken) {
    if (static_cast<int64_t>(rows.size()) == entry_.shape(value).dims[0]) {
      found.insert(StackOf(value));
    }
  }
  return found;
}

bool Stacks::IsUpdatedByRow(int parameter) {
  const int result = step_.parameters[parameter].state_result;
  if (step_.parameters[parameter].role != ParameterRole::kState || result < 0) return true;
  const Value update = entry_.results[result];
  return StackOf(update) == StackOf({entry_.parameters[parameter]}) && IsMadeByRow(update);
}

}  // namespace minka
