#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/support/program_generator.h"

namespace minka {

void ProgramGenerator::Unary() {
  static constexpr Opcode kOpcodes[] = {Opcode::kNegate,
                                        Opcode::kNegate,
                                        Opcode::kCopy,
                                        Opcode::kAbs,
                                        Opcode::kSign,
                                        Opcode::kFloor,
                                        Opcode::kCeil,
                                        Opcode::kRoundNearestAfz,
                                        Opcode::kRoundNearestEven};
  const Known x = Pick(kF32);
  if (Chance(10)) {
    Keep(builder_.Append({.opcode = Opcode::kReducePrecision,
                          .operands = {x.value},
                          .attributes = ReducePrecisionAttributes{6, 4}}),
         2 * x.bound);
    return;
  }
  Keep(builder_.Unary(OneOf(kOpcodes), x.value), x.bound);
}

void ProgramGenerator::Arithmetic() {
  static constexpr Opcode kOpcodes[] = {Opcode::kAdd,      Opcode::kAdd,      Opcode::kSubtract,
                                        Opcode::kMultiply, Opcode::kMaximum,  Opcode::kMinimum,
                                        Opcode::kDivide,   Opcode::kRemainder};
  const Opcode opcode = OneOf(kOpcodes);
  Known x = Pick(kF32);
  if (opcode == Opcode::kDivide) {  // by a power of two that divides
    const Value four = builder_.FullLike(x.value, 4);
    x = Bounded(x, kLimit / 4);
    const Value multiple = builder_.Binary(Opcode::kMultiply, x.value, four);
    Keep(builder_.Binary(Opcode::kDivide, multiple, builder_.FullLike(x.value, 2)), x.bound * 2);
    return;
  }
  if (opcode == Opcode::kRemainder) {
    Keep(builder_.Binary(opcode, x.value, builder_.FullLike(x.value, 7)), 7);
    return;
  }
  Known y = PickLike(kF32, shape(x.value).dims);
  const bool is_product = opcode == Opcode::kMultiply;
  const double limit = is_product ? std::sqrt(kLimit) : kLimit / 2;
  x = Bounded(x, limit);
  y = Bounded(y, limit);
  Keep(builder_.Binary(opcode, x.value, y.value),
       is_product ? x.bound * y.bound : x.bound + y.bound);
}

void ProgramGenerator::Integer() {
  static constexpr Opcode kOpcodes[] = {Opcode::kAdd,
                                        Opcode::kSubtract,
                                        Opcode::kMaximum,
                                        Opcode::kMinimum,
                                        Opcode::kAnd,
                                        Opcode::kOr,
                                        Opcode::kXor,
                                        Opcode::kDivide,
                                        Opcode::kRemainder,
                                        Opcode::kMultiply,
                                        Opcode::kShiftLeft,
                                        Opcode::kShiftRightArithmetic,
                                        Opcode::kShiftRightLogical};
  static constexpr Opcode kUnary[] = {Opcode::kNegate,
                                      Opcode::kAbs,
                                      Opcode::kNot,
                                      Opcode::kPopulationCount,
                                      Opcode::kCountLeadingZeros,
                                      Opcode::kSign};
  const Known x = Pick(kS32);
  Value result;
  if (Chance(30)) {
    // Counted only in positive numbers: XLA folds the bits of negative constants as 64-bit ones.
    const Value positive =
        builder_.Binary(Opcode::kMaximum, x.value, builder_.FullLike(x.value, 1));
    const Opcode opcode = OneOf(kUnary);
    const bool counts = opcode == Opcode::kPopulationCount || opcode == Opcode::kCountLeadingZeros;
    result = builder_.Unary(opcode, counts ? positive : x.value);
  } else {
    const Opcode opcode = OneOf(kOpcodes);
    const bool by_constant =
        opcode == Opcode::kDivide || opcode == Opcode::kRemainder || opcode == Opcode::kShiftLeft ||
        opcode == Opcode::kShiftRightArithmetic || opcode == Opcode::kShiftRightLogical;
    const Value y =
        by_constant ? builder_.FullLike(x.value, 3) : PickLike(kS32, shape(x.value).dims).value;
    result = builder_.Binary(opcode, x.value, y);
  }
  Keep(result, 0x1p31);
  Keep(builder_.Binary(Opcode::kRemainder, result, builder_.FullLike(result, 13)), 13);
}

void ProgramGenerator::Predicate() {
  static constexpr Opcode kOpcodes[] = {Opcode::kAnd, Opcode::kOr, Opcode::kXor};
  const Known x = Pick(kPred);
  if (Chance(25)) {
    Keep(builder_.Unary(Opcode::kNot, x.value), 1);
    return;
  }
  Keep(builder_.Binary(OneOf(kOpcodes), x.value, PickLike(kPred, shape(x.value).dims).value), 1);
}

void ProgramGenerator::Compare() {
  static constexpr CompareAttributes::Direction kDirections[] = {CompareAttributes::Direction::kEq,
                                                                 CompareAttributes::Direction::kLt,
                                                                 CompareAttributes::Direction::kGe};
  const ElementType type = Chance(70) ? kF32 : kS32;
  const Known x = Pick(type);
  if (type == kF32 && Chance(20)) {
    Keep(builder_.Unary(Opcode::kIsFinite, x.value), 1);
    return;
  }
  const Known y = PickLike(type, shape(x.value).dims);
  Keep(builder_.Compare(OneOf(kDirections), x.value, y.value), 1);
}

void ProgramGenerator::Select() {
  const Known x = Pick(kF32);
  const Known y = PickLike(kF32, shape(x.value).dims);
  const Known predicate = PickLike(kPred, Chance(80) ? shape(x.value).dims : Dims());
  Keep(builder_.Select(predicate.value, x.value, y.value), std::max(x.bound, y.bound));
}

void ProgramGenerator::Clamp() {
  const Known x = Pick(kF32);
  const Known low = PickLike(kF32, Chance(50) ? shape(x.value).dims : Dims());
  const Value high = builder_.FullLike(low.value, 5);
  Keep(builder_.Clamp(low.value, x.value, high), std::max({x.bound, low.bound, 5.0}));
}

void ProgramGenerator::Convert() {
  const Known x = Pick(kF32);
  switch (Below(6)) {
    case 5: {
      const Value narrow = builder_.Convert(Bounded(x, 8).value, ElementType::kF8E4M3FN);
      Keep(builder_.Convert(narrow, kF32), 8);
      break;
    }
    case 0:
      Keep(builder_.Convert(x.value, kS32), x.bound);
      break;
    case 1:
      Keep(builder_.Convert(builder_.Convert(x.value, ElementType::kBF16), kF32), x.bound * 1.01);
      break;
    case 2: {
      const Value wide = builder_.Convert(x.value, ElementType::kF64);
      Keep(builder_.Convert(builder_.Binary(Opcode::kAdd, wide, wide), kF32), x.bound * 2);
      break;
    }
    case 3:
      Keep(builder_.Convert(Bounded(Pick(kS32), kLimit).value, kF32), kLimit);
      break;
    default:
      Keep(builder_.Convert(Pick(kPred).value, kF32), 1);
  }
}

void ProgramGenerator::Bitcast() {
  const Known x = Pick(kS32);
  const Value bits = builder_.BitcastConvert(x.value, ElementType::kU32);
  const Value third = builder_.Binary(Opcode::kDivide, bits, builder_.FullLike(bits, 3));
  Keep(builder_.BitcastConvert(third, kS32), 0x1p31);
}

void ProgramGenerator::ComplexNumbers() {
  const Known x = Bounded(Pick(kF32), 1000);
  const Known y = Bounded(PickLike(kF32, shape(x.value).dims), 1000);
  const Value number = builder_.Binary(Opcode::kComplex, x.value, y.value);
  const Value squared = builder_.Binary(Opcode::kMultiply, number, number);
  Keep(builder_.Unary(Opcode::kReal, squared), 2e6);
  Keep(builder_.Unary(Opcode::kImag, builder_.Unary(Opcode::kNegate, squared)), 2e6);
}

void ProgramGenerator::Map() {
  const Known x = Bounded(Pick(kF32, 1), 1000);
  ComputationBuilder square = target_.AddComputation("square");
  const Value a = square.Parameter({kF32, {}}, "a");
  square.SetResults({square.Binary(Opcode::kMultiply, a, a)});
  Dims all(static_cast<size_t>(rank(x)));
  std::iota(all.begin(), all.end(), 0);
  Keep(builder_.Append({.opcode = Opcode::kMap,
                        .operands = {x.value},
                        .attributes = DimensionsAttributes{all},
                        .called = {target_.id(square)}}),
       x.bound * x.bound);
}

void ProgramGenerator::RandomBits() {
  const Value state =
      builder_.Constant(FilledLiteral({ElementType::kU64, {3}}, static_cast<double>(Below(99))));
  const Dims dims = RandomDims(2);
  const Value first =
      builder_.Append({.opcode = Opcode::kRngBitGenerator,
                       .operands = {state},
                       .results = {{ElementType::kU64, {3}}, {ElementType::kU32, dims}},
                       .attributes = RngAttributes{2}});
  const Value bits{first.instruction, 1};
  const Value top = builder_.Binary(Opcode::kShiftRightLogical, bits, builder_.FullLike(bits, 29));
  Keep(builder_.Convert(top, kF32), 8);
}

}  // namespace minka
