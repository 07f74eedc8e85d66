#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

#include "tests/support/program_generator.h"

namespace minka {

void ProgramGenerator::Elementwise() {
  struct Kind {
    void (ProgramGenerator::*append)(Opcode);
    Opcode opcode;
  };
  static constexpr auto kUnary = &ProgramGenerator::Unary;
  static constexpr auto kArithmetic = &ProgramGenerator::Arithmetic;
  static constexpr auto kInteger = &ProgramGenerator::Integer;
  static constexpr auto kPredicate = &ProgramGenerator::Predicate;
  static constexpr Kind kKinds[] = {
      {kUnary, Opcode::kNegate},
      {kUnary, Opcode::kCopy},
      {kUnary, Opcode::kAbs},
      {kUnary, Opcode::kSign},
      {kUnary, Opcode::kFloor},
      {kUnary, Opcode::kCeil},
      {kUnary, Opcode::kRoundNearestAfz},
      {kUnary, Opcode::kRoundNearestEven},
      {kUnary, Opcode::kReducePrecision},
      {kUnary, Opcode::kIsFinite},
      {kArithmetic, Opcode::kAdd},
      {kArithmetic, Opcode::kSubtract},
      {kArithmetic, Opcode::kMultiply},
      {kArithmetic, Opcode::kMaximum},
      {kArithmetic, Opcode::kMinimum},
      {kArithmetic, Opcode::kDivide},
      {kArithmetic, Opcode::kRemainder},
      {kInteger, Opcode::kNegate},
      {kInteger, Opcode::kAbs},
      {kInteger, Opcode::kSign},
      {kInteger, Opcode::kNot},
      {kInteger, Opcode::kPopulationCount},
      {kInteger, Opcode::kCountLeadingZeros},
      {kInteger, Opcode::kAdd},
      {kInteger, Opcode::kSubtract},
      {kInteger, Opcode::kMultiply},
      {kInteger, Opcode::kMaximum},
      {kInteger, Opcode::kMinimum},
      {kInteger, Opcode::kDivide},
      {kInteger, Opcode::kRemainder},
      {kInteger, Opcode::kAnd},
      {kInteger, Opcode::kOr},
      {kInteger, Opcode::kXor},
      {kInteger, Opcode::kShiftLeft},
      {kInteger, Opcode::kShiftRightArithmetic},
      {kInteger, Opcode::kShiftRightLogical},
      {&ProgramGenerator::StochasticConvert, Opcode::kStochasticConvert},
      {kPredicate, Opcode::kNot},
      {kPredicate, Opcode::kAnd},
      {kPredicate, Opcode::kOr},
      {kPredicate, Opcode::kXor}};
  const Kind& kind = kKinds[next_elementwise_++ % std::size(kKinds)];
  (this->*kind.append)(kind.opcode);
}

void ProgramGenerator::Unary(Opcode opcode) {
  const Known x = PickSplittable(kF32);
  if (opcode != Opcode::kReducePrecision) {
    Keep(builder_.Unary(opcode, x.value), opcode == Opcode::kIsFinite ? 1 : x.bound);
    return;
  }
  Keep(
      builder_.Append(
          {.opcode = opcode, .operands = {x.value}, .attributes = ReducePrecisionAttributes{6, 4}}),
      2 * x.bound);
}

void ProgramGenerator::Arithmetic(Opcode opcode) {
  Known x = PickSplittable(kF32);
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

void ProgramGenerator::Integer(Opcode opcode) {
  Value x = PickSplittable(kS32).value;
  // Counted only in positive numbers: XLA folds the bits of negative constants as 64-bit ones.
  if (opcode == Opcode::kPopulationCount || opcode == Opcode::kCountLeadingZeros) {
    x = builder_.Binary(Opcode::kMaximum, x, builder_.FullLike(x, 1));
  }
  const bool by_constant =
      opcode == Opcode::kDivide || opcode == Opcode::kRemainder || opcode == Opcode::kShiftLeft ||
      opcode == Opcode::kShiftRightArithmetic || opcode == Opcode::kShiftRightLogical;
  Value result;
  if (Family(opcode) == OpFamily::kUnary) {
    result = builder_.Unary(opcode, x);
  } else {
    const Value y = by_constant ? builder_.FullLike(x, 3) : PickLike(kS32, shape(x).dims).value;
    result = builder_.Binary(opcode, x, y);
  }
  Keep(result, 0x1p31);
  Keep(builder_.Binary(Opcode::kRemainder, result, builder_.FullLike(result, 13)), 13);
}

void ProgramGenerator::StochasticConvert(Opcode opcode) {
  const Value x = Bounded(PickSplittable(kF32), 64).value;
  const Value half = builder_.Binary(Opcode::kDivide, x, builder_.FullLike(x, 2));
  const Value bits =
      builder_.BitcastConvert(PickLike(kS32, shape(x).dims).value, ElementType::kU32);
  const Value rounded = builder_.Append(
      {.opcode = opcode, .operands = {half, bits}, .results = {{ElementType::kS8, shape(x).dims}}});
  Keep(builder_.Convert(rounded, kF32), 33);
}

void ProgramGenerator::Predicate(Opcode opcode) {
  const Value x = PickSplittable(kPred).value;
  Keep(opcode == Opcode::kNot ? builder_.Unary(opcode, x)
                              : builder_.Binary(opcode, x, PickLike(kPred, shape(x).dims).value),
       1);
}

void ProgramGenerator::Compare() {
  static constexpr CompareAttributes::Direction kDirections[] = {CompareAttributes::Direction::kEq,
                                                                 CompareAttributes::Direction::kLt,
                                                                 CompareAttributes::Direction::kGe};
  const ElementType type = Chance(70) ? kF32 : kS32;
  const Known x = Pick(type);
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
  switch (Below(8)) {
    case 0:
      Keep(builder_.Convert(x.value, kS32), x.bound);
      break;
    case 1:
      Keep(builder_.Convert(Bounded(Pick(kS32), kLimit).value, kF32), kLimit);
      break;
    case 2:
      Keep(builder_.Convert(Pick(kPred).value, kF32), 1);
      break;
    case 3: {
      const Value narrow = builder_.Convert(Bounded(x, 8).value, ElementType::kF8E4M3FN);
      Keep(builder_.Convert(narrow, kF32), 8);
      break;
    }
    case 4:
    case 5:
      Keep(builder_.Convert(builder_.Convert(x.value, ElementType::kBF16), kF32), x.bound * 1.01);
      break;
    default: {
      const Value wide = builder_.Convert(x.value, ElementType::kF64);
      Keep(builder_.Convert(builder_.Binary(Opcode::kAdd, wide, wide), kF32), x.bound * 2);
    }
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

void ProgramGenerator::Inexact() {
  static constexpr Opcode kSmall[] = {Opcode::kExponential, Opcode::kExponentialMinusOne,
                                      Opcode::kTanh,        Opcode::kLogistic,
                                      Opcode::kSine,        Opcode::kCosine,
                                      Opcode::kTan,         Opcode::kErf,
                                      Opcode::kCbrt};
  static constexpr Opcode kPositive[] = {Opcode::kLog, Opcode::kLogPlusOne, Opcode::kSqrt,
                                         Opcode::kRsqrt};
  static constexpr Opcode kBinary[] = {Opcode::kPower, Opcode::kDivide, Opcode::kAtan2};
  constexpr size_t kNumSmall = std::size(kSmall), kNumUnary = kNumSmall + std::size(kPositive);
  const size_t kind = next_inexact_++ % (kNumUnary + std::size(kBinary));
  const Known x = Bounded(PickSplittable(kF32), 4);
  if (kind < kNumSmall) {
    const Value small = builder_.Binary(Opcode::kDivide, x.value, builder_.FullLike(x.value, 8));
    inexact_.push_back({builder_.Unary(kSmall[kind], small)});
    return;
  }
  const Value square = builder_.Binary(Opcode::kMultiply, x.value, x.value);
  const Value positive = builder_.Binary(Opcode::kAdd, square, builder_.FullLike(square, 1));
  if (kind < kNumUnary) {
    inexact_.push_back({builder_.Unary(kPositive[kind - kNumSmall], positive)});
    return;
  }
  const Value three = builder_.FullLike(positive, 3);
  inexact_.push_back({builder_.Binary(kBinary[kind - kNumUnary], positive, three)});
}

}  // namespace minka
