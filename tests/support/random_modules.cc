#include "tests/support/random_modules.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <optional>
#include <random>
#include <utility>

#include "fmt/format.h"
#include "minka/base/check.h"
#include "minka/ir/builder.h"
#include "minka/ir/simplify.h"
#include "minka/ir/window.h"

namespace minka {
namespace {

constexpr double kLimit = 1 << 22;  // magnitudes stay below
constexpr int64_t kMaxElements = 2048;
constexpr ElementType kF32 = ElementType::kF32;
constexpr ElementType kS32 = ElementType::kS32;
constexpr ElementType kPred = ElementType::kPred;

using Dims = std::vector<int64_t>;

// A value and a bound on its elements' magnitude, which holds for every partial sum of it, too.
struct Known {
  Value value;
  double bound = 1;
};

int64_t Product(const Dims& dims) {
  return std::accumulate(dims.begin(), dims.end(), int64_t{1}, std::multiplies<>());
}

Literal IntegerLiteral(const Shape& shape, const std::vector<int64_t>& values) {
  std::string bytes;
  for (const int64_t value : values) {
    bytes += *ScalarLiteral(shape.type, static_cast<double>(value)).bytes;
  }
  return {shape, std::make_shared<const std::string>(std::move(bytes))};
}

class Generator {
 public:
  Generator(uint64_t seed, const RandomProgramOptions& options)
      : options_(options), engine_(seed), target_("random"), builder_(target_.Entry()) {}

  RandomProgram Run() {
    AddParameter(kF32, RandomDims(2));
    AddParameter(kF32, RandomDims(2));
    AddParameter(kF32, RandomDims(3));
    AddParameter(kF32, RandomDims(1));
    AddParameter(kS32, RandomDims(1));
    AddParameter(kPred, RandomDims(2));
    for (int i = 0; i < options_.num_operations; ++i) Step();
    return Finish();
  }

 private:
  // ---- drawing

  int64_t Below(int64_t limit) { return static_cast<int64_t>(engine_() % uint64_t(limit)); }
  int64_t Between(int64_t low, int64_t high) { return low + Below(high - low + 1); }
  bool Chance(int percent) { return Below(100) < percent; }
  template <typename T, size_t kSize>
  T OneOf(const T (&items)[kSize]) {
    return items[Below(kSize)];
  }

  Dims RandomDims(int rank) {
    static constexpr int64_t kSizes[] = {2, 4, 8, 8, 12, 16, 3};
    Dims dims;
    while (static_cast<int>(dims.size()) < rank) {
      dims.push_back(OneOf(kSizes));
      if (Product(dims) > kMaxElements) dims.back() = 2;
    }
    return dims;
  }

  Known Keep(Value value, double bound) {
    known_.push_back({value, bound});
    return known_.back();
  }

  const Shape& shape(Value value) const { return builder_.shape(value); }
  int rank(const Known& x) const { return shape(x.value).rank(); }

  Known AddParameter(ElementType type, const Dims& dims) {
    const int64_t low = type == kPred ? 0 : type == kS32 ? -3 : -4;
    const int64_t high = type == kPred ? 1 : type == kS32 ? 17 : 4;
    std::vector<int64_t> values(static_cast<size_t>(Product(dims)));
    for (int64_t& value : values) value = Between(low, high);
    inputs_.push_back(IntegerLiteral({type, dims}, values));
    const std::string name = fmt::format("p{}", inputs_.size() - 1);
    return Keep(builder_.Parameter({type, dims}, name), static_cast<double>(high));
  }

  // A known value of the type, later ones more often.
  Known Pick(ElementType type, int min_rank = 0) {
    for (int attempt = 0; attempt < 12; ++attempt) {
      const auto size = static_cast<int64_t>(known_.size());
      const Known& x = known_[std::max(Below(size), Below(size))];
      if (shape(x.value).type == type && rank(x) >= min_rank) return x;
    }
    return Create(type, RandomDims(std::max(min_rank, 1)));
  }

  // A value of that shape, known or made.
  Known PickLike(ElementType type, const Dims& dims) {
    std::vector<Known> same;
    for (const Known& x : known_) {
      if (shape(x.value) == Shape{type, dims}) same.push_back(x);
    }
    if (!same.empty() && Chance(80)) return same[Below(static_cast<int64_t>(same.size()))];
    return Create(type, dims);
  }

  Known Create(ElementType type, const Dims& dims) {
    if (inputs_.size() < 12 && Chance(40)) return AddParameter(type, dims);
    if (type != kPred && !dims.empty() && Chance(30)) {
      const int64_t dim = Below(static_cast<int64_t>(dims.size()));
      return Keep(builder_.Iota({type, dims}, dim), static_cast<double>(dims[dim]));
    }
    if (Chance(50)) {
      const Value scalar = builder_.Scalar(type, static_cast<double>(Below(2)));
      return Keep(dims.empty() ? scalar : builder_.Broadcast(scalar, dims, {}), 1);
    }
    std::vector<int64_t> values(static_cast<size_t>(Product(dims)));
    for (int64_t& value : values) value = type == kPred ? Below(2) : Between(-3, 3);
    return Keep(builder_.Constant(IntegerLiteral({type, dims}, values)), 3);
  }

  // The value, clamped if its bound is larger.
  Known Bounded(Known x, double limit) {
    if (x.bound <= limit) return x;
    const Value low = builder_.FullLike(x.value, -limit);
    const Value high = builder_.FullLike(x.value, limit);
    return Keep(builder_.Clamp(low, x.value, high), limit);
  }

  // ---- operations

  void Step() {
    using Method = void (Generator::*)();
    static constexpr Method kMethods[] = {&Generator::Dot,
                                          &Generator::Dot,
                                          &Generator::Dot,
                                          &Generator::Reduce,
                                          &Generator::Reduce,
                                          &Generator::Arithmetic,
                                          &Generator::Arithmetic,
                                          &Generator::Arithmetic,
                                          &Generator::Unary,
                                          &Generator::Compare,
                                          &Generator::Select,
                                          &Generator::Clamp,
                                          &Generator::Convert,
                                          &Generator::Broadcast,
                                          &Generator::Broadcast,
                                          &Generator::Reshape,
                                          &Generator::Reshape,
                                          &Generator::Transpose,
                                          &Generator::Slice,
                                          &Generator::Pad,
                                          &Generator::Concatenate,
                                          &Generator::Reverse,
                                          &Generator::Create1,
                                          &Generator::DynamicSlice,
                                          &Generator::DynamicUpdateSlice,
                                          &Generator::Gather,
                                          &Generator::Gather,
                                          &Generator::Scatter,
                                          &Generator::Scatter,
                                          &Generator::Barrier,
                                          &Generator::While,
                                          &Generator::Sort,
                                          &Generator::Integer,
                                          &Generator::Predicate,
                                          &Generator::Map,
                                          &Generator::Convolution,
                                          &Generator::Convolution,
                                          &Generator::Convolution,
                                          &Generator::Pool,
                                          &Generator::Pool,
                                          &Generator::SelectAndScatter,
                                          &Generator::BatchNorm,
                                          &Generator::RandomBits,
                                          &Generator::Bitcast,
                                          &Generator::ReduceOther,
                                          &Generator::Conditional,
                                          &Generator::Argmax,
                                          &Generator::SortPairs,
                                          &Generator::TopK,
                                          &Generator::LoopWithCollectives,
                                          &Generator::ConditionalWithCollectives,
                                          &Generator::ComplexNumbers,
                                          &Generator::GatherVectors,
                                          &Generator::GatherWindows,
                                          &Generator::ScatterWindows};
    (this->*OneOf(kMethods))();
  }

  void Create1() { Create(Chance(70) ? kF32 : kS32, RandomDims(static_cast<int>(Between(1, 3)))); }

  void Unary() {
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

  void Arithmetic() {
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

  void Integer() {
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
      const bool counts =
          opcode == Opcode::kPopulationCount || opcode == Opcode::kCountLeadingZeros;
      result = builder_.Unary(opcode, counts ? positive : x.value);
    } else {
      const Opcode opcode = OneOf(kOpcodes);
      const bool by_constant = opcode == Opcode::kDivide || opcode == Opcode::kRemainder ||
                               opcode == Opcode::kShiftLeft ||
                               opcode == Opcode::kShiftRightArithmetic ||
                               opcode == Opcode::kShiftRightLogical;
      const Value y =
          by_constant ? builder_.FullLike(x.value, 3) : PickLike(kS32, shape(x.value).dims).value;
      result = builder_.Binary(opcode, x.value, y);
    }
    Keep(result, 0x1p31);
    Keep(builder_.Binary(Opcode::kRemainder, result, builder_.FullLike(result, 13)), 13);
  }

  void Predicate() {
    static constexpr Opcode kOpcodes[] = {Opcode::kAnd, Opcode::kOr, Opcode::kXor};
    const Known x = Pick(kPred);
    if (Chance(25)) {
      Keep(builder_.Unary(Opcode::kNot, x.value), 1);
      return;
    }
    Keep(builder_.Binary(OneOf(kOpcodes), x.value, PickLike(kPred, shape(x.value).dims).value), 1);
  }

  void Compare() {
    static constexpr CompareAttributes::Direction kDirections[] = {
        CompareAttributes::Direction::kEq, CompareAttributes::Direction::kLt,
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

  void Select() {
    const Known x = Pick(kF32);
    const Known y = PickLike(kF32, shape(x.value).dims);
    const Known predicate = PickLike(kPred, Chance(80) ? shape(x.value).dims : Dims());
    Keep(builder_.Select(predicate.value, x.value, y.value), std::max(x.bound, y.bound));
  }

  void Clamp() {
    const Known x = Pick(kF32);
    const Known low = PickLike(kF32, Chance(50) ? shape(x.value).dims : Dims());
    const Value high = builder_.FullLike(low.value, 5);
    Keep(builder_.Clamp(low.value, x.value, high), std::max({x.bound, low.bound, 5.0}));
  }

  void Convert() {
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

  void Bitcast() {
    const Known x = Pick(kS32);
    const Value bits = builder_.BitcastConvert(x.value, ElementType::kU32);
    const Value third = builder_.Binary(Opcode::kDivide, bits, builder_.FullLike(bits, 3));
    Keep(builder_.BitcastConvert(third, kS32), 0x1p31);
  }

  void Broadcast() {
    const Known x = Pick(kF32);
    const Dims old = shape(x.value).dims;
    if (old.size() > 2 || Product(old) > kMaxElements / 4) return;
    Dims dims = old, places(old.size());
    std::iota(places.begin(), places.end(), 0);
    const int64_t at = Below(static_cast<int64_t>(old.size()) + 1);
    dims.insert(dims.begin() + at, Chance(50) ? 2 : 4);
    for (int64_t& place : places) place += place >= at ? 1 : 0;
    Keep(builder_.Broadcast(x.value, dims, places), x.bound);
  }

  void Reshape() {
    const Known x = Pick(Chance(85) ? kF32 : kS32, 1);
    int64_t left = Product(shape(x.value).dims);
    Dims dims;
    while (left > 1 && dims.size() < 3) {
      std::vector<int64_t> divisors;
      for (int64_t d = 1; d <= left; ++d) {
        if (left % d == 0) divisors.push_back(d);
      }
      dims.push_back(divisors[Below(static_cast<int64_t>(divisors.size()))]);
      left /= dims.back();
    }
    dims.push_back(left);
    Keep(builder_.Reshape(x.value, dims), x.bound);
  }

  void Transpose() {
    const Known x = Pick(kF32, 2);
    Dims permutation(static_cast<size_t>(rank(x)));
    std::iota(permutation.begin(), permutation.end(), 0);
    std::shuffle(permutation.begin(), permutation.end(), engine_);
    Keep(builder_.Transpose(x.value, permutation), x.bound);
  }

  void Slice() {
    const Known x = Pick(kF32, 1);
    const Dims& dims = shape(x.value).dims;
    SliceAttributes slice{Dims(dims.size(), 0), dims, Dims(dims.size(), 1)};
    const int64_t dim = Below(rank(x));
    slice.starts[dim] = Below(dims[dim]);
    slice.limits[dim] = Between(slice.starts[dim] + 1, dims[dim]);
    slice.strides[dim] = Between(1, 2);
    Keep(builder_.Slice(x.value, slice), x.bound);
  }

  void Pad() {
    const Known x = Pick(kF32, 1);
    const size_t num_dims = shape(x.value).dims.size();
    PadAttributes pad{Dims(num_dims, 0), Dims(num_dims, 0), Dims(num_dims, 0)};
    const int64_t dim = Below(rank(x));
    if (Product(shape(x.value).dims) / shape(x.value).dims[dim] > 256) return;
    pad.low[dim] = Between(0, 2);
    pad.high[dim] = Between(0, 2);
    pad.interior[dim] = Between(0, 1);
    const Value padding = Chance(50) ? builder_.Scalar(kF32, 0) : PickLike(kF32, {}).value;
    Keep(builder_.Pad(x.value, padding, pad), std::max(x.bound, kLimit / 8));
  }

  void Concatenate() {
    const Known x = Pick(kF32, 1);
    if (Product(shape(x.value).dims) > kMaxElements / 2) return;
    const Known y = PickLike(kF32, shape(x.value).dims);
    const Value both[] = {x.value, y.value};
    Keep(builder_.Concatenate(both, Below(rank(x))), std::max(x.bound, y.bound));
  }

  void Reverse() {
    const Known x = Pick(kF32, 1);
    Instruction reverse{.opcode = Opcode::kReverse, .operands = {x.value}};
    reverse.attributes = DimensionsAttributes{{Below(rank(x))}};
    Keep(builder_.Append(std::move(reverse)), x.bound);
  }

  // Several contracting dimensions, none (an outer product), or integers with a wider sum.
  void UnusualDot() {
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
        Keep(builder_.Convert(builder_.Dot(x.value, y.value, dot, ElementType::kS64), kS32),
             0x1p31);
      }
    }
  }

  void Dot() {
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

  // A window over a dimension: often one of the forms that can be split, else any.
  WindowDim RandomWindow(int64_t base) {
    switch (Below(7)) {
      case 0:
        return {.size = base};
      case 1:
        return base % 2 == 0 ? WindowDim{.size = 2, .stride = 2} : WindowDim{};
      case 2:
        return base % 2 == 0 ? WindowDim{.size = 1, .stride = 2} : WindowDim{};
      case 3:
        return {.size = 3, .stride = Between(1, 2), .padding_low = 1, .padding_high = 1};
      case 4:
        return {.size = Between(1, 3),
                .stride = Between(1, 2),
                .padding_low = Between(0, 4),
                .padding_high = Between(0, 4),
                .window_dilation = Between(1, 2)};
      default:
        return {};
    }
  }

  // Those of a convolution may also spread, reverse and crop.
  WindowDim RandomKernelWindow(int64_t base) {
    switch (Below(6)) {
      case 0:
        return {
            .size = 2, .padding_low = 1, .padding_high = 1, .base_dilation = 2, .reversal = true};
      case 1:
        return {.padding_high = 1, .base_dilation = 2};
      case 2:
        return base % 2 == 0 && base > 2
                   ? WindowDim{.size = base / 2, .padding_high = -1, .window_dilation = 2}
                   : WindowDim{.size = base};
      case 3:
        return {.size = 2,
                .stride = Between(1, 3),
                .padding_low = Between(0, 3),
                .padding_high = Between(0, 3),
                .window_dilation = Between(1, 3),
                .base_dilation = Between(1, 3),
                .reversal = Chance(50)};
      default:
        return RandomWindow(base);
    }
  }

  // Where dimension i of [batch, feature, spatial...] lies.
  Dims Places(size_t rank) {
    Dims places(rank);
    std::iota(places.begin(), places.end(), 0);
    for (size_t i = rank - 1; i > 0; --i) {
      std::swap(places[i], places[Below(static_cast<int64_t>(i) + 1)]);
    }
    return places;
  }

  // Sums of at most `count` products stay below the limit.
  void BoundFactors(Known& x, Known& y, double count) {
    const double limit = std::floor(std::sqrt(kLimit / count));
    x = Bounded(x, limit);
    y = Bounded(y, limit);
  }

  void Convolution() {
    Known x = Pick(kF32, 2);
    const Dims dims = shape(x.value).dims;
    const size_t num_spatial = dims.size() - 2;
    const Dims input = Places(dims.size()), kernel = Places(dims.size()),
               output = Places(dims.size());
    ConvolutionAttributes a{.input_batch = input[0],
                            .input_feature = input[1],
                            .kernel_input_feature = kernel[0],
                            .kernel_output_feature = kernel[1],
                            .output_batch = output[0],
                            .output_feature = output[1]};
    const int64_t batch = dims[input[0]], features = dims[input[1]];
    const int64_t groups = OneOf<int64_t>({1, 1, 1, 2, 4, 8});
    if (groups > 1 && Chance(50) && features % groups == 0) a.feature_group_count = groups;
    if (groups > 1 && a.feature_group_count == 1 && batch % groups == 0) {
      a.batch_group_count = groups;
    }
    Dims kernel_dims(dims.size());
    kernel_dims[kernel[0]] = features / a.feature_group_count;
    kernel_dims[kernel[1]] =
        std::max(a.feature_group_count, a.batch_group_count) * OneOf<int64_t>({1, 2, 4});
    double count = static_cast<double>(features);
    for (size_t i = 0; i < num_spatial; ++i) {
      WindowDim window = RandomKernelWindow(dims[input[2 + i]]);
      // On one device XLA computed such a convolution wrongly where only a fusion read it.
      if (a.feature_group_count > 1) window.base_dilation = 1;
      if (NumWindowPositions(dims[input[2 + i]], window).value_or(0) == 0) return;
      a.window.push_back(window);
      a.input_spatial.push_back(input[2 + i]);
      a.kernel_spatial.push_back(kernel[2 + i]);
      a.output_spatial.push_back(output[2 + i]);
      kernel_dims[kernel[2 + i]] = window.size;
      count *= static_cast<double>(window.size);
    }
    if (Product(kernel_dims) > kMaxElements) return;
    Known y = PickLike(kF32, kernel_dims);
    BoundFactors(x, y, count);
    const Value result = builder_.Convolution(x.value, y.value, a);
    if (Product(shape(result).dims) > kMaxElements) return;
    Keep(result, x.bound * y.bound * count);
  }

  std::vector<WindowDim> RandomWindows(const Dims& dims, double& count) {
    std::vector<WindowDim> window;
    for (const int64_t dim : dims) {
      window.push_back(RandomWindow(dim));
      if (NumWindowPositions(dim, window.back()).value_or(0) == 0) window.back() = {};
      count *= static_cast<double>(window.back().size);
    }
    return window;
  }

  void Pool() {
    Known x = Pick(kF32, 1);
    const Opcode reducer = OneOf({Opcode::kAdd, Opcode::kAdd, Opcode::kMaximum, Opcode::kMinimum});
    double count = 1;
    std::vector<WindowDim> window = RandomWindows(shape(x.value).dims, count);
    if (Chance(15)) {  // a cumulative sum
      const int64_t dim = Below(rank(x));
      const int64_t size = shape(x.value).dims[dim];
      window[dim] = {.size = size, .padding_low = size - 1};
      count *= static_cast<double>(size);
    }
    if (reducer == Opcode::kAdd) x = Bounded(x, std::floor((kLimit - 4096) / count));
    const Known init =
        Chance(50) ? Known{builder_.Scalar(kF32, 0), 0} : Bounded(PickLike(kF32, {}), 4096);
    const Value result = builder_.ReduceWindow(x.value, init.value, window, reducer);
    if (Product(shape(result).dims) > kMaxElements) return;
    Keep(result, init.bound + x.bound * (reducer == Opcode::kAdd ? count : 1));
  }

  void SelectAndScatter() {
    const Known x = Pick(kF32, 1);
    const Dims dims = shape(x.value).dims;
    double count = 1;
    std::vector<WindowDim> window = RandomWindows(dims, count);
    Dims positions;
    for (size_t i = 0; i < dims.size(); ++i) {
      window[i].window_dilation = 1;  // XLA refuses dilations here
      positions.push_back(NumWindowPositions(dims[i], window[i]).value_or(0));
    }
    if (Product(positions) == 0 || Product(positions) > kMaxElements) return;
    const Known source = Bounded(PickLike(kF32, positions), std::floor((kLimit - 4096) / count));
    const Known init =
        Chance(50) ? Known{builder_.Scalar(kF32, 0), 0} : Bounded(PickLike(kF32, {}), 4096);
    const auto select =
        Chance(50) ? CompareAttributes::Direction::kGe : CompareAttributes::Direction::kLe;
    Keep(builder_.SelectAndScatterAdd(x.value, source.value, init.value, window, select),
         init.bound + source.bound * count);
  }

  // Inexact; its results are results of the program.
  void BatchNorm() {
    const Known x = Bounded(Pick(kF32, 2), 64);
    const Dims dims = shape(x.value).dims;
    const int64_t feature = Below(rank(x));
    const auto vector = [&] { return Bounded(PickLike(kF32, {dims[feature]}), 8).value; };
    const Opcode opcode =
        OneOf({Opcode::kBatchNormTraining, Opcode::kBatchNormInference, Opcode::kBatchNormGrad});
    Instruction norm{.opcode = opcode,
                     .operands = {x.value, vector()},
                     .attributes = BatchNormAttributes{1, feature}};
    norm.operands.push_back(vector());
    if (opcode != Opcode::kBatchNormTraining) {
      if (opcode == Opcode::kBatchNormInference) norm.operands.push_back(vector());
      const Value variance = vector();
      norm.operands.push_back(builder_.Unary(Opcode::kAbs, variance));
      if (opcode == Opcode::kBatchNormGrad) {
        norm.operands.push_back(Bounded(PickLike(kF32, dims), 64).value);
      }
    }
    const int32_t num_results = opcode == Opcode::kBatchNormInference ? 1 : 3;
    const Value first = builder_.Append(std::move(norm));
    for (int32_t i = 0; i < num_results; ++i) inexact_.push_back({first.instruction, i});
  }

  void Reduce() {
    static constexpr Opcode kReducers[] = {Opcode::kAdd, Opcode::kAdd, Opcode::kMaximum,
                                           Opcode::kMinimum};
    Known x = Pick(kF32, 1);
    const Opcode reducer = OneOf(kReducers);
    Dims reduced;
    double count = 1;
    for (int64_t dim = 0; dim < rank(x); ++dim) {
      if (!Chance(50)) continue;
      reduced.push_back(dim);
      count *= static_cast<double>(shape(x.value).dims[dim]);
    }
    if (reducer == Opcode::kAdd) x = Bounded(x, std::floor((kLimit - 4096) / count));
    const Known init =
        Chance(50) ? Known{builder_.Scalar(kF32, 0), 0} : Bounded(PickLike(kF32, {}), 4096);
    Keep(builder_.Reduce(x.value, init.value, reduced, reducer),
         std::max(x.bound, init.bound) + x.bound * count);
  }

  void ReduceOther() {
    const int kind = static_cast<int>(Below(4));
    const Known x = Pick(kind == 0 ? kPred : kS32, 1);
    const int64_t dim = Below(rank(x));
    if (kind == 0) {
      const bool all = Chance(50);
      Keep(builder_.Reduce(x.value, builder_.Scalar(kPred, all ? 1 : 0), {dim},
                           all ? Opcode::kAnd : Opcode::kOr),
           1);
      return;
    }
    static constexpr Opcode kReducers[] = {Opcode::kAdd, Opcode::kMaximum, Opcode::kMultiply};
    Keep(builder_.Reduce(x.value, builder_.Scalar(kS32, 3), {dim}, kReducers[kind - 1]), 0x1p31);
  }
  void DynamicSlice() {
    const Known x = Pick(kF32, 1);
    Dims sizes = shape(x.value).dims;
    const int64_t dim = Below(rank(x));
    sizes[dim] = Between(1, sizes[dim]);
    std::vector<Value> starts;
    for (int64_t i = 0; i < rank(x); ++i) starts.push_back(PickLike(kS32, {}).value);
    Keep(builder_.DynamicSlice(x.value, starts, sizes), x.bound);
  }

  void DynamicUpdateSlice() {
    const Known x = Pick(kF32, 1);
    Dims sizes = shape(x.value).dims;
    const int64_t dim = Below(rank(x));
    sizes[dim] = Between(1, sizes[dim]);
    const Known update = PickLike(kF32, sizes);
    std::vector<Value> starts;
    for (int64_t i = 0; i < rank(x); ++i) starts.push_back(PickLike(kS32, {}).value);
    Keep(builder_.DynamicUpdateSlice(x.value, update.value, starts),
         std::max(x.bound, update.bound));
  }

  // Indices with one component per vector; the last dimension holds vectors half of the time.
  Known Indices(int64_t& index_vector_dim) {
    Dims dims = RandomDims(static_cast<int>(Between(1, 2)));
    index_vector_dim = static_cast<int64_t>(dims.size());
    if (Product(dims) > 64) dims = {8};
    index_vector_dim = static_cast<int64_t>(dims.size());
    const bool with_vectors = Chance(50);
    Known indices = PickLike(kS32, dims);
    if (Chance(20)) indices.value = builder_.Convert(indices.value, ElementType::kS64);
    if (with_vectors) {
      dims.push_back(1);
      indices.value = builder_.Reshape(indices.value, dims);
    }
    return indices;
  }

  void Gather() {
    const Known table = Pick(kF32, 1);
    const Dims dims = shape(table.value).dims;
    const int64_t looked_up = Below(rank(table));
    GatherAttributes gather;
    const Known indices = Indices(gather.index_vector_dim);
    const int64_t num_batch = gather.index_vector_dim;
    gather.start_index_map = {looked_up};
    gather.slice_sizes = dims;
    gather.slice_sizes[looked_up] = 1;
    if (Chance(80)) gather.collapsed_slice_dims = {looked_up};
    const auto num_offsets = static_cast<int64_t>(dims.size() - gather.collapsed_slice_dims.size());
    const bool offsets_first = Chance(30);
    for (int64_t i = 0; i < num_offsets; ++i) {
      gather.offset_dims.push_back(offsets_first ? i : num_batch + i);
    }
    if (Product(dims) / dims[looked_up] > 128) return;
    Keep(builder_.Gather(table.value, indices.value, gather), table.bound);
  }

  void Scatter() {
    Known table = Pick(kF32, 1);
    const Dims dims = shape(table.value).dims;
    const int64_t looked_up = Below(rank(table));
    ScatterAttributes scatter;
    const Known indices = Indices(scatter.index_vector_dim);
    Dims update_dims(shape(indices.value).dims.begin(),
                     shape(indices.value).dims.begin() + scatter.index_vector_dim);
    const double count = static_cast<double>(Product(update_dims));
    scatter.scatter_dims_to_operand_dims = {looked_up};
    scatter.inserted_window_dims = {looked_up};
    for (int64_t dim = 0; dim < rank(table); ++dim) {
      if (dim == looked_up) continue;
      scatter.update_window_dims.push_back(static_cast<int64_t>(update_dims.size()));
      update_dims.push_back(dims[dim]);
    }
    if (Product(update_dims) > kMaxElements) return;
    Known updates = PickLike(kF32, update_dims);
    const bool adds = Chance(75);
    if (adds) {
      table = Bounded(table, kLimit / 4);
      updates = Bounded(updates, std::floor(kLimit / 2 / count));
    }
    Keep(builder_.Scatter(table.value, indices.value, updates.value, scatter,
                          adds ? Opcode::kAdd : Opcode::kMaximum),
         adds ? table.bound + updates.bound * count : std::max(table.bound, updates.bound));
  }

  void Barrier() {
    const Known x = Pick(kF32), y = Pick(kF32), z = Pick(kPred);
    const Value values[] = {x.value, y.value, z.value};
    const std::vector<Value> kept = builder_.OptBarrier(values);
    Keep(kept[0], x.bound);
    Keep(kept[1], y.bound);
    Keep(kept[2], 1);
  }

  // for (i = 0; i < 3; ++i) x += y + i.
  void While() {
    const Known x = Bounded(Pick(kF32), kLimit / 8);
    const Known y = Bounded(PickLike(kF32, shape(x.value).dims), kLimit / 8);
    const Shape counter{kS32, {}};
    ComputationBuilder body = target_.AddComputation("body");
    {
      const Value i = body.Parameter(counter, "i");
      const Value a = body.Parameter(shape(x.value), "x");
      const Value b = body.Parameter(shape(x.value), "y");
      const Value as_float = body.Convert(i, kF32);
      const Dims& dims = shape(x.value).dims;
      const Value spread = dims.empty() ? as_float : body.Broadcast(as_float, dims, {});
      const Value sum = body.Binary(Opcode::kAdd, body.Binary(Opcode::kAdd, a, b), spread);
      body.SetResults({body.Binary(Opcode::kAdd, i, body.Scalar(kS32, 1)), sum, b});
    }
    ComputationBuilder condition = target_.AddComputation("condition");
    {
      const Value i = condition.Parameter(counter, "i");
      condition.Parameter(shape(x.value), "x");
      condition.Parameter(shape(x.value), "y");
      condition.SetResults(
          {condition.Compare(CompareAttributes::Direction::kLt, i, condition.Scalar(kS32, 3))});
    }
    Instruction loop{.opcode = Opcode::kWhile,
                     .operands = {builder_.Scalar(kS32, 0), x.value, y.value},
                     .called = {target_.id(body), target_.id(condition)}};
    const Value first = builder_.Append(std::move(loop));
    Keep({first.instruction, 1}, x.bound + 3 * y.bound + 3);
  }

  void Conditional() {
    const Known predicate = PickLike(kPred, {});
    const Known x = Pick(kF32);
    std::vector<ComputationId> branches;
    for (const Opcode opcode : {Opcode::kNegate, Opcode::kAbs}) {
      ComputationBuilder branch = target_.AddComputation("branch");
      const Value argument = branch.Parameter(shape(x.value), "x");
      branch.SetResults({branch.Unary(opcode, argument)});
      branches.push_back(target_.id(branch));
    }
    Keep(builder_.Append({.opcode = Opcode::kConditional,
                          .operands = {predicate.value, x.value, x.value},
                          .called = branches}),
         x.bound);
  }

  void Sort() {
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

  // The largest element along a dimension with its place, the first one of equals.
  void Argmax() {
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

  // Values sorted, stably, by keys.
  void SortPairs() {
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

  void TopK() {
    const Known x = Pick(kF32, 1);
    const int64_t k = Between(1, std::min<int64_t>(4, shape(x.value).dims.back()));
    const Value top = builder_.Append(
        {.opcode = Opcode::kTopK, .operands = {x.value}, .attributes = TopKAttributes{.k = k}});
    Keep({top.instruction, 0}, x.bound);
  }

  // What a recurrent network does: for (i = 0; i < 3; ++i) { sum += transpose(x) h; saved[i] = h;
  // h = clamp(h - rows of h summed) }.
  void LoopWithCollectives() {
    const Known x = Bounded(Pick(kF32, 2), 8);
    if (rank(x) != 2) return;
    const int64_t rows = shape(x.value).dims[0], columns = RandomDims(1)[0];
    const Known h = Bounded(PickLike(kF32, {rows, columns}), 8);
    const Dims sum_dims = {shape(x.value).dims[1], columns};
    const Known sum = Bounded(PickLike(kF32, sum_dims), kLimit / 8);
    const Shape shapes[] = {
        {kS32, {}}, {kF32, sum_dims}, {kF32, {3, rows, columns}}, shape(h.value), shape(x.value)};
    const auto add_parameters = [&](ComputationBuilder& called) {
      std::vector<Value> values;
      for (const Shape& carried : shapes) {
        values.push_back(called.Parameter(carried, fmt::format("c{}", values.size())));
      }
      return values;
    };
    ComputationBuilder body = target_.AddComputation("body");
    const std::vector<Value> in = add_parameters(body);
    const Value product = body.Dot(in[4], in[3], {{0}, {0}, {}, {}});
    const Value zero = body.Scalar(kS32, 0);
    const Value starts[] = {in[0], zero, zero};
    const Value saved =
        body.DynamicUpdateSlice(in[2], body.Reshape(in[3], {1, rows, columns}), starts);
    const int64_t dim = Below(2);
    const Value total = body.Reduce(in[3], body.Scalar(kF32, 0), {dim}, Opcode::kAdd);
    const Value spread = body.Broadcast(total, {rows, columns}, {1 - dim});
    const Value next = body.Binary(Opcode::kSubtract, in[3], spread);
    body.SetResults({body.Binary(Opcode::kAdd, in[0], body.Scalar(kS32, 1)),
                     body.Binary(Opcode::kAdd, in[1], product), saved,
                     body.Clamp(body.FullLike(next, -8), next, body.FullLike(next, 8)), in[4]});
    ComputationBuilder condition = target_.AddComputation("condition");
    const Value count = add_parameters(condition)[0];
    condition.SetResults(
        {condition.Compare(CompareAttributes::Direction::kLt, count, condition.Scalar(kS32, 3))});
    const Value stack = builder_.Broadcast(builder_.Scalar(kF32, 0), shapes[2].dims, {});
    const Value loop =
        builder_.Append({.opcode = Opcode::kWhile,
                         .operands = {builder_.Scalar(kS32, 0), sum.value, stack, h.value, x.value},
                         .called = {target_.id(body), target_.id(condition)}});
    Keep({loop.instruction, 1}, sum.bound + 3 * 64 * static_cast<double>(rows));
    Keep({loop.instruction, 2}, 8);
    Keep({loop.instruction, 3}, 8);
  }

  // One branch sums over a dimension, the other one does not.
  void ConditionalWithCollectives() {
    const Known x = Bounded(Pick(kF32, 2), 4096);
    if (rank(x) != 2) return;
    const Dims dims = shape(x.value).dims;
    const int64_t dim = Below(2);
    ComputationBuilder centred = target_.AddComputation("centred");
    const Value a = centred.Parameter(shape(x.value), "x");
    const Value total = centred.Reduce(a, centred.Scalar(kF32, 0), {dim}, Opcode::kAdd);
    centred.SetResults(
        {centred.Binary(Opcode::kSubtract, a, centred.Broadcast(total, dims, {1 - dim})),
         centred.Dot(a, a, {{dim}, {dim}, {}, {}})});
    ComputationBuilder plain = target_.AddComputation("plain");
    const Value b = plain.Parameter(shape(x.value), "x");
    const int64_t other = dims[1 - dim];
    plain.SetResults(
        {plain.Unary(Opcode::kAbs, b), plain.Broadcast(plain.Scalar(kF32, 1), {other, other}, {})});
    const Known y = PickLike(kF32, dims);
    const Value number = builder_.Convert(PickLike(kPred, {}).value, kS32);
    const Known small = Bounded(x, 128);
    const Value first = builder_.Append({.opcode = Opcode::kConditional,
                                         .operands = {number, small.value, y.value},
                                         .called = {target_.id(centred), target_.id(plain)}});
    Keep({first.instruction, 0}, std::max(y.bound, 128 * 17.0));
    Keep({first.instruction, 1}, 128 * 128 * 16.0);
  }

  void ComplexNumbers() {
    const Known x = Bounded(Pick(kF32), 1000);
    const Known y = Bounded(PickLike(kF32, shape(x.value).dims), 1000);
    const Value number = builder_.Binary(Opcode::kComplex, x.value, y.value);
    const Value squared = builder_.Binary(Opcode::kMultiply, number, number);
    Keep(builder_.Unary(Opcode::kReal, squared), 2e6);
    Keep(builder_.Unary(Opcode::kImag, builder_.Unary(Opcode::kNegate, squared)), 2e6);
  }

  // Index vectors of two components into the first two dimensions.
  void GatherVectors() {
    const Known table = Pick(kF32, 2);
    const Dims dims = shape(table.value).dims;
    const Known indices = PickLike(kS32, {8, 2});
    GatherAttributes gather{.collapsed_slice_dims = {0, 1},
                            .start_index_map = {0, 1},
                            .slice_sizes = dims,
                            .index_vector_dim = 1};
    gather.slice_sizes[0] = gather.slice_sizes[1] = 1;
    for (int64_t i = 2; i < rank(table); ++i) gather.offset_dims.push_back(i - 1);
    Keep(builder_.Gather(table.value, indices.value, gather), table.bound);
  }

  // Slices of several rows, all dimensions kept.
  void GatherWindows() {
    const Known table = Pick(kF32, 1);
    const Dims dims = shape(table.value).dims;
    const int64_t dim = Below(rank(table));
    GatherAttributes gather{.start_index_map = {dim}, .slice_sizes = dims, .index_vector_dim = 1};
    gather.slice_sizes[dim] = Between(1, dims[dim]);
    if (Product(gather.slice_sizes) > kMaxElements / 4) return;
    for (int64_t i = 0; i < rank(table); ++i) gather.offset_dims.push_back(i + 1);
    Keep(builder_.Gather(table.value, PickLike(kS32, {4}).value, gather), table.bound);
  }

  // Adds windows of several rows.
  void ScatterWindows() {
    const Known table = Bounded(Pick(kF32, 1), kLimit / 4);
    const Dims dims = shape(table.value).dims;
    const int64_t dim = Below(rank(table));
    ScatterAttributes scatter{.scatter_dims_to_operand_dims = {dim}, .index_vector_dim = 1};
    Dims update_dims = {4};
    for (int64_t i = 0; i < rank(table); ++i) {
      scatter.update_window_dims.push_back(i + 1);
      update_dims.push_back(i == dim ? Between(1, dims[i]) : dims[i]);
    }
    if (Product(update_dims) > kMaxElements) return;
    const Known updates = Bounded(PickLike(kF32, update_dims), kLimit / 16);
    Keep(builder_.Scatter(table.value, PickLike(kS32, {4}).value, updates.value, scatter,
                          Opcode::kAdd),
         table.bound + 4 * updates.bound);
  }

  void Map() {
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

  void RandomBits() {
    const Value state =
        builder_.Constant(FilledLiteral({ElementType::kU64, {3}}, static_cast<double>(Below(99))));
    const Dims dims = RandomDims(2);
    const Value first =
        builder_.Append({.opcode = Opcode::kRngBitGenerator,
                         .operands = {state},
                         .results = {{ElementType::kU64, {3}}, {ElementType::kU32, dims}},
                         .attributes = RngAttributes{2}});
    const Value bits{first.instruction, 1};
    const Value top =
        builder_.Binary(Opcode::kShiftRightLogical, bits, builder_.FullLike(bits, 29));
    Keep(builder_.Convert(top, kF32), 8);
  }

  void Inexact() {
    static constexpr Opcode kUnary[] = {
        Opcode::kExponential, Opcode::kTanh,       Opcode::kLogistic, Opcode::kSine,
        Opcode::kCosine,      Opcode::kErf,        Opcode::kCbrt,     Opcode::kExponentialMinusOne,
        Opcode::kTan,         Opcode::kLogPlusOne, Opcode::kLog,      Opcode::kSqrt,
        Opcode::kRsqrt};
    const Known x = Bounded(Pick(kF32), 4);
    const Value square = builder_.Binary(Opcode::kMultiply, x.value, x.value);
    const Value positive = builder_.Binary(Opcode::kAdd, square, builder_.FullLike(square, 1));
    if (Chance(30)) {
      inexact_.push_back(builder_.Binary(Chance(50) ? Opcode::kPower : Opcode::kDivide, positive,
                                         builder_.FullLike(positive, 3)));
      return;
    }
    const Value small = builder_.Binary(Opcode::kDivide, x.value, builder_.FullLike(x.value, 8));
    const Opcode opcode = OneOf(kUnary);
    const bool needs_positive = opcode == Opcode::kLog || opcode == Opcode::kSqrt ||
                                opcode == Opcode::kRsqrt || opcode == Opcode::kLogPlusOne;
    inexact_.push_back(builder_.Unary(opcode, needs_positive ? positive : small));
  }

  // Exact values that nothing reads, and the inexact ones.
  RandomProgram Finish() {
    for (int i = 0; i < options_.num_inexact; ++i) Inexact();
    const UseTable uses(builder_.computation());
    std::vector<Value> results;
    for (const Known& x : known_) {
      const bool is_input =
          builder_.computation().instruction(x.value).opcode == Opcode::kParameter;
      if (uses.uses(x.value).empty() && !is_input) results.push_back(x.value);
    }
    RandomProgram program;
    program.is_exact.assign(results.size(), true);
    results.insert(results.end(), inexact_.begin(), inexact_.end());
    program.is_exact.resize(results.size(), false);
    AddAliases(results);
    builder_.SetResults(results);
    absl::StatusOr<Module> module = std::move(target_).Finish();
    MINKA_CHECK(module.ok(), "random program: {}", std::string(module.status().message()));
    program.module = EliminateDeadCode(EliminateCommonSubexpressions(*module));
    program.inputs = std::move(inputs_);
    return program;
  }

  void AddAliases(const std::vector<Value>& results) {
    std::vector<bool> is_taken(results.size());
    const std::vector<InstructionId> parameters = builder_.computation().parameters;
    for (size_t parameter = 0; parameter < parameters.size(); ++parameter) {
      for (size_t result = 0; result < results.size(); ++result) {
        if (is_taken[result] || shape(results[result]) != shape({parameters[parameter], 0}) ||
            !Chance(50)) {
          continue;
        }
        is_taken[result] = true;
        target_.AddAlias({static_cast<int>(result), static_cast<int>(parameter)});
        break;
      }
    }
  }

  RandomProgramOptions options_;
  std::mt19937_64 engine_;
  ModuleBuilder target_;
  ComputationBuilder builder_;
  std::vector<Known> known_;
  std::vector<Value> inexact_;
  std::vector<Literal> inputs_;
};

}  // namespace

RandomProgram MakeRandomProgram(uint64_t seed, const RandomProgramOptions& options) {
  return Generator(seed, options).Run();
}

}  // namespace minka
