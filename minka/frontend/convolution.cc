#include "minka/frontend/convolution.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "minka/base/status.h"

namespace minka {
namespace {

using Dims = std::vector<int64_t>;

constexpr ElementType kF32 = ElementType::kF32;

Initializer Normal(double stddev) { return {Initializer::Kind::kNormal, stddev}; }

int NumSpatial(Tensor x) { return x.rank() - 2; }

// The list, or ones for every spatial dimension.
Dims OrOnes(const Dims& list, size_t size) { return list.empty() ? Dims(size, 1) : list; }

// One window per spatial dimension; an invalid list is a mistake of the graph.
absl::StatusOr<std::vector<WindowDim>> Windows(Tensor x, const Dims& sizes, const Dims& strides,
                                               const Dims& dilations, Padding padding) {
  const auto num_spatial = static_cast<size_t>(std::max(NumSpatial(x), 0));
  if (x.rank() < 2 || sizes.size() != num_spatial || strides.size() != num_spatial ||
      dilations.size() != num_spatial) {
    return InvalidArgument("a window of {} sizes, {} strides and {} dilations on {}", sizes.size(),
                           strides.size(), dilations.size(), ToString(x.shape()));
  }
  std::vector<WindowDim> windows;
  for (size_t i = 0; i < num_spatial; ++i) {
    WindowDim window{.size = sizes[i], .stride = strides[i], .window_dilation = dilations[i]};
    if (sizes[i] < 1 || strides[i] < 1 || dilations[i] < 1) {
      return InvalidArgument("a window of size {}, stride {}, dilation {}", sizes[i], strides[i],
                             dilations[i]);
    }
    if (padding == Padding::kSame) {
      const int64_t size = x.dim(static_cast<int>(i) + 1);
      const int64_t positions = (size + strides[i] - 1) / strides[i];
      const int64_t laid = (sizes[i] - 1) * dilations[i] + 1;
      const int64_t total = std::max<int64_t>((positions - 1) * strides[i] + laid - size, 0);
      window.padding_low = total / 2;
      window.padding_high = total - total / 2;
    }
    windows.push_back(window);
  }
  return windows;
}

// Numbers for images [batch, spatial..., features].
ConvolutionAttributes ImageNumbers(std::vector<WindowDim> window) {
  const auto num_spatial = static_cast<int64_t>(window.size());
  ConvolutionAttributes a{.window = std::move(window),
                          .input_batch = 0,
                          .input_feature = num_spatial + 1,
                          .kernel_input_feature = num_spatial,
                          .kernel_output_feature = num_spatial + 1,
                          .output_batch = 0,
                          .output_feature = num_spatial + 1};
  for (int64_t i = 0; i < num_spatial; ++i) {
    a.input_spatial.push_back(i + 1);
    a.kernel_spatial.push_back(i);
    a.output_spatial.push_back(i + 1);
  }
  return a;
}

Tensor KernelOf(const Scope& scope, Tensor x, const ConvOptions& options) {
  Dims dims = options.kernel;
  dims.push_back(x.dim(-1) / options.groups);
  const double inputs = std::accumulate(dims.begin(), dims.end(), 1.0, [](double a, int64_t b) {
    return a * static_cast<double>(b);
  });
  dims.push_back(options.features);
  const double stddev = options.stddev.value_or(1 / std::sqrt(std::max(inputs, 1.0)));
  return scope.Parameter("kernel", dims, {.initializer = Normal(stddev), .decays = true});
}

Tensor PlusBias(const Scope& scope, Tensor y, const ConvOptions& options) {
  if (!options.bias) return y;
  return y + scope.Parameter("bias", {options.features}, {});
}

Tensor Pooled(Opcode reducer, double init, Tensor x, const PoolOptions& options) {
  if (!x.valid()) return x;
  const Dims& strides = options.strides.empty() ? options.window : options.strides;
  auto windows =
      Windows(x, options.window, strides, Dims(options.window.size(), 1), options.padding);
  if (!windows.ok()) return x.graph().Fail(WithContext(windows.status(), "pooling"));
  windows->insert(windows->begin(), WindowDim{});
  windows->push_back(WindowDim{});
  return ReduceWindow(reducer, x, init, *std::move(windows));
}

// Repeated over the leading dims of `dims`.
Tensor OverFeatures(Tensor x, const Dims& dims) {
  return Broadcast(x, dims, {static_cast<int64_t>(dims.size()) - 1});
}

struct Affine {
  Tensor scale, bias;  // one number per feature

  Affine(const Scope& scope, int64_t features, ElementType type, bool zero_scale = false) {
    const auto kind = zero_scale ? Initializer::Kind::kZeros : Initializer::Kind::kOnes;
    scale = Convert(scope.Parameter("scale", {features}, {.initializer = {kind}}), type);
    bias = Convert(scope.Parameter("bias", {features}, {}), type);
  }
  Tensor operator()(Tensor x) const {
    if (!x.valid()) return x;
    const Dims dims = x.dims();
    return x * OverFeatures(scale, dims) + OverFeatures(bias, dims);
  }
};

struct Moments {
  Tensor mean, variance;
};

Moments KeptMoments(const Scope& scope, int64_t features) {
  return {scope.State("mean", {features}, {Initializer::Kind::kZeros}),
          scope.State("variance", {features}, {Initializer::Kind::kOnes})};
}

void TakeIn(const Scope& scope, const Moments& batch, int64_t features, double momentum) {
  const Moments before = KeptMoments(scope, features);
  const auto average = [&](Tensor old, Tensor now) {
    return old * momentum + Convert(now, old.type()) * (1 - momentum);
  };
  scope.SetState("mean", average(before.mean, batch.mean));
  scope.SetState("variance", average(before.variance, batch.variance));
}

struct BatchNormalized {
  Tensor y;
  Moments moments;
};

// HLO's operation: its gradient needs two sums over x where that of the formula needs four.
BatchNormalized NormalizeByBatch(Tensor x, const Affine& affine, double epsilon) {
  if (!x.valid() || !affine.scale.valid() || !affine.bias.valid()) return {};
  Graph& graph = x.graph();
  const Value first = graph.builder().Append(
      {.opcode = Opcode::kBatchNormTraining,
       .operands = {x.value(), affine.scale.value(), affine.bias.value()},
       .attributes = BatchNormAttributes{static_cast<float>(epsilon), x.rank() - 1}});
  const auto result = [&](int32_t index) {
    return graph.Record({first.instruction, index}, std::array{x, affine.scale, affine.bias});
  };
  return {.y = result(0), .moments = {result(1), result(2)}};
}

}  // namespace

Tensor Convolution(Tensor input, Tensor kernel, ConvolutionAttributes attributes) {
  if (!input.valid() || !kernel.valid()) return Tensor();
  Graph& graph = input.graph();
  return graph.Record(
      graph.builder().Convolution(input.value(), kernel.value(), std::move(attributes)),
      std::array{input, kernel});
}

Tensor ReduceWindow(Opcode reducer, Tensor x, double init, std::vector<WindowDim> window) {
  if (!x.valid()) return x;
  Graph& graph = x.graph();
  const Tensor start = graph.Scalar(x.type(), init);
  return graph.Record(
      graph.builder().ReduceWindow(x.value(), start.value(), std::move(window), reducer),
      std::array{x, start});
}

Tensor SelectAndScatterAdd(Comparison select, Tensor x, Tensor source,
                           std::vector<WindowDim> window) {
  if (!x.valid() || !source.valid()) return Tensor();
  Graph& graph = x.graph();
  const Tensor zero = graph.Scalar(x.type(), 0);
  return graph.Record(graph.builder().SelectAndScatterAdd(x.value(), source.value(), zero.value(),
                                                          std::move(window), select),
                      std::array{x, source, zero});
}

Tensor Reverse(Tensor x, Dims dims) {
  if (!x.valid() || dims.empty()) return x;
  Graph& graph = x.graph();
  return graph.Record(graph.builder().Append({.opcode = Opcode::kReverse,
                                              .operands = {x.value()},
                                              .attributes = DimensionsAttributes{std::move(dims)}}),
                      std::array{x});
}

Tensor CumulativeSum(Tensor x, int dim, bool reverse) {
  if (!x.valid()) return x;
  const int64_t size = x.dim(dim);
  if (size == 0) return x;
  std::vector<WindowDim> window(x.rank());
  WindowDim& summed = window[dim < 0 ? dim + x.rank() : dim];
  summed.size = size;
  (reverse ? summed.padding_high : summed.padding_low) = size - 1;
  return ReduceWindow(Opcode::kAdd, x, 0, std::move(window));
}

Tensor Conv(const Scope& scope, Tensor x, const ConvOptions& options) {
  if (!x.valid()) return x;
  const ScopeName name(scope.graph(), scope.path());
  auto windows = Windows(x, options.kernel, OrOnes(options.strides, options.kernel.size()),
                         OrOnes(options.dilations, options.kernel.size()), options.padding);
  if (!windows.ok()) return x.graph().Fail(WithContext(windows.status(), "convolution"));
  ConvolutionAttributes attributes = ImageNumbers(*std::move(windows));
  attributes.feature_group_count = options.groups;
  if (options.groups < 1) {
    return x.graph().Fail(InvalidArgument("convolution in {} groups", options.groups));
  }
  return PlusBias(scope, Convolution(x, KernelOf(scope, x, options), std::move(attributes)),
                  options);
}

Tensor ConvTranspose(const Scope& scope, Tensor x, const ConvOptions& options) {
  if (!x.valid()) return x;
  const ScopeName name(scope.graph(), scope.path());
  auto windows = Windows(x, options.kernel, Dims(options.kernel.size(), 1),
                         OrOnes(options.dilations, options.kernel.size()), Padding::kValid);
  const Dims strides = OrOnes(options.strides, options.kernel.size());
  if (!windows.ok() || options.groups != 1 || strides.size() != options.kernel.size()) {
    return x.graph().Fail(windows.ok() ? InvalidArgument("transposed convolution in {} groups with "
                                                         "{} strides",
                                                         options.groups, strides.size())
                                       : WithContext(windows.status(), "transposed convolution"));
  }
  for (size_t i = 0; i < windows->size(); ++i) {
    WindowDim& window = (*windows)[i];
    const int64_t laid = (window.size - 1) * window.window_dilation + 1;
    window.base_dilation = strides[i];
    // Same: strides times as many elements. Valid: every product of element and kernel is there.
    const int64_t extra =
        options.padding == Padding::kValid ? std::max<int64_t>(laid - strides[i], 0) : 0;
    const int64_t total = laid + strides[i] - 2 + extra;
    const bool all_low = options.padding == Padding::kValid || strides[i] > laid - 1;
    window.padding_low = all_low ? laid - 1 : (total + 1) / 2;
    window.padding_high = total - window.padding_low;
  }
  return PlusBias(scope,
                  Convolution(x, KernelOf(scope, x, options), ImageNumbers(*std::move(windows))),
                  options);
}

Tensor MaxPool(Tensor x, const PoolOptions& options) {
  return Pooled(Opcode::kMaximum, -std::numeric_limits<double>::infinity(), x, options);
}

Tensor AveragePool(Tensor x, const PoolOptions& options) {
  double count = 1;
  for (const int64_t size : options.window) count *= static_cast<double>(size);
  return Pooled(Opcode::kAdd, 0, x, options) * (1 / count);
}

Tensor Upsample(Tensor x, int64_t factor) {
  if (!x.valid()) return x;
  const Dims dims = x.dims();
  const auto rank = static_cast<int64_t>(dims.size());
  Dims spread, positions, merged = dims;
  for (int64_t i = 0; i < rank; ++i) {
    positions.push_back(static_cast<int64_t>(spread.size()));
    spread.push_back(dims[i]);
    if (i == 0 || i == rank - 1) continue;
    spread.push_back(factor);
    merged[i] *= factor;
  }
  return Reshape(Broadcast(x, spread, positions), merged);
}

Tensor BatchNorm(const Scope& scope, Tensor x, const BatchNormOptions& options) {
  if (!x.valid()) return x;
  const ScopeName name(scope.graph(), scope.path());
  const ElementType type = x.type();
  const Dims dims = x.dims();
  x = Convert(x, kF32);
  const Affine affine(scope, dims.back(), kF32, options.zero_scale);
  if (scope.training() || !options.momentum) {
    const BatchNormalized batch = NormalizeByBatch(x, affine, options.epsilon);
    if (options.momentum) TakeIn(scope, batch.moments, dims.back(), *options.momentum);
    return Convert(batch.y, type);
  }
  const Moments kept = KeptMoments(scope, dims.back());
  const Tensor deviation = Rsqrt(Convert(kept.variance, kF32) + options.epsilon);
  const Tensor normal =
      (x - OverFeatures(Convert(kept.mean, kF32), dims)) * OverFeatures(deviation, dims);
  return Convert(affine(normal), type);
}

Tensor GroupNorm(const Scope& scope, Tensor x, int64_t groups, double epsilon) {
  if (!x.valid()) return x;
  const ScopeName name(scope.graph(), scope.path());
  const Dims dims = x.dims();
  if (dims.size() < 2 || groups < 1 || dims.back() % groups != 0) {
    return x.graph().Fail(
        InvalidArgument("{} in {} groups of features", ToString(x.shape()), groups));
  }
  Dims grouped = dims;
  grouped.back() = groups;
  grouped.push_back(dims.back() / groups);
  const auto rank = static_cast<int64_t>(grouped.size());
  Dims reduced;
  for (int64_t i = 1; i < rank; ++i) {
    if (i != rank - 2) reduced.push_back(i);
  }
  const auto over_group = [&](Tensor statistic) {
    return Broadcast(statistic, grouped, {0, rank - 2});
  };
  const Tensor wide = Reshape(Convert(x, kF32), grouped);
  const Tensor centered = wide - over_group(Mean(wide, reduced));
  const Tensor variance = Mean(centered * centered, reduced);
  const Tensor normal = centered * over_group(Rsqrt(variance + epsilon));
  const Affine affine(scope, dims.back(), ElementType::kF32);
  return Convert(affine(Reshape(normal, dims)), x.type());
}

}  // namespace minka
