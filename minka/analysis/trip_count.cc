#include "minka/analysis/trip_count.h"

#include <utility>

namespace minka {
namespace {

// The number of the parameter that `value` is, through copies.
std::optional<int64_t> AsParameter(const Computation& computation, Value value) {
  const Instruction& instruction = computation.instruction(value);
  switch (instruction.opcode) {
    case Opcode::kParameter:
      return instruction.As<ParameterAttributes>().number;
    case Opcode::kCopy:
      return AsParameter(computation, instruction.operands[0]);
    case Opcode::kOptBarrier:
      return AsParameter(computation, instruction.operands[value.result]);
    default:
      return std::nullopt;
  }
}

// The integer that `value` always is.
std::optional<int64_t> AsConstant(const Computation& computation, Value value) {
  const Instruction& instruction = computation.instruction(value);
  const Shape& shape = computation.shape(value);
  if (!IsInteger(shape.type) || shape.num_elements() != 1) return std::nullopt;
  switch (instruction.opcode) {
    case Opcode::kConstant:
      return IntegerValue(instruction.As<ConstantAttributes>().literal);
    case Opcode::kBroadcast:
    case Opcode::kConvert:
    case Opcode::kCopy:
    case Opcode::kReshape:
      return AsConstant(computation, instruction.operands[0]);
    case Opcode::kOptBarrier:
      return AsConstant(computation, instruction.operands[value.result]);
    default:
      return std::nullopt;
  }
}

// What the body adds to the carried value each time.
std::optional<int64_t> Increment(const Computation& body, int64_t carried) {
  const Value next = body.results[carried];
  const Instruction& instruction = body.instruction(next);
  if (instruction.opcode != Opcode::kAdd && instruction.opcode != Opcode::kSubtract) {
    return std::nullopt;
  }
  Value counter = instruction.operands[0];
  Value step = instruction.operands[1];
  const bool adds = instruction.opcode == Opcode::kAdd;
  if (adds && AsParameter(body, step) == carried) std::swap(counter, step);
  if (AsParameter(body, counter) != carried) return std::nullopt;
  const std::optional<int64_t> amount = AsConstant(body, step);
  if (!amount) return std::nullopt;
  return adds ? *amount : -*amount;
}

using Direction = CompareAttributes::Direction;

Direction Mirrored(Direction direction) {
  switch (direction) {
    case Direction::kLt:
      return Direction::kGt;
    case Direction::kLe:
      return Direction::kGe;
    case Direction::kGt:
      return Direction::kLt;
    case Direction::kGe:
      return Direction::kLe;
    case Direction::kEq:
    case Direction::kNe:
      return direction;
  }
  return direction;
}

// How often start, start + step, ... fulfils the comparison with the bound before it first fails.
std::optional<int64_t> CountSteps(Direction direction, int64_t start, int64_t step, int64_t bound) {
  if (direction == Direction::kEq) {
    if (start != bound) return 0;
    return step == 0 ? std::nullopt : std::optional<int64_t>(1);
  }
  if (direction == Direction::kNe) {
    if (start == bound) return 0;
    const bool reaches = step != 0 && (bound - start) % step == 0 && (bound - start) / step > 0;
    return reaches ? std::optional<int64_t>((bound - start) / step) : std::nullopt;
  }
  if (direction == Direction::kGt || direction == Direction::kGe) {
    return CountSteps(Mirrored(direction), -start, -step, -bound);
  }
  const int64_t first_out = direction == Direction::kLt ? bound : bound + 1;
  if (start >= first_out) return 0;
  if (step <= 0) return std::nullopt;
  return (first_out - start + step - 1) / step;
}

struct LoopView {
  const Computation& outside;
  const Instruction& loop;
  const Computation& body;
  const Computation& condition;
};

// The bound as the condition sees it: a constant, or a carried value that the body hands on.
std::optional<int64_t> Bound(const LoopView& view, Value value) {
  if (const auto constant = AsConstant(view.condition, value)) return constant;
  const std::optional<int64_t> carried = AsParameter(view.condition, value);
  if (!carried || AsParameter(view.body, view.body.results[*carried]) != *carried) {
    return std::nullopt;
  }
  return AsConstant(view.outside, view.loop.operands[*carried]);
}

std::optional<int64_t> CountWith(const LoopView& view, Direction direction, Value counter,
                                 Value bound_value) {
  const std::optional<int64_t> carried = AsParameter(view.condition, counter);
  if (!carried) return std::nullopt;
  const auto start = AsConstant(view.outside, view.loop.operands[*carried]);
  const auto step = Increment(view.body, *carried);
  const auto bound = Bound(view, bound_value);
  if (!start || !step || !bound) return std::nullopt;
  return CountSteps(direction, *start, *step, *bound);
}

}  // namespace

std::optional<int64_t> TripCount(const Module& module, const Computation& computation,
                                 InstructionId loop) {
  const Instruction& instruction = computation.instructions[loop];
  const LoopView view = {computation, instruction, module.computations[instruction.called[0]],
                         module.computations[instruction.called[1]]};
  const Instruction& compare = view.condition.instruction(view.condition.results[0]);
  if (compare.opcode != Opcode::kCompare) return std::nullopt;
  const Direction direction = compare.As<CompareAttributes>().direction;
  const Value lhs = compare.operands[0];
  const Value rhs = compare.operands[1];
  if (const auto count = CountWith(view, direction, lhs, rhs)) return count;
  return CountWith(view, Mirrored(direction), rhs, lhs);
}

}  // namespace minka
