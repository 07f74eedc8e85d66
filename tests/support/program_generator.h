// Draws random programs operation by operation; MakeRandomProgram (random_modules.h) is its user.
// A new operation is a method here, in the file of its kind, and a line in Step.
#pragma once

#include <cstdint>
#include <functional>
#include <numeric>
#include <random>
#include <vector>

#include "minka/ir/builder.h"
#include "minka/ir/window.h"
#include "tests/support/random_modules.h"

namespace minka {

class ProgramGenerator {
 public:
  ProgramGenerator(uint64_t seed, const RandomProgramOptions& options)
      : options_(options),
        next_elementwise_(seed * ((options.num_operations + 1) / 2)),
        next_inexact_(seed * options.num_inexact),
        engine_(seed),
        target_("random"),
        builder_(target_.Entry()) {}

  RandomProgram Run();

 private:
  static constexpr double kLimit = 1 << 22;  // magnitudes stay below
  static constexpr int64_t kMaxElements = 2048;
  static constexpr ElementType kF32 = ElementType::kF32;
  static constexpr ElementType kS32 = ElementType::kS32;
  static constexpr ElementType kPred = ElementType::kPred;

  using Dims = std::vector<int64_t>;

  // A value and a bound on its elements' magnitude, which holds for every partial sum of it, too.
  struct Known {
    Value value;
    double bound = 1;
  };

  // A value that rounding may change by as much as RandomProgram::noise says.
  struct Rounded {
    Value value;
    double noise = 1e-6;
  };

  static int64_t Product(const Dims& dims) {
    return std::accumulate(dims.begin(), dims.end(), int64_t{1}, std::multiplies<>());
  }

  int64_t Below(int64_t limit) { return static_cast<int64_t>(engine_() % uint64_t(limit)); }
  int64_t Between(int64_t low, int64_t high) { return low + Below(high - low + 1); }
  bool Chance(int percent) { return Below(100) < percent; }
  template <typename T, size_t kSize>
  T OneOf(const T (&items)[kSize]) {
    return items[Below(kSize)];
  }
  const Shape& shape(Value value) const { return builder_.shape(value); }
  int rank(const Known& x) const { return shape(x.value).rank(); }
  void Create1() { Create(Chance(70) ? kF32 : kS32, RandomDims(static_cast<int>(Between(1, 3)))); }

  // ---- programs and what all operations draw from (random_modules.cc)

  Dims RandomDims(int rank);
  Known Keep(Value value, double bound);
  Known AddParameter(ElementType type, const Dims& dims);
  // A known value of the type, later ones more often.
  Known Pick(ElementType type, int min_rank = 0);
  // Not a scalar, and with an even dimension if a few tries find one.
  Known PickSplittable(ElementType type);
  // A value of that shape, known or made.
  Known PickLike(ElementType type, const Dims& dims);
  Known Create(ElementType type, const Dims& dims);
  // The value, clamped if its bound is larger.
  Known Bounded(Known x, double limit);
  void Step();
  // Exact values that nothing reads, and the inexact ones.
  RandomProgram Finish();
  void AddAliases(const std::vector<Value>& results);

  // ---- elementwise operations and random bits (random_elementwise.cc)

  // One exact operation; all kinds in turn from program to program, so that none is rare.
  void Elementwise();
  void Unary(Opcode opcode);
  void Arithmetic(Opcode opcode);
  void Integer(Opcode opcode);
  // The bits decide how halves are rounded.
  void StochasticConvert(Opcode opcode);
  void Predicate(Opcode opcode);
  // The same for operations that round, which nothing but a result reads.
  void Inexact();
  void Compare();
  void Select();
  void Clamp();
  void Convert();
  void Bitcast();
  void ComplexNumbers();
  void Map();
  void RandomBits();

  // ---- dots, reductions and sorting (random_compute.cc)

  // Several contracting dimensions, none (an outer product), or integers with a wider sum.
  void UnusualDot();
  void Dot();
  // Sums of at most `count` products stay below the limit.
  void BoundFactors(Known& x, Known& y, double count);
  // What a sum or another reduction of floats starts from, often not its neutral element.
  Known InitialValue();
  void Reduce();
  void ReduceOther();
  void Sort();
  // The largest element along a dimension with its place, the first one of equals.
  void Argmax();
  // Values sorted, stably, by keys.
  void SortPairs();
  void TopK();

  // ---- convolutions, pooling and batch normalisation (random_windows.cc)

  // A window over a dimension: often one of the forms that can be split, else any.
  WindowDim RandomWindow(int64_t base);
  // Those of a convolution may also spread, reverse and crop.
  WindowDim RandomKernelWindow(int64_t base);
  // Where dimension i of [batch, feature, spatial...] lies.
  Dims Places(size_t rank);
  void Convolution();
  std::vector<WindowDim> RandomWindows(const Dims& dims, double& count);
  void Pool();
  void SelectAndScatter();
  // Inexact; its results are results of the program.
  void BatchNorm();

  // ---- moves of data, gathers and scatters (random_data.cc)

  void Broadcast();
  void Reshape();
  void Transpose();
  void Slice();
  void Pad();
  void Concatenate();
  void Reverse();
  void DynamicSlice();
  void DynamicUpdateSlice();
  // Indices with one component per vector; the last dimension holds vectors half of the time.
  Known Indices(int64_t& index_vector_dim);
  void Gather();
  void Scatter();
  // Index vectors of two components into the first two dimensions.
  void GatherVectors();
  // Slices of several rows, all dimensions kept.
  void GatherWindows();
  // Adds windows of several rows.
  void ScatterWindows();

  // ---- barriers, loops and branches (random_control.cc)

  void Barrier();
  // for (i = 0; i < 3; ++i) x += y + i.
  void While();
  void Conditional();
  // What a recurrent network does: for (i = 0; i < 3; ++i) { sum += transpose(x) h; saved[i] = h;
  // h = clamp(h - rows of h summed) }.
  void LoopWithCollectives();
  // One branch sums over a dimension, the other one does not.
  void ConditionalWithCollectives();

  RandomProgramOptions options_;
  uint64_t next_elementwise_, next_inexact_;
  std::mt19937_64 engine_;
  ModuleBuilder target_;
  ComputationBuilder builder_;
  std::vector<Known> known_;
  std::vector<Rounded> inexact_;
  std::vector<Literal> inputs_;
};

}  // namespace minka
