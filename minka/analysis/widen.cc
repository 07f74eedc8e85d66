#include "minka/analysis/widen.h"

#include <algorithm>

#include "minka/ir/call_graph.h"
#include "minka/ir/names.h"
#include "minka/ir/rewriter.h"

namespace minka {

ElementType WidenedType(ElementType type) {
  if (IsFloat(type)) return ElementType::kF64;
  if (IsComplex(type)) return ElementType::kC128;
  return type;
}

namespace {

Shape Widened(Shape shape) {
  shape.type = WidenedType(shape.type);
  return shape;
}

Literal WidenedLiteral(const Literal& literal) {
  if (IsFloat(literal.shape.type)) return ConvertLiteral(literal, ElementType::kF64);
  if (literal.shape.type != ElementType::kC64) return literal;
  // Real and imaginary parts alternate: twice as many floats.
  Literal parts = {{ElementType::kF32, {2 * literal.shape.num_elements()}}, literal.bytes};
  return {Widened(literal.shape), ConvertLiteral(parts, ElementType::kF64).bytes};
}

// Moves bits without looking at them.
bool OnlyMovesData(Opcode opcode) {
  switch (opcode) {
    case Opcode::kBroadcast:
    case Opcode::kConcatenate:
    case Opcode::kCopy:
    case Opcode::kDynamicSlice:
    case Opcode::kGather:
    case Opcode::kReshape:
    case Opcode::kReverse:
    case Opcode::kSlice:
    case Opcode::kTranspose:
      return true;
    default:
      return false;
  }
}

class ComputationWidener {
 public:
  // Called computations are those of the source module plus `callee_offset`.
  ComputationWidener(const Computation& source, ComputationId callee_offset)
      : source_(source), callee_offset_(callee_offset), rewriter_(source) {}

  Computation Run() && {
    for (InstructionId id = 0; id < source_.num_instructions(); ++id) Translate(id);
    std::vector<Value> results;
    for (const Value result : source_.results) results.push_back(Wide(result));
    return std::move(rewriter_).Finish(std::move(results));
  }

 private:
  void Translate(InstructionId id) {
    const Instruction& instruction = source_.instructions[id];
    switch (instruction.opcode) {
      case Opcode::kBitcastConvert:
      case Opcode::kCustomCall:
      case Opcode::kOther:
        return KeepTypes(id);
      case Opcode::kConstant:
        return TranslateConstant(id);
      case Opcode::kConvert:
      case Opcode::kReducePrecision:
      case Opcode::kStochasticConvert:
        return TranslateConvert(id);
      case Opcode::kOptBarrier:
        return TranslateBarrier(id);
      default:
        if (OnlyMovesData(instruction.opcode) && AllNarrow(instruction)) return KeepTypes(id);
        return WidenAll(id);
    }
  }

  const Shape& ShapeOf(Value target) const { return rewriter_.copy().shape(target); }

  Value Wide(Value value) {
    const Value mapped = rewriter_.Now(value);
    return ConvertedTo(mapped, WidenedType(ShapeOf(mapped).type));
  }

  Value Original(Value value) {
    return ConvertedTo(rewriter_.Now(value), source_.shape(value).type);
  }

  Value ConvertedTo(Value value, ElementType type) {
    if (ShapeOf(value).type == type) return value;
    const auto [found, is_new] = converted_.try_emplace({value, type});
    if (is_new) {
      Shape shape = ShapeOf(value);
      shape.type = type;
      found->second = rewriter_.AppendOne({.opcode = Opcode::kConvert,
                                           .name = rewriter_.NewName("convert"),
                                           .operands = {value},
                                           .results = {shape}});
    }
    return found->second;
  }

  void Append(InstructionId id, Instruction instruction) {
    rewriter_.Map(id, rewriter_.Append(std::move(instruction)));
  }

  bool AllNarrow(const Instruction& instruction) const {
    return std::ranges::all_of(instruction.operands, [&](Value operand) {
      return ShapeOf(rewriter_.Now(operand)).type == source_.shape(operand).type;
    });
  }

  void KeepTypes(InstructionId id) {
    Instruction instruction = source_.instructions[id];
    for (Value& operand : instruction.operands) operand = Original(operand);
    Append(id, std::move(instruction));
  }

  void WidenAll(InstructionId id) {
    Instruction instruction = source_.instructions[id];
    for (Value& operand : instruction.operands) operand = Wide(operand);
    for (Shape& result : instruction.results) result = Widened(result);
    for (ComputationId& called : instruction.called) called += callee_offset_;
    Append(id, std::move(instruction));
  }

  void TranslateConstant(InstructionId id) {
    Instruction constant = source_.instructions[id];
    constant.attributes =
        ConstantAttributes{WidenedLiteral(constant.As<ConstantAttributes>().literal)};
    constant.results[0] = Widened(constant.results[0]);
    Append(id, std::move(constant));
  }

  // Between floats, or between complex numbers, nothing is left to convert.
  void TranslateConvert(InstructionId id) {
    const Instruction& instruction = source_.instructions[id];
    const Value operand = Wide(instruction.operands[0]);
    if (ShapeOf(operand).type == WidenedType(instruction.shape().type)) {
      rewriter_.Map(id, {operand});
      return;
    }
    Instruction convert = instruction;
    convert.opcode = Opcode::kConvert;
    convert.operands = {operand};
    convert.results[0] = Widened(convert.results[0]);
    Append(id, std::move(convert));
  }

  void TranslateBarrier(InstructionId id) {
    Instruction barrier = source_.instructions[id];
    for (size_t i = 0; i < barrier.operands.size(); ++i) {
      barrier.operands[i] = rewriter_.Now(barrier.operands[i]);
      barrier.results[i] = ShapeOf(barrier.operands[i]);
    }
    Append(id, std::move(barrier));
  }

  const Computation& source_;
  const ComputationId callee_offset_;
  Rewriter rewriter_;
  std::map<std::pair<Value, ElementType>, Value> converted_;
};

}  // namespace

Module WidenFloats(const Module& module) {
  Module widened = module;
  // Custom calls and unknown opcodes go on calling the computations as they are.
  const auto offset = static_cast<ComputationId>(module.computations.size());
  for (const Computation& computation : module.computations) {
    widened.computations.push_back(ComputationWidener(computation, offset).Run());
  }
  widened.entry = module.entry + offset;
  const std::vector<ComputationId> reachable = ReachableComputations(widened);
  widened = KeepComputations(std::move(widened), reachable);
  UniqueNames names;
  for (Computation& computation : widened.computations) {
    computation.name = names.Take(computation.name);
  }
  return widened;
}

}  // namespace minka
