#include <algorithm>
#include <cmath>

#include "tests/support/program_generator.h"

namespace minka {

void ProgramGenerator::UnusualDot() {
  switch (Below(3)) {
    case 0: {
      Known x = Pick(kF32, 2);
      const Dims dims = shape(x.value).dims;
      Known y = PickLike(kF32, {dims[1], dims[0]});
      BoundFactors(x, y, static_cast<double>(dims[0] * dims[1]));
      Keep(builder_.Dot(x.value, y.value, {{0, 1}, {1, 0}, {}, {}}),
           x.bound * y.bound * static_cast<double>(dims[0] * dims[1]));
      return;
    }
    case 1: {
      Known x = Pick(kF32), y = Pick(kF32);
      if (Product(shape(x.value).dims) * Product(shape(y.value).dims) > kMaxElements) return;
      if (rank(x) + rank(y) > 4) return;
      BoundFactors(x, y, 1);
      Keep(builder_.Dot(x.value, y.value, {}), x.bound * y.bound);
      return;
    }
    default: {
      const Known x = Pick(kS32, 1);
      const Dims dims = shape(x.value).dims;
      const Known y = PickLike(kS32, {dims.back(), 4});
      const DotAttributes dot{{static_cast<int64_t>(dims.size()) - 1}, {0}, {}, {}};
      Keep(builder_.Convert(builder_.Dot(x.value, y.value, dot, ElementType::kS64), kS32), 0x1p31);
    }
  }
}

void ProgramGenerator::Dot() {
  if (Chance(15)) return UnusualDot();
  Known x = Pick(kF32, 1);
  const Dims dims = shape(x.value).dims;
  DotAttributes dot;
  const int64_t contracting = Below(rank(x));
  const bool with_batch = rank(x) >= 2 && Chance(30);
  const int64_t batch = (contracting + 1) % rank(x);
  Dims other;
  if (with_batch) other.push_back(dims[batch]);
  other.push_back(dims[contracting]);
  if (rank(x) < 3 || with_batch) other.push_back(RandomDims(1)[0]);
  Known y = PickLike(kF32, other);
  dot.lhs_contracting = {contracting};
  dot.rhs_contracting = {with_batch ? 1 : 0};
  if (with_batch) {
    dot.lhs_batch = {batch};
    dot.rhs_batch = {0};
  }
  const double limit = std::sqrt(kLimit / static_cast<double>(dims[contracting]));
  x = Bounded(x, std::floor(limit));
  y = Bounded(y, std::floor(limit));
  Keep(builder_.Dot(x.value, y.value, dot),
       x.bound * y.bound * static_cast<double>(dims[contracting]));
}

void ProgramGenerator::BoundFactors(Known& x, Known& y, double count) {
  const double limit = std::floor(std::sqrt(kLimit / count));
  x = Bounded(x, limit);
  y = Bounded(y, limit);
}

ProgramGenerator::Known ProgramGenerator::InitialValue() {
  if (Chance(30)) return {builder_.Scalar(kF32, 0), 0};
  return Bounded(PickLike(kF32, {}), 4096);
}

void ProgramGenerator::Reduce() {
  static constexpr Opcode kReducers[] = {Opcode::kAdd, Opcode::kMaximum, Opcode::kMinimum};
  Known x = PickSplittable(kF32);
  const Opcode reducer = OneOf(kReducers);
  Dims reduced;
  double count = 1;
  for (int64_t dim = 0; dim < rank(x); ++dim) {
    if (!Chance(50)) continue;
    reduced.push_back(dim);
    count *= static_cast<double>(shape(x.value).dims[dim]);
  }
  if (reducer == Opcode::kAdd) x = Bounded(x, std::floor((kLimit - 4096) / count));
  const Known init = InitialValue();
  Keep(builder_.Reduce(x.value, init.value, reduced, reducer),
       std::max(x.bound, init.bound) + x.bound * count);
}

void ProgramGenerator::ReduceOther() {
  static constexpr Opcode kReducers[] = {Opcode::kAnd, Opcode::kOr, Opcode::kMultiply,
                                         Opcode::kAdd};
  const Opcode reducer = OneOf(kReducers);
  const ElementType type = reducer == Opcode::kAnd || reducer == Opcode::kOr ? kPred : kS32;
  const Known x = PickSplittable(type);
  const int64_t dim = Below(rank(x));
  const Value init = PickLike(type, {}).value;
  Keep(builder_.Reduce(x.value, init, {dim}, reducer), type == kPred ? 1 : 0x1p31);
}

void ProgramGenerator::Sort() {
  const Known x = Pick(kF32, 1);
  ComputationBuilder less = target_.AddComputation("less");
  const Value a = less.Parameter({kF32, {}}, "a");
  const Value b = less.Parameter({kF32, {}}, "b");
  less.SetResults({less.Compare(CompareAttributes::Direction::kLt, a, b)});
  Keep(builder_.Append({.opcode = Opcode::kSort,
                        .operands = {x.value},
                        .attributes = DimensionsAttributes{{Below(rank(x))}, true},
                        .called = {target_.id(less)}}),
       x.bound);
}

void ProgramGenerator::Argmax() {
  const Known x = Pick(kF32, 1);
  const int64_t dim = Below(rank(x));
  ComputationBuilder reducer = target_.AddComputation("argmax");
  const Value a = reducer.Parameter({kF32, {}}, "a"), i = reducer.Parameter({kS32, {}}, "i");
  const Value b = reducer.Parameter({kF32, {}}, "b"), j = reducer.Parameter({kS32, {}}, "j");
  const Value equal = reducer.Compare(CompareAttributes::Direction::kEq, a, b);
  const Value before = reducer.Compare(CompareAttributes::Direction::kLt, i, j);
  const Value larger = reducer.Compare(CompareAttributes::Direction::kGt, a, b);
  const Value first =
      reducer.Binary(Opcode::kOr, larger, reducer.Binary(Opcode::kAnd, equal, before));
  reducer.SetResults({reducer.Select(first, a, b), reducer.Select(first, i, j)});
  const Value places = builder_.Iota({kS32, shape(x.value).dims}, dim);
  const Value reduced = builder_.Append(
      {.opcode = Opcode::kReduce,
       .operands = {x.value, places, builder_.Scalar(kF32, -kLimit), builder_.Scalar(kS32, 0)},
       .attributes = DimensionsAttributes{{dim}},
       .called = {target_.id(reducer)}});
  Keep({reduced.instruction, 0}, x.bound);
  Keep({reduced.instruction, 1}, 16);
}

void ProgramGenerator::SortPairs() {
  const Known keys = Pick(kF32, 1);
  const Known values = PickLike(kS32, shape(keys.value).dims);
  ComputationBuilder less = target_.AddComputation("less");
  const Value a = less.Parameter({kF32, {}}, "a"), b = less.Parameter({kF32, {}}, "b");
  less.Parameter({kS32, {}}, "i");
  less.Parameter({kS32, {}}, "j");
  less.SetResults({less.Compare(CompareAttributes::Direction::kLt, a, b)});
  const Value sorted =
      builder_.Append({.opcode = Opcode::kSort,
                       .operands = {keys.value, values.value},
                       .attributes = DimensionsAttributes{{Below(rank(keys))}, true},
                       .called = {target_.id(less)}});
  Keep({sorted.instruction, 0}, keys.bound);
  Keep({sorted.instruction, 1}, values.bound);
}

void ProgramGenerator::TopK() {
  const Known x = Pick(kF32, 1);
  const int64_t k = Between(1, std::min<int64_t>(4, shape(x.value).dims.back()));
  const Value top = builder_.Append(
      {.opcode = Opcode::kTopK, .operands = {x.value}, .attributes = TopKAttributes{.k = k}});
  Keep({top.instruction, 0}, x.bound);
}

}  // namespace minka
