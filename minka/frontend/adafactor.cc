#include <algorithm>
#include <cmath>
#include <numeric>

#include "minka/frontend/optimizer.h"
#include "minka/frontend/update_terms.h"

namespace minka {
namespace {

constexpr double kMinParameterScale = 1e-3;

// The slots of a parameter, by number.
enum Slot { kWhole, kRow, kColumn };

// The two dimensions over which second moments are factored: `largest` is averaged away for the
// row means, `second` for the column means.
struct FactoredDims {
  int64_t second = 0, largest = 0;
};

std::optional<FactoredDims> FactoredDimsOf(const AdafactorOptions& options, const Shape& shape) {
  if (shape.rank() < 2) return std::nullopt;
  std::vector<int64_t> order(shape.rank());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](int64_t dim) { return shape.dims[dim]; });
  const FactoredDims dims{order[order.size() - 2], order.back()};
  if (shape.dims[dims.second] < options.min_factored_dim) return std::nullopt;
  return dims;
}

Shape Without(Shape shape, int64_t dim) {
  shape.dims.erase(shape.dims.begin() + dim);
  return shape;
}

// x, repeated along a dimension `dim` of the result that x lacks.
Tensor Along(Tensor x, Tensor like, int64_t dim) {
  std::vector<int64_t> positions;
  for (int64_t i = 0; i < like.rank(); ++i) {
    if (i != dim) positions.push_back(i);
  }
  return Broadcast(x, like.dims(), positions);
}

Tensor RootMeanSquare(Tensor x) { return Sqrt(Mean(x * x)); }

// A moment after this update; the decay is scalar 0, one minus it scalar 1.
Tensor Averaged(const UpdateInputs& inputs, Tensor moment, Tensor now) {
  return moment * Spread(inputs.scalars.own[0], moment) + now * Spread(inputs.scalars.own[1], now);
}

// The gradient over the root of the factored moment row * column / mean(row).
Tensor Normalized(Tensor gradient, Tensor row, Tensor column, const FactoredDims& dims) {
  const int64_t second = dims.second - (dims.second > dims.largest ? 1 : 0);
  const Tensor row_part = Rsqrt(row / Along(Mean(row, {second}), row, second));
  return gradient * Along(row_part, gradient, dims.largest) *
         Along(Rsqrt(column), gradient, dims.second);
}

struct Preconditioned {
  Tensor direction;
  std::vector<Tensor> slots;
};

Preconditioned Precondition(const AdafactorOptions& options, const UpdateInputs& inputs) {
  const Tensor g = inputs.gradient;
  const Tensor squares = g * g + options.epsilon;
  const auto dims = FactoredDimsOf(options, inputs.spec.shape);
  if (!dims) {
    const Tensor v = Averaged(inputs, inputs.slots[kWhole], squares);
    return {g * Rsqrt(v), {v, Tensor(), Tensor()}};
  }
  const Tensor row = Averaged(inputs, inputs.slots[kRow], Mean(squares, {dims->largest}));
  const Tensor column = Averaged(inputs, inputs.slots[kColumn], Mean(squares, {dims->second}));
  return {Normalized(g, row, column, *dims), {Tensor(), row, column}};
}

ParameterUpdate UpdateByAdafactor(const AdafactorOptions& options, const UpdateInputs& inputs) {
  auto [direction, slots] = Precondition(options, inputs);
  Tensor scale = 1.0 / Max(RootMeanSquare(direction) / options.clipping_threshold, 1.0);
  if (options.scales_by_parameter) {
    scale = scale * Max(RootMeanSquare(inputs.parameter), kMinParameterScale);
  }
  return {Moved(inputs, direction * Spread(scale, direction)), std::move(slots)};
}

}  // namespace

Optimizer Adafactor(const AdafactorOptions& options) {
  const auto slot = [options](Slot slot) {
    return [options, slot](const ParameterSpec& spec) -> std::optional<Shape> {
      const auto dims = FactoredDimsOf(options, spec.shape);
      if (dims.has_value() == (slot == kWhole)) return std::nullopt;
      if (!dims) return spec.shape;
      return Without(spec.shape, slot == kRow ? dims->largest : dims->second);
    };
  };
  Optimizer adafactor{
      .name = "adafactor",
      .slots = {{"v", slot(kWhole)}, {"v_row", slot(kRow)}, {"v_col", slot(kColumn)}},
      .learning_rate = options.learning_rate,
      .counts_updates = true};
  adafactor.prepare = [options](Tensor count) {
    const Tensor now = Exp(Log(count) * -options.decay_exponent);
    return std::vector<Tensor>{1.0 - now, now};
  };
  adafactor.update = [options](const UpdateInputs& inputs) {
    return UpdateByAdafactor(options, inputs);
  };
  return adafactor;
}

}  // namespace minka
