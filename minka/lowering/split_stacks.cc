#include "minka/lowering/split_stacks.h"

#include <map>
#include <optional>
#include <utility>

#include "fmt/format.h"
#include "minka/base/status.h"
#include "minka/ir/rewriter.h"
#include "minka/ir/row_name.h"
#include "minka/ir/simplify.h"
#include "minka/lowering/stacks.h"
#include "minka/lowering/unroll_loops.h"
#include "minka/sharding/rule_builder.h"

namespace minka {
namespace {

struct SplitValues {
  std::set<int> parameters;  // with the results that replace them
  std::set<int> results;     // besides
};

std::vector<int> Numbers(int64_t count, int& next) {
  std::vector<int> numbers;
  for (int64_t i = 0; i < count; ++i) numbers.push_back(next++);
  return numbers;
}

class StackSplitter {
 public:
  StackSplitter(const Step& step, Stacks& stacks, const SplitValues& split)
      : source_(step), entry_(step.module.entry_computation()), stacks_(stacks), rewriter_(entry_) {
    std::set<int> results = split.results;
    for (const int number : split.parameters) {
      split_stacks_.insert(stacks_.StackOf({entry_.parameters[number]}));
      results.insert(step.parameters[number].state_result);
    }
    for (const int number : split.results) {
      split_stacks_.insert(stacks_.StackOf(entry_.results[number]));
    }
    int next = 0;
    for (int i = 0; i < static_cast<int>(entry_.parameters.size()); ++i) {
      const Value parameter{entry_.parameters[i]};
      const int64_t num_parts = split.parameters.contains(i) ? NumRows(parameter) : 1;
      rows_of_.parameters.push_back(Numbers(num_parts, next));
    }
    next = 0;
    for (int i = 0; i < static_cast<int>(entry_.results.size()); ++i) {
      const int64_t num_parts = results.contains(i) ? NumRows(entry_.results[i]) : 1;
      rows_of_.results.push_back(Numbers(num_parts, next));
    }
  }

  SplitStep Run() && {
    auto mark = source_.marks.begin();
    for (InstructionId id = 0; id < entry_.num_instructions(); ++id) {
      Write(id);
      for (; mark != source_.marks.end() && mark->value.instruction == id; ++mark) KeepMark(*mark);
    }
    return std::move(*this).Finish();
  }

 private:
  int64_t NumRows(Value value) const { return entry_.shape(value).dims[0]; }

  bool IsByRow(Value value) {
    return split_stacks_.contains(stacks_.StackOf(value)) && stacks_.IsMadeByRow(value);
  }

  void Write(InstructionId id) {
    const Instruction& instruction = entry_.instructions[id];
    if (instruction.opcode == Opcode::kParameter) return WriteParameter(id);
    if (instruction.opcode == Opcode::kOptBarrier) return WriteBarrier(id);
    if (const std::optional<int64_t> row = RowTaken(entry_, instruction)) {
      const auto rows = rows_.find(instruction.operands[0]);
      if (rows != rows_.end()) return rewriter_.Map(id, {rows->second[*row]});
    }
    if (instruction.operands.empty() || !IsByRow({id})) {
      if (!WriteSumOverRows(id)) Copy(id);
      return;
    }
    if (!PutsRowsTogether(entry_, instruction)) return WriteRows(id);
    std::vector<Value>& rows = rows_[{id}];
    for (const Value operand : instruction.operands) rows.push_back(Whole(operand));
  }

  void Copy(InstructionId id) {
    for (const Value operand : entry_.instructions[id].operands) Whole(operand);
    rewriter_.Copy(id);
  }

  void WriteParameter(InstructionId id) {
    const Instruction& source = entry_.instructions[id];
    const auto number = static_cast<int>(source.As<ParameterAttributes>().number);
    const std::vector<int>& parts = rows_of_.parameters[number];
    for (size_t row = 0; row < parts.size(); ++row) {
      Instruction parameter = source;
      parameter.attributes = ParameterAttributes{.number = parts[row]};
      if (parts.size() == 1) {
        rewriter_.Map(id, rewriter_.Append(std::move(parameter)));
        return;
      }
      parameter.name = rewriter_.NewName(fmt::format("{}.row_{}", source.name, row));
      parameter.results[0].dims[0] = 1;
      rows_[{id}].push_back(rewriter_.AppendOne(std::move(parameter)));
    }
  }

  // One that takes rows in place of stacks.
  void WriteBarrier(InstructionId id) {
    Instruction barrier = entry_.instructions[id];
    const std::vector<Value> sources = std::exchange(barrier.operands, {});
    const std::vector<Shape> shapes = std::exchange(barrier.results, {});
    std::vector<size_t> first;
    for (int32_t i = 0; i < static_cast<int32_t>(sources.size()); ++i) {
      first.push_back(barrier.operands.size());
      Shape shape = shapes[i];
      std::vector<Value> parts;
      if (IsByRow({id, i})) {
        parts = Rows(sources[i]);
        shape.dims[0] = 1;
      } else {
        parts = {Whole(sources[i])};
      }
      barrier.operands.insert(barrier.operands.end(), parts.begin(), parts.end());
      barrier.results.insert(barrier.results.end(), parts.size(), shape);
    }
    first.push_back(barrier.operands.size());
    const std::vector<Value> written = rewriter_.Append(std::move(barrier));
    for (int32_t i = 0; i < static_cast<int32_t>(sources.size()); ++i) {
      if (IsByRow({id, i})) {
        rows_[{id, i}].assign(written.begin() + static_cast<int64_t>(first[i]),
                              written.begin() + static_cast<int64_t>(first[i + 1]));
      } else {
        rewriter_.Map({id, i}, written[first[i]]);
      }
    }
  }

  void WriteRows(InstructionId id) {
    const Instruction& source = entry_.instructions[id];
    const std::vector<bool> by_row = *ReadsByRow(entry_, source);
    std::vector<std::vector<Value>> operands;
    for (size_t i = 0; i < by_row.size(); ++i) {
      const Value operand = source.operands[i];
      operands.push_back(by_row[i] ? Rows(operand)
                                   : std::vector<Value>(NumRows({id}), Whole(operand)));
    }
    for (int64_t row = 0; row < NumRows({id}); ++row) {
      Instruction instruction = OneRowOf(source);
      for (size_t i = 0; i < operands.size(); ++i) instruction.operands[i] = operands[i][row];
      const std::vector<Value> results = rewriter_.Append(std::move(instruction));
      for (const Value result : results) rows_[{id, result.result}].push_back(result);
    }
  }

  Instruction OneRowOf(const Instruction& source) {
    Instruction instruction = source;
    instruction.name = rewriter_.NewName(source.name);
    for (Shape& shape : instruction.results) shape.dims[0] = 1;
    if (auto* const slice = std::get_if<SliceAttributes>(&instruction.attributes)) {
      slice->limits[0] = 1;
    }
    return instruction;
  }

  // A sum over all rows, or a maximum, is one of each row's.
  bool WriteSumOverRows(InstructionId id) {
    const Instruction& source = entry_.instructions[id];
    if (source.opcode != Opcode::kReduce || source.results.size() != 1) return false;
    if (std::ranges::count(source.As<DimensionsAttributes>().dims, 0) == 0) return false;
    const Value operand = source.operands[0];
    const auto rows = rows_.find(operand);
    if (rows == rows_.end()) return false;
    const std::optional<Opcode> opcode = BinaryReducer(source_.module, source.called[0]);
    if (!opcode || !ChangesNothing(*opcode, source.operands[1])) return false;
    std::optional<Value> sum;
    for (const Value row : rows->second) {
      Instruction reduce = source;
      reduce.name = rewriter_.NewName(source.name);
      reduce.operands = {row, Whole(source.operands[1])};
      const Value of_row = rewriter_.AppendOne(std::move(reduce));
      sum = !sum ? of_row
                 : rewriter_.AppendOne({.opcode = *opcode,
                                        .name = rewriter_.NewName(source.name),
                                        .operands = {*sum, of_row},
                                        .results = source.results,
                                        .op_name = source.op_name,
                                        .source_line = source.source_line});
    }
    rewriter_.Map({id}, *sum);
    return true;
  }

  // Is it the same whether the reduction begins with the value once or for each row?
  bool ChangesNothing(Opcode opcode, Value init) const {
    if (opcode == Opcode::kMaximum || opcode == Opcode::kMinimum || opcode == Opcode::kAnd ||
        opcode == Opcode::kOr) {
      return true;
    }
    const Instruction& constant = entry_.instruction(init);
    if (constant.opcode != Opcode::kConstant || IsComplex(constant.shape().type)) return false;
    const double value = ScalarValue(constant.As<ConstantAttributes>().literal);
    return (opcode == Opcode::kAdd && value == 0) || (opcode == Opcode::kMultiply && value == 1);
  }

  // The value as a whole, in the copy.
  Value Whole(Value value) {
    const auto rows = rows_.find(value);
    if (rows == rows_.end() || !put_together_.insert(value).second) return rewriter_.Now(value);
    const Instruction& source = entry_.instruction(value);
    const Value whole = rewriter_.AppendOne({.opcode = Opcode::kConcatenate,
                                             .name = rewriter_.NewName(source.name),
                                             .operands = rows->second,
                                             .results = {entry_.shape(value)},
                                             .attributes = DimensionsAttributes{{0}},
                                             .op_name = source.op_name,
                                             .source_line = source.source_line});
    rewriter_.Map(value, whole);
    return whole;
  }

  const std::vector<Value>& Rows(Value value) {
    const auto found = rows_.find(value);
    if (found != rows_.end()) return found->second;
    const Instruction& source = entry_.instruction(value);
    std::vector<Value> rows;
    if (source.opcode == Opcode::kBroadcast && IsMadeForEachReader(source)) {
      Instruction row = OneRowOf(source);
      row.operands = {Whole(source.operands[0])};
      rows.assign(NumRows(value), rewriter_.AppendOne(std::move(row)));
    } else {
      for (int64_t row = 0; row < NumRows(value); ++row) rows.push_back(RowOf(value, row));
    }
    put_together_.insert(value);
    return rows_[value] = std::move(rows);
  }

  Value RowOf(Value value, int64_t row) {
    const Instruction& source = entry_.instruction(value);
    const std::vector<int64_t>& dims = entry_.shape(value).dims;
    SliceAttributes slice{.starts = std::vector<int64_t>(dims.size(), 0),
                          .limits = dims,
                          .strides = std::vector<int64_t>(dims.size(), 1)};
    slice.starts[0] = row;
    slice.limits[0] = row + 1;
    Shape shape = entry_.shape(value);
    shape.dims[0] = 1;
    return rewriter_.AppendOne({.opcode = Opcode::kSlice,
                                .name = rewriter_.NewName(source.name),
                                .operands = {rewriter_.Now(value)},
                                .results = {std::move(shape)},
                                .attributes = std::move(slice),
                                .op_name = source.op_name,
                                .source_line = source.source_line});
  }

  void KeepMark(Mark mark) {
    if (mark.kind != MarkKind::kGradient) {
      mark.value = Whole(mark.value);
      marks_.push_back(mark);
      return;
    }
    const std::vector<int>& parts = rows_of_.parameters[mark.index];
    const std::vector<Value> values =
        parts.size() > 1 ? Rows(mark.value) : std::vector<Value>{Whole(mark.value)};
    for (size_t row = 0; row < parts.size(); ++row) {
      marks_.push_back({.kind = mark.kind, .value = values[row], .index = parts[row]});
    }
  }

  void DescribeParameters(Step& step) const {
    for (size_t i = 0; i < source_.parameters.size(); ++i) {
      const std::vector<int>& parts = rows_of_.parameters[i];
      for (size_t row = 0; row < parts.size(); ++row) {
        ParameterInfo info = source_.parameters[i];
        if (parts.size() > 1) info.name = RowName(info.name, static_cast<int64_t>(row));
        if (info.state_result >= 0) info.state_result = rows_of_.results[info.state_result][row];
        step.parameters.push_back(std::move(info));
      }
    }
  }

  std::vector<Value> WriteResults(Step& step) {
    std::vector<Value> results;
    for (size_t i = 0; i < source_.results.size(); ++i) {
      const size_t num_parts = rows_of_.results[i].size();
      const std::vector<Value> parts =
          num_parts > 1 ? Rows(entry_.results[i]) : std::vector<Value>{Whole(entry_.results[i])};
      results.insert(results.end(), parts.begin(), parts.end());
      for (size_t row = 0; row < num_parts; ++row) {
        ResultInfo info = source_.results[i];
        if (num_parts > 1) info.name = RowName(info.name, static_cast<int64_t>(row));
        step.results.push_back(std::move(info));
      }
    }
    return results;
  }

  SplitStep Finish() && {
    Step step;
    DescribeParameters(step);
    std::vector<Value> results = WriteResults(step);
    step.module = source_.module;
    step.module.entry_computation() = std::move(rewriter_).Finish(std::move(results));
    step.module.aliases.clear();
    for (const Alias& alias : source_.module.aliases) {
      const std::vector<int>& of_result = rows_of_.results[alias.result];
      const std::vector<int>& of_parameter = rows_of_.parameters[alias.parameter];
      if (of_result.size() != of_parameter.size()) continue;
      for (size_t row = 0; row < of_result.size(); ++row) {
        step.module.aliases.push_back({.result = of_result[row], .parameter = of_parameter[row]});
      }
    }
    std::ranges::stable_sort(marks_, {}, &Mark::value);
    step.marks = std::move(marks_);
    step.module = EliminateDeadCode(ToModule(step));
    return {std::move(step), std::move(rows_of_)};
  }

  const Step& source_;
  const Computation& entry_;
  Stacks& stacks_;
  std::set<int> split_stacks_;
  StepRows rows_of_;
  Rewriter rewriter_;
  std::map<Value, std::vector<Value>> rows_;  // of the source -> rows in the copy
  std::set<Value> put_together_;              // those that are there as a whole, too
  std::vector<Mark> marks_;
};

absl::StatusOr<Step> WithoutLoops(const Step& step) {
  Module module =
      UnrollLayerLoops({.module = InlineCalls(ToModule(step)), .parameters = step.parameters});
  return MakeStep(EliminateDeadCode(std::move(module)), {});
}

absl::StatusOr<SplitStep> Split(const Step& given, const Step& unrolled, Stacks& stacks,
                                const SplitValues& values) {
  if (values.parameters.empty() && values.results.empty())
    return SplitStep{given, WholeRows(given)};
  SplitStep split = StackSplitter(unrolled, stacks, values).Run();
  ASSIGN_OR_RETURN(split.step, MakeStep(std::move(split.step.module), {}));
  return split;
}

}  // namespace

absl::StatusOr<SplitStep> SplitStacks(const Step& step) {
  ASSIGN_OR_RETURN(const Step unrolled, WithoutLoops(step));
  Stacks stacks(unrolled);
  return Split(step, unrolled, stacks, {.parameters = stacks.ParametersOfLayers()});
}

absl::StatusOr<SplitStep> SplitStacks(const Step& step, const std::set<std::string>& names) {
  ASSIGN_OR_RETURN(const Step unrolled, WithoutLoops(step));
  SplitValues values;
  for (size_t i = 0; i < unrolled.parameters.size(); ++i) {
    if (names.contains(unrolled.parameters[i].name)) values.parameters.insert(static_cast<int>(i));
  }
  Stacks stacks(unrolled);
  return Split(step, unrolled, stacks, values);
}

absl::StatusOr<SplitStep> SplitResults(const Step& step, const std::set<int>& results) {
  ASSIGN_OR_RETURN(const Step unrolled, WithoutLoops(step));
  Stacks stacks(unrolled);
  return Split(step, unrolled, stacks, {.results = results});
}

}  // namespace minka
