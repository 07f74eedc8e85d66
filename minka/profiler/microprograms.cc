#include "minka/profiler/microprograms.h"

#include <algorithm>
#include <vector>

#include "minka/base/check.h"
#include "minka/ir/builder.h"

namespace minka {
namespace {

using Groups = std::vector<std::vector<int64_t>>;

Groups MembersOf(const DeviceGroups& groups) {
  const int64_t num_groups = groups.num_devices / groups.size;
  Groups members(num_groups);
  for (int64_t device = 0; device < groups.num_devices; ++device) {
    members[groups.is_strided ? device % num_groups : device / groups.size].push_back(device);
  }
  return members;
}

Value OneCollective(ComputationBuilder& b, ReshardKind kind, Value x, int64_t dim,
                    int64_t group_size, const Groups& groups) {
  switch (kind) {
    case ReshardKind::kAllReduce: {
      const Value operands[] = {x};
      return b.AllReduce(operands, Opcode::kMaximum, groups)[0];
    }
    case ReshardKind::kAllGather: {
      SliceAttributes slice{.starts = {0, 0}, .limits = b.shape(x).dims, .strides = {1, 1}};
      slice.limits[dim] /= group_size;
      return b.AllGather(b.Slice(x, slice), dim, groups);
    }
    case ReshardKind::kReduceScatter:
      return b.ReduceScatter(x, dim, Opcode::kMaximum, groups);
    case ReshardKind::kAllToAll:
      return b.AllToAll(x, dim, groups);
    case ReshardKind::kSlice:
    case ReshardKind::kMakePartial:
      break;
  }
  MINKA_CHECK(false, "{} is no collective", ToString(kind));
}

// About as many rows as columns.
std::vector<int64_t> MatrixDims(int64_t num_elements) {
  int64_t rows = 1;
  while (num_elements % (2 * rows) == 0 && 4 * rows * rows <= num_elements) rows *= 2;
  return {rows, num_elements / rows};
}

}  // namespace

namespace {

// Operands of dots whose matrices lie as the form says.
class DotOperands {
 public:
  DotOperands(DotForm form, ElementType type, int64_t batch, int64_t m, int64_t n, int64_t k)
      : lhs_is_transposed_(form == DotForm::kTN), rhs_is_transposed_(form == DotForm::kNT) {
    lhs_ = lhs_is_transposed_ ? Shape{type, {batch, k, m}} : Shape{type, {batch, m, k}};
    rhs_ = rhs_is_transposed_ ? Shape{type, {batch, n, k}} : Shape{type, {batch, k, n}};
  }
  const Shape& lhs() const { return lhs_; }
  const Shape& rhs() const { return rhs_; }
  DotAttributes dot() const {
    return {.lhs_contracting = {lhs_is_transposed_ ? 1 : 2},
            .rhs_contracting = {rhs_is_transposed_ ? 2 : 1},
            .lhs_batch = {0},
            .rhs_batch = {0}};
  }

 private:
  const bool lhs_is_transposed_, rhs_is_transposed_;
  Shape lhs_, rhs_;
};

// The same operation of `x` again and again. Each waits for the one before: its first element is
// added to a sum, and `x` passes a barrier together with the sum. Compilers would leave out what
// nobody reads.
class Repeated {
 public:
  Repeated(ComputationBuilder& b, Value x) : b_(b), x_(x), sum_(b.Scalar(ElementType::kF32, 0)) {}

  Value x() const { return x_; }
  void Made(Value value) {
    const std::vector<int64_t> ones(b_.shape(value).dims.size(), 1);
    const Value first = b_.Slice(
        value, {.starts = std::vector<int64_t>(ones.size(), 0), .limits = ones, .strides = ones});
    sum_ = b_.Binary(Opcode::kAdd, sum_, b_.Reshape(first, {}));
    const Value values[] = {x_, sum_};
    const std::vector<Value> passed = b_.OptBarrier(values);
    x_ = passed[0];
    sum_ = passed[1];
  }
  void Finish() { b_.SetResults({sum_}); }

 private:
  ComputationBuilder& b_;
  Value x_, sum_;
};

}  // namespace

absl::StatusOr<Module> DotProgram(DotForm form, ElementType type, int64_t batch, int64_t m,
                                  int64_t n, int64_t k, int count) {
  constexpr int kReadersOfOne = 4;
  ModuleBuilder module("dots");
  ComputationBuilder b = module.Entry();
  const DotOperands operands(form, type, batch, m, n, k);
  std::vector<Value> results;
  Value x;
  for (int i = 0; i < count; ++i) {
    if (i % kReadersOfOne == 0) x = b.Parameter(operands.lhs(), fmt::format("x{}", i));
    const Value w = b.Parameter(operands.rhs(), fmt::format("w{}", i));
    results.push_back(b.Dot(x, w, operands.dot()));
  }
  b.SetResults(results);
  return std::move(module).Finish();
}

namespace {
constexpr int kCachedWeights = 8;
}  // namespace

absl::StatusOr<Module> CachedDotProgram(DotForm form, int64_t batch, int64_t m, int64_t n,
                                        int64_t k, int count) {
  ModuleBuilder module("cached_dots");
  ComputationBuilder b = module.Entry();
  const DotOperands operands(form, ElementType::kF32, batch, m, n, k);
  Repeated dots(b, b.Parameter(operands.lhs(), "x"));
  std::vector<Value> weights;
  for (int i = 0; i < kCachedWeights; ++i) {
    weights.push_back(b.Parameter(operands.rhs(), fmt::format("w{}", i)));
  }
  for (int i = 0; i < count; ++i) {
    dots.Made(b.Dot(dots.x(), weights[i % kCachedWeights], operands.dot()));
  }
  dots.Finish();
  return std::move(module).Finish();
}

absl::StatusOr<Module> StreamProgram(int64_t num_elements, int count, bool is_in_place) {
  ModuleBuilder module("stream");
  ComputationBuilder b = module.Entry();
  std::vector<Value> results;
  for (int i = 0; i < count; ++i) {
    const Value x = b.Parameter({ElementType::kF32, {num_elements}}, fmt::format("x{}", i));
    results.push_back(b.Binary(Opcode::kAdd, x, b.FullLike(x, 1)));
    if (is_in_place) module.AddAlias({.result = i, .parameter = i});
  }
  b.SetResults(results);
  return std::move(module).Finish();
}

absl::StatusOr<Module> CachedStreamProgram(int64_t num_elements, int count) {
  ModuleBuilder module("cached_stream");
  ComputationBuilder b = module.Entry();
  Value x = b.Parameter({ElementType::kF32, {num_elements}}, "x");
  for (int i = 0; i < count; ++i) {
    const Value sum[] = {b.Binary(Opcode::kAdd, x, b.FullLike(x, 1))};
    x = b.OptBarrier(sum)[0];  // nothing is fused across it
  }
  b.SetResults({x});
  return std::move(module).Finish();
}

absl::StatusOr<Module> TransposeProgram(const std::vector<int64_t>& dims,
                                        const std::vector<int64_t>& permutation, int count) {
  ModuleBuilder module("transpositions");
  ComputationBuilder b = module.Entry();
  std::vector<Value> results;
  for (int i = 0; i < count; ++i) {
    const Value x = b.Parameter({ElementType::kF32, dims}, fmt::format("x{}", i));
    results.push_back(b.Transpose(x, permutation));
  }
  b.SetResults(results);
  return std::move(module).Finish();
}

absl::StatusOr<Module> ElementwiseProgram(Opcode opcode, ElementType type, int64_t num_elements,
                                          int count, int num_loops) {
  ModuleBuilder module("elementwise");
  ComputationBuilder b = module.Entry();
  Value x = b.Parameter({type, {num_elements}}, "x");
  for (int loop = 0; loop < num_loops; ++loop) {
    for (int i = 0; i < count; ++i) {
      x = b.Unary(opcode, x);
      // Otherwise the compiler might find that the operation undoes itself.
      x = b.Binary(Opcode::kMultiply, x, b.FullLike(x, 0.5));
    }
    const Value made[] = {x};
    x = b.OptBarrier(made)[0];
  }
  b.SetResults({x});
  return std::move(module).Finish();
}

absl::StatusOr<Module> ArithmeticProgram(ElementType type, int64_t num_elements, int count,
                                         int num_loops) {
  ModuleBuilder module("arithmetic");
  ComputationBuilder b = module.Entry();
  Value x = b.Parameter({type, {num_elements}}, "x");
  for (int loop = 0; loop < num_loops; ++loop) {
    for (int i = 0; i < count; ++i) {
      x = b.Binary(Opcode::kAdd, x, b.Binary(Opcode::kMultiply, x, b.FullLike(x, 0.5)));
    }
    const Value made[] = {x};
    x = b.OptBarrier(made)[0];
  }
  b.SetResults({x});
  return std::move(module).Finish();
}

namespace {

constexpr int64_t kWindow = 3;

// Elements under all positions of a window along one dimension, without padding.
int64_t TapsAlong(int64_t size) { return kWindow * size - 2; }

}  // namespace

ProductSizes ProductOf(const ConvolutionShape& shape) {
  const int64_t positions = shape.size * shape.size;
  const int64_t taps = TapsAlong(shape.size) * TapsAlong(shape.size);
  return {.batch = shape.groups,
          .m = shape.images * positions,
          .n = shape.features / shape.groups,
          .k = shape.groups > 1 ? kWindow * kWindow * shape.inputs / shape.groups
                                : std::max<int64_t>(taps * shape.inputs / positions, 1)};
}

ProductSizes ProductOfKernelGradient(const ConvolutionShape& shape) {
  const int64_t taps = TapsAlong(shape.size) * TapsAlong(shape.size);
  return {.batch = shape.groups,
          .m = kWindow * kWindow * shape.inputs / shape.groups,
          .n = shape.features / shape.groups,
          .k = shape.groups > 1 ? shape.size * shape.size * shape.images
                                : std::max<int64_t>(taps * shape.images / (kWindow * kWindow), 1)};
}

absl::StatusOr<Module> ConvolutionProgram(const ConvolutionShape& shape, int count) {
  ModuleBuilder module("convolutions");
  ComputationBuilder b = module.Entry();
  const auto [images, size, inputs, features, groups] = shape;
  const Value x = b.Parameter({ElementType::kF32, {images, size, size, inputs}}, "x");
  const WindowDim window = {.size = kWindow, .padding_low = 1, .padding_high = 1};
  const ConvolutionAttributes convolution = {.window = {window, window},
                                             .input_feature = 3,
                                             .kernel_input_feature = 2,
                                             .kernel_output_feature = 3,
                                             .output_feature = 3,
                                             .input_spatial = {1, 2},
                                             .kernel_spatial = {0, 1},
                                             .output_spatial = {1, 2},
                                             .feature_group_count = groups};
  std::vector<Value> results;
  for (int i = 0; i < count; ++i) {
    const Value w = b.Parameter({ElementType::kF32, {kWindow, kWindow, inputs / groups, features}},
                                fmt::format("w{}", i));
    results.push_back(b.Convolution(x, w, convolution));
  }
  b.SetResults(results);
  return std::move(module).Finish();
}

absl::StatusOr<Module> KernelGradientProgram(const ConvolutionShape& shape, int count) {
  ModuleBuilder module("kernel_gradients");
  ComputationBuilder b = module.Entry();
  const auto [images, size, inputs, features, groups] = shape;
  const Value x = b.Parameter({ElementType::kF32, {images, size, size, inputs}}, "x");
  const WindowDim window = {.size = size, .padding_low = 1, .padding_high = 1};
  const ConvolutionAttributes convolution = {.window = {window, window},
                                             .input_batch = 3,
                                             .input_feature = 0,
                                             .kernel_input_feature = 0,
                                             .kernel_output_feature = 3,
                                             .output_batch = 2,
                                             .output_feature = 3,
                                             .input_spatial = {1, 2},
                                             .kernel_spatial = {1, 2},
                                             .output_spatial = {0, 1},
                                             .batch_group_count = groups};
  std::vector<Value> results;
  for (int i = 0; i < count; ++i) {
    const Value y =
        b.Parameter({ElementType::kF32, {images, size, size, features}}, fmt::format("y{}", i));
    results.push_back(b.Convolution(x, y, convolution));
  }
  b.SetResults(results);
  return std::move(module).Finish();
}

absl::StatusOr<Module> ReductionProgram(ReductionKernel kernel, ElementType type,
                                        const ReductionSizes& sizes, int count) {
  ModuleBuilder module("reductions");
  ComputationBuilder b = module.Entry();
  const bool pools =
      kernel == ReductionKernel::kWindow || kernel == ReductionKernel::kWindowGradient;
  const auto [rows, columns, images, size, features] = sizes;
  const Shape shape = {type, pools ? std::vector<int64_t>{images, size, size, features}
                                   : std::vector<int64_t>{rows, columns}};
  const Value zero = b.Scalar(type, 0);
  std::vector<Value> results;
  for (int i = 0; i < count; ++i) {
    const Value x = b.Parameter(shape, fmt::format("x{}", i));
    if (pools) {
      const WindowDim window = {.size = 2, .stride = 2};
      const std::vector<WindowDim> windows = {{}, window, window, {}};
      if (kernel == ReductionKernel::kWindow) {
        results.push_back(b.ReduceWindow(x, zero, windows, Opcode::kMaximum));
      } else {
        const Value source =
            b.Parameter({type, {images, size / 2, size / 2, features}}, fmt::format("y{}", i));
        results.push_back(
            b.SelectAndScatterAdd(x, source, zero, windows, CompareAttributes::Direction::kGe));
      }
      continue;
    }
    const Opcode reducer =
        kernel == ReductionKernel::kMaximumOfRows ? Opcode::kMaximum : Opcode::kAdd;
    results.push_back(b.Reduce(x, zero, {kernel == ReductionKernel::kColumns ? 0 : 1}, reducer));
  }
  b.SetResults(results);
  return std::move(module).Finish();
}

absl::StatusOr<Module> LaunchProgram(int count) {
  ModuleBuilder module("launches");
  ComputationBuilder b = module.Entry();
  Value x = b.Parameter({ElementType::kF32, {16, 16}}, "x");
  const Value zero = b.Scalar(ElementType::kF32, 0);
  for (int i = 0; i < count; ++i) {
    // Nothing is fused across a barrier: a reduction would compute all before it again.
    const Value row_maxima[] = {b.Reduce(x, zero, {1}, Opcode::kMaximum)};
    const Value maxima = b.OptBarrier(row_maxima)[0];
    const Value differences[] = {
        b.Binary(Opcode::kSubtract, x, b.Broadcast(maxima, {16, 16}, {0}))};
    x = b.OptBarrier(differences)[0];
  }
  b.SetResults({x});
  return std::move(module).Finish();
}

absl::StatusOr<Module> CollectiveProgram(ReshardKind kind, int64_t bytes,
                                         const DeviceGroups& groups, int64_t dim, int count) {
  ModuleBuilder module("collectives");
  ComputationBuilder b = module.Entry();
  std::vector<Value> matrices, results;
  for (int i = 0; i < count; ++i) {
    matrices.push_back(
        b.Parameter({ElementType::kF32, MatrixDims(bytes / 4)}, fmt::format("x{}", i)));
  }
  const Groups members = MembersOf(groups);
  for (int i = 0; i < count; ++i) {
    Value x = matrices[i];
    if (i > 0) {
      const Value values[] = {x, results.back()};
      const std::vector<Value> passed = b.OptBarrier(values);
      x = passed[0];
      results.back() = passed[1];
    }
    results.push_back(OneCollective(b, kind, x, dim, groups.size, members));
  }
  b.SetResults(results);
  return std::move(module).Finish();
}

namespace {
constexpr int64_t kPhaseRows = 16, kPhaseColumns = 224;
}  // namespace

int64_t PhasesProgramBytes() { return 4 * kPhaseRows * kPhaseColumns; }

absl::StatusOr<Module> PhasesProgram(const std::optional<DeviceGroups>& groups, int num_phases,
                                     int num_pairs) {
  ModuleBuilder module("phases");
  ComputationBuilder b = module.Entry();
  Value x = b.Parameter({ElementType::kF32, {1, kPhaseRows, kPhaseColumns}}, "x");
  const DotAttributes dot{
      .lhs_contracting = {2}, .rhs_contracting = {1}, .lhs_batch = {0}, .rhs_batch = {0}};
  // So many that devices read them from memory, as steps read theirs.
  constexpr int kNumWeights = 24;
  std::vector<std::pair<Value, Value>> weights;
  for (int i = 0; i < kNumWeights; ++i) {
    weights.emplace_back(b.Parameter({ElementType::kF32, {1, kPhaseColumns, 2 * kPhaseColumns}},
                                     fmt::format("w{}", i)),
                         b.Parameter({ElementType::kF32, {1, 2 * kPhaseColumns, kPhaseColumns}},
                                     fmt::format("v{}", i)));
  }
  for (int pair = 1; pair <= num_phases * num_pairs; ++pair) {
    const auto& [w, v] = weights[pair % kNumWeights];
    x = b.Dot(b.Dot(x, w, dot), v, dot);
    if (groups && pair % num_pairs == 0) {
      x = OneCollective(b, ReshardKind::kAllReduce, x, /*dim=*/1, groups->size, MembersOf(*groups));
    }
  }
  b.SetResults({x});
  return std::move(module).Finish();
}

}  // namespace minka
