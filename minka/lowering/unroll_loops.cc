#include "minka/lowering/unroll_loops.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "minka/analysis/layers.h"
#include "minka/analysis/trip_count.h"
#include "minka/ir/mark_text.h"
#include "minka/ir/rewriter.h"

namespace minka {
namespace {

// A loop that would become more instructions stays one.
constexpr int64_t kMostInstructions = 200000;

bool IsScalarInteger(const Shape& shape) {
  return shape.num_elements() == 1 && (IsInteger(shape.type) || shape.type == ElementType::kPred);
}

bool Compared(CompareAttributes::Direction direction, int64_t x, int64_t y) {
  switch (direction) {
    case CompareAttributes::Direction::kEq:
      return x == y;
    case CompareAttributes::Direction::kNe:
      return x != y;
    case CompareAttributes::Direction::kGe:
      return x >= y;
    case CompareAttributes::Direction::kGt:
      return x > y;
    case CompareAttributes::Direction::kLe:
      return x <= y;
    case CompareAttributes::Direction::kLt:
      return x < y;
  }
  return false;
}

// Counters and sizes are followed as far as their products fit into int64_t and no operation of
// theirs wraps around.
bool IsFollowed(ElementType type, int64_t value) {
  return std::abs(value) <= std::numeric_limits<int32_t>::max() &&
         IntegerValue(ScalarLiteral(type, static_cast<double>(value))) == value;
}

// What a scalar integer operation makes of these operands; nullopt: not told here.
std::optional<int64_t> Folded(const Instruction& instruction, const std::vector<int64_t>& x) {
  switch (instruction.opcode) {
    case Opcode::kAdd:
      return x[0] + x[1];
    case Opcode::kSubtract:
      return x[0] - x[1];
    case Opcode::kMultiply:
      return x[0] * x[1];
    case Opcode::kMaximum:
      return std::max(x[0], x[1]);
    case Opcode::kMinimum:
      return std::min(x[0], x[1]);
    case Opcode::kCompare:
      return Compared(instruction.As<CompareAttributes>().direction, x[0], x[1]) ? 1 : 0;
    case Opcode::kSelect:
      return x[0] != 0 ? x[1] : x[2];
    case Opcode::kClamp:
      return std::clamp(x[1], x[0], std::max(x[0], x[2]));
    case Opcode::kBroadcast:
    case Opcode::kConvert:
    case Opcode::kCopy:
    case Opcode::kReshape:
      return x[0];
    default:
      return std::nullopt;
  }
}

// An array that is written row by row, a row being all of one place along dimension 0.
struct Stack {
  std::vector<std::optional<Value>> rows;
  bool is_full() const {
    return std::ranges::all_of(rows, [](const auto& row) { return row.has_value(); });
  }
};

class LoopUnroller {
 public:
  explicit LoopUnroller(const Step& step)
      : module_(step.module),
        entry_(module_.entry_computation()),
        depends_on_inputs_(DependsOnMoreThanState(step)),
        is_of_layers_(entry_.instructions.size()),
        rewriter_(entry_) {}

  Computation Run() && {
    for (InstructionId id = 0; id < entry_.num_instructions(); ++id) {
      if (entry_.instructions[id].opcode == Opcode::kWhile) {
        const std::optional<int64_t> num_trips = TripCount(module_, entry_, id);
        is_of_layers_[id] = num_trips && IsOverLayers(id, *num_trips);
        if (is_of_layers_[id]) {
          Unroll(id, *num_trips);
          continue;
        }
      }
      rewriter_.Map(id, Emit(rewriter_.Translated(id)));
    }
    return std::move(rewriter_).Finish();
  }

 private:
  const Computation& BodyOf(InstructionId loop) const {
    return module_.computations[entry_.instructions[loop].called[0]];
  }

  bool IsOverLayers(InstructionId loop, int64_t num_trips) const {
    const Computation& body = BodyOf(loop);
    if (num_trips < 2 || num_trips * body.num_instructions() > kMostInstructions) return false;
    const bool is_heavy = std::ranges::any_of(body.instructions, [](const Instruction& inner) {
      return inner.opcode == Opcode::kDot || inner.opcode == Opcode::kConvolution;
    });
    return is_heavy && std::ranges::any_of(body.instructions, [&](const Instruction& inner) {
             return ReadsItsLayer(loop, num_trips, inner);
           });
  }

  // One row of a carried value that the body hands on, of weights or of what a loop over the same
  // layers has stacked.
  bool ReadsItsLayer(InstructionId loop, int64_t num_trips, const Instruction& inner) const {
    if (inner.opcode != Opcode::kDynamicSlice) return false;
    const Computation& body = BodyOf(loop);
    const Instruction& source = body.instruction(inner.operands[0]);
    const Shape& shape = body.shape(inner.operands[0]);
    if (source.opcode != Opcode::kParameter || shape.rank() < 2 || shape.dims[0] != num_trips ||
        !IsFloat(shape.type) || inner.shape().dims[0] != 1) {
      return false;
    }
    const int64_t number = source.As<ParameterAttributes>().number;
    if (body.results[number] != inner.operands[0]) return false;
    const InstructionId outside = entry_.instructions[loop].operands[number].instruction;
    return is_of_layers_[outside] || !depends_on_inputs_[outside];
  }

  void Unroll(InstructionId loop, int64_t num_trips) {
    const Computation& body = BodyOf(loop);
    std::vector<Value> carried = rewriter_.Translated(loop).operands;
    for (int64_t trip = 0; trip < num_trips; ++trip) {
      scope_ = ++num_scopes_;
      std::vector<std::vector<Value>> now(body.instructions.size());
      for (InstructionId id = 0; id < body.num_instructions(); ++id) {
        Instruction instruction = body.instructions[id];
        if (instruction.opcode == Opcode::kParameter) {
          now[id] = {carried[instruction.As<ParameterAttributes>().number]};
          continue;
        }
        for (Value& operand : instruction.operands) {
          operand = now[operand.instruction][operand.result];
        }
        instruction.name = rewriter_.NewName(instruction.name);
        now[id] = Emit(std::move(instruction));
      }
      for (size_t i = 0; i < carried.size(); ++i) {
        const Value result = body.results[i];
        carried[i] = now[result.instruction][result.result];
      }
    }
    scope_ = 0;
    rewriter_.Map(loop, carried);
  }

  // Each trip's layer boundaries, and those outside, get numbers in the order in which they stand;
  // one of several values has the same number for all.
  void NumberBoundary(Instruction& instruction) {
    const auto text = instruction.frontend_attributes.find(kMarkAttribute);
    if (text == instruction.frontend_attributes.end()) return;
    absl::StatusOr<Mark> mark = ParseMark(text->second);
    if (!mark.ok() || mark->kind != MarkKind::kLayerBoundary) return;
    const auto next = static_cast<int>(boundaries_.size());
    mark->index = boundaries_.try_emplace({scope_, mark->index}, next).first->second;
    text->second = MarkText(*mark);
  }

  // Appends the instruction, or less where counters are known.
  std::vector<Value> Emit(Instruction instruction) {
    NumberBoundary(instruction);
    if (instruction.opcode == Opcode::kDynamicSlice) {
      if (const std::optional<Value> row = RowOf(instruction)) return {*row};
      MakeStatic(instruction);
    }
    std::optional<Stack> stack = Stacked(instruction);
    if (stack && stack->is_full()) instruction = Concatenated(*stack, std::move(instruction));
    const std::optional<int64_t> number = Number(instruction);
    std::vector<Value> results = rewriter_.Append(std::move(instruction));
    if (number) numbers_[results[0]] = *number;
    if (stack) stacks_[results[0]] = *std::move(stack);
    return results;
  }

  const Shape& ShapeOf(Value value) const { return rewriter_.copy().shape(value); }

  std::optional<int64_t> Number(const Instruction& instruction) const {
    if (instruction.results.size() != 1 || !IsScalarInteger(instruction.shape())) {
      return std::nullopt;
    }
    const std::optional<int64_t> number = FoldedNumber(instruction);
    return number && IsFollowed(instruction.shape().type, *number) ? number : std::nullopt;
  }

  std::optional<int64_t> FoldedNumber(const Instruction& instruction) const {
    if (instruction.opcode == Opcode::kConstant) {
      return IntegerValue(instruction.As<ConstantAttributes>().literal);
    }
    std::vector<int64_t> operands;
    for (const Value operand : instruction.operands) {
      const auto known = numbers_.find(operand);
      if (known == numbers_.end()) return std::nullopt;
      operands.push_back(known->second);
    }
    return operands.empty() ? std::nullopt : Folded(instruction, operands);
  }

  // Where a window of the size begins, whose starts are operands from `first` on; clamped, as the
  // operations do.
  std::optional<std::vector<int64_t>> Starts(const Instruction& instruction, size_t first,
                                             const std::vector<int64_t>& sizes) const {
    std::vector<int64_t> starts;
    const std::vector<int64_t>& dims = ShapeOf(instruction.operands[0]).dims;
    for (size_t dim = 0; dim < dims.size(); ++dim) {
      const auto known = numbers_.find(instruction.operands[first + dim]);
      if (known == numbers_.end()) return std::nullopt;
      starts.push_back(std::clamp<int64_t>(known->second, 0, dims[dim] - sizes[dim]));
    }
    return starts;
  }

  // The row that the dynamic slice reads of a stack.
  std::optional<Value> RowOf(const Instruction& slice) const {
    const auto stack = stacks_.find(slice.operands[0]);
    if (stack == stacks_.end()) return std::nullopt;
    const auto starts = Starts(slice, 1, slice.shape().dims);
    if (!starts || !IsRow(slice.shape(), ShapeOf(slice.operands[0]))) return std::nullopt;
    return stack->second.rows[(*starts)[0]];
  }

  static bool IsRow(const Shape& shape, const Shape& whole) {
    Shape row = whole;
    if (row.dims.empty()) return false;
    row.dims[0] = 1;
    return shape == row;
  }

  void MakeStatic(Instruction& instruction) const {
    const std::vector<int64_t> sizes = instruction.shape().dims;
    const auto starts = Starts(instruction, 1, sizes);
    if (!starts) return;
    SliceAttributes slice{.starts = *starts, .strides = std::vector<int64_t>(sizes.size(), 1)};
    for (size_t dim = 0; dim < sizes.size(); ++dim) {
      slice.limits.push_back((*starts)[dim] + sizes[dim]);
    }
    instruction.opcode = Opcode::kSlice;
    instruction.operands.resize(1);
    instruction.attributes = std::move(slice);
    instruction.undecoded = nullptr;
  }

  // What the instruction makes, if it writes a row.
  std::optional<Stack> Stacked(const Instruction& instruction) const {
    if (instruction.opcode != Opcode::kDynamicUpdateSlice) return std::nullopt;
    const Value update = instruction.operands[1];
    if (!IsRow(ShapeOf(update), instruction.shape())) return std::nullopt;
    const auto starts = Starts(instruction, 2, ShapeOf(update).dims);
    if (!starts) return std::nullopt;
    const auto before = stacks_.find(instruction.operands[0]);
    Stack stack;
    if (before != stacks_.end()) stack = before->second;
    stack.rows.resize(instruction.shape().dims[0]);
    stack.rows[(*starts)[0]] = update;
    return stack;
  }

  static Instruction Concatenated(const Stack& stack, Instruction instruction) {
    instruction.opcode = Opcode::kConcatenate;
    instruction.operands.clear();
    for (const std::optional<Value>& row : stack.rows) instruction.operands.push_back(*row);
    instruction.attributes = DimensionsAttributes{{0}};
    instruction.undecoded = nullptr;
    return instruction;
  }

  const Module& module_;
  const Computation& entry_;
  const std::vector<bool> depends_on_inputs_;
  std::vector<bool> is_of_layers_;  // by instruction: was it a loop that is unrolled?
  Rewriter rewriter_;
  std::map<Value, int64_t> numbers_;               // of the copy: scalar integers that are known
  std::map<Value, Stack> stacks_;                  // of the copy
  int num_scopes_ = 0, scope_ = 0;                 // the trip that is written; 0: outside of loops
  std::map<std::pair<int, int>, int> boundaries_;  // by scope and number of the source
};

}  // namespace

Module UnrollLayerLoops(const Step& step) {
  Module module = step.module;
  module.entry_computation() = LoopUnroller(step).Run();
  return module;
}

}  // namespace minka
