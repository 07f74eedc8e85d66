#include "minka/driver/microprograms.h"

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
      return b.AllGather(b.ReduceScatter(x, dim, Opcode::kMaximum, groups), dim, groups);
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

absl::StatusOr<Module> DotProgram(DotForm form, int64_t batch, int64_t m, int64_t n, int64_t k,
                                  int count) {
  constexpr int kReadersOfOne = 4;
  ModuleBuilder module("dots");
  ComputationBuilder b = module.Entry();
  const bool lhs_is_transposed = form == DotForm::kTN, rhs_is_transposed = form == DotForm::kNT;
  const DotAttributes dot{.lhs_contracting = {lhs_is_transposed ? 1 : 2},
                          .rhs_contracting = {rhs_is_transposed ? 2 : 1},
                          .lhs_batch = {0},
                          .rhs_batch = {0}};
  const auto matrix = [&](const char* name, int number, int64_t rows, int64_t columns) {
    return b.Parameter({ElementType::kF32, {batch, rows, columns}},
                       fmt::format("{}{}", name, number));
  };
  std::vector<Value> results;
  Value x;
  for (int i = 0; i < count; ++i) {
    if (i % kReadersOfOne == 0) {
      x = lhs_is_transposed ? matrix("x", i, k, m) : matrix("x", i, m, k);
    }
    const Value w = rhs_is_transposed ? matrix("w", i, n, k) : matrix("w", i, k, n);
    results.push_back(b.Dot(x, w, dot));
  }
  b.SetResults(results);
  return std::move(module).Finish();
}

absl::StatusOr<Module> StreamProgram(int64_t num_elements, int count) {
  ModuleBuilder module("stream");
  ComputationBuilder b = module.Entry();
  std::vector<Value> results;
  for (int i = 0; i < count; ++i) {
    const Value x = b.Parameter({ElementType::kF32, {num_elements}}, fmt::format("x{}", i));
    results.push_back(b.Binary(Opcode::kAdd, x, b.FullLike(x, 1)));
    module.AddAlias({.result = i, .parameter = i});
  }
  b.SetResults(results);
  return std::move(module).Finish();
}

absl::StatusOr<Module> ElementwiseProgram(Opcode opcode, ElementType type, int64_t num_elements,
                                          int count) {
  ModuleBuilder module("elementwise");
  ComputationBuilder b = module.Entry();
  Value x = b.Parameter({type, {num_elements}}, "x");
  for (int i = 0; i < count; ++i) {
    x = b.Unary(opcode, x);
    // Otherwise the compiler might find that the operation undoes itself.
    x = b.Binary(Opcode::kMultiply, x, b.FullLike(x, 0.5));
  }
  b.SetResults({x});
  return std::move(module).Finish();
}

absl::StatusOr<Module> ArithmeticProgram(int64_t num_elements, int count) {
  ModuleBuilder module("arithmetic");
  ComputationBuilder b = module.Entry();
  Value x = b.Parameter({ElementType::kF32, {num_elements}}, "x");
  for (int i = 0; i < count; ++i) {
    x = b.Binary(Opcode::kAdd, x, b.Binary(Opcode::kMultiply, x, b.FullLike(x, 0.5)));
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
  return {.m = shape.images * positions,
          .n = shape.features,
          .k = std::max<int64_t>(taps * shape.inputs / positions, 1)};
}

ProductSizes ProductOfKernelGradient(const ConvolutionShape& shape) {
  const int64_t taps = TapsAlong(shape.size) * TapsAlong(shape.size);
  return {.m = kWindow * kWindow * shape.inputs,
          .n = shape.features,
          .k = std::max<int64_t>(taps * shape.images / (kWindow * kWindow), 1)};
}

absl::StatusOr<Module> ConvolutionProgram(const ConvolutionShape& shape, int count) {
  ModuleBuilder module("convolutions");
  ComputationBuilder b = module.Entry();
  const auto [images, size, inputs, features] = shape;
  Value x = b.Parameter({ElementType::kF32, {images, size, size, inputs}}, "x");
  const WindowDim window = {.size = kWindow, .padding_low = 1, .padding_high = 1};
  const ConvolutionAttributes convolution = {.window = {window, window},
                                             .input_feature = 3,
                                             .kernel_input_feature = 2,
                                             .kernel_output_feature = 3,
                                             .output_feature = 3,
                                             .input_spatial = {1, 2},
                                             .kernel_spatial = {0, 1},
                                             .output_spatial = {1, 2}};
  for (int i = 0; i < count; ++i) {
    const Value w = b.Parameter({ElementType::kF32, {kWindow, kWindow, inputs, features}},
                                fmt::format("w{}", i));
    const Value v = b.Parameter({ElementType::kF32, {kWindow, kWindow, features, inputs}},
                                fmt::format("v{}", i));
    x = b.Convolution(b.Convolution(x, w, convolution), v, convolution);
  }
  b.SetResults({x});
  return std::move(module).Finish();
}

absl::StatusOr<Module> KernelGradientProgram(const ConvolutionShape& shape, int count) {
  ModuleBuilder module("kernel_gradients");
  ComputationBuilder b = module.Entry();
  const auto [images, size, inputs, features] = shape;
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
                                             .output_spatial = {0, 1}};
  std::vector<Value> results;
  for (int i = 0; i < count; ++i) {
    const Value y =
        b.Parameter({ElementType::kF32, {images, size, size, features}}, fmt::format("y{}", i));
    results.push_back(b.Convolution(x, y, convolution));
  }
  b.SetResults(results);
  return std::move(module).Finish();
}

absl::StatusOr<Module> ReductionProgram(ReductionKernel kernel, int count) {
  ModuleBuilder module("reductions");
  ComputationBuilder b = module.Entry();
  const bool pools =
      kernel == ReductionKernel::kWindow || kernel == ReductionKernel::kWindowGradient;
  const Shape shape = {ElementType::kF32, pools ? std::vector<int64_t>{4, 20, 20, 48}
                                                : std::vector<int64_t>{160, 240}};
  const Value zero = b.Scalar(ElementType::kF32, 0);
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
            b.Parameter({ElementType::kF32, {4, 10, 10, 48}}, fmt::format("y{}", i));
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
    const Value sums = b.Reduce(x, zero, {1}, Opcode::kMaximum);
    x = b.Binary(Opcode::kSubtract, x, b.Broadcast(sums, {16, 16}, {0}));
  }
  b.SetResults({x});
  return std::move(module).Finish();
}

absl::StatusOr<Module> CollectiveProgram(ReshardKind kind, int64_t bytes,
                                         const DeviceGroups& groups, CollectiveDims dims,
                                         int count) {
  ModuleBuilder module("collectives");
  ComputationBuilder b = module.Entry();
  Value x = b.Parameter({ElementType::kF32, MatrixDims(bytes / 4)}, "x");
  const Groups members = MembersOf(groups);
  for (int i = 0; i < count; ++i) {
    const int64_t dim = dims == CollectiveDims::kAlternating ? i % 2 : 0;
    x = OneCollective(b, kind, x, dim, groups.size, members);
  }
  b.SetResults({x});
  return std::move(module).Finish();
}

namespace {
constexpr int64_t kSynchronisedRows = 64, kSynchronisedColumns = 320;
}  // namespace

int64_t SynchronisedBytes() { return 4 * kSynchronisedRows * kSynchronisedColumns; }

absl::StatusOr<Module> SynchronisedProgram(bool synchronised, int64_t num_devices, int count) {
  ModuleBuilder module("synchronised");
  ComputationBuilder b = module.Entry();
  Value x = b.Parameter({ElementType::kF32, {1, kSynchronisedRows, kSynchronisedColumns}}, "x");
  const DotAttributes dot{
      .lhs_contracting = {2}, .rhs_contracting = {1}, .lhs_batch = {0}, .rhs_batch = {0}};
  const Groups groups = MembersOf({.size = num_devices, .num_devices = num_devices});
  for (int i = 0; i < count; ++i) {
    const Value w =
        b.Parameter({ElementType::kF32, {1, kSynchronisedColumns, 640}}, fmt::format("w{}", i));
    const Value v =
        b.Parameter({ElementType::kF32, {1, 640, kSynchronisedColumns}}, fmt::format("v{}", i));
    x = b.Dot(b.Dot(x, w, dot), v, dot);
    if (synchronised) {
      x = OneCollective(b, ReshardKind::kAllReduce, x, /*dim=*/1, num_devices, groups);
    }
  }
  b.SetResults({x});
  return std::move(module).Finish();
}

}  // namespace minka
