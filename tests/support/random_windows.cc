#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "tests/support/program_generator.h"

namespace minka {

WindowDim ProgramGenerator::RandomWindow(int64_t base) {
  switch (Below(6)) {
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

WindowDim ProgramGenerator::RandomKernelWindow(int64_t base) {
  switch (Below(6)) {
    case 0:
      return {.size = 2, .padding_low = 1, .padding_high = 1, .base_dilation = 2, .reversal = true};
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

ProgramGenerator::Dims ProgramGenerator::Places(size_t rank) {
  Dims places(rank);
  std::iota(places.begin(), places.end(), 0);
  for (size_t i = rank - 1; i > 0; --i) {
    std::swap(places[i], places[Below(static_cast<int64_t>(i) + 1)]);
  }
  return places;
}

void ProgramGenerator::Convolution() {
  Known x = Pick(kF32, Chance(70) ? 3 : 2);
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
  const int64_t groups = OneOf<int64_t>({1, 2, 4, 8});
  if (Chance(60) && features % groups == 0) {
    a.feature_group_count = groups;
  } else if (batch % groups == 0) {
    a.batch_group_count = groups;
  }
  Dims kernel_dims(dims.size());
  kernel_dims[kernel[0]] = features / a.feature_group_count;
  kernel_dims[kernel[1]] =
      std::max(a.feature_group_count, a.batch_group_count) * OneOf<int64_t>({1, 2, 4});
  double count = static_cast<double>(features);
  for (size_t i = 0; i < num_spatial; ++i) {
    const WindowDim window = RandomKernelWindow(dims[input[2 + i]]);
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

std::vector<WindowDim> ProgramGenerator::RandomWindows(const Dims& dims, double& count) {
  std::vector<WindowDim> window;
  for (const int64_t dim : dims) {
    window.push_back(RandomWindow(dim));
    if (NumWindowPositions(dim, window.back()).value_or(0) == 0) window.back() = {};
    count *= static_cast<double>(window.back().size);
  }
  return window;
}

void ProgramGenerator::Pool() {
  Known x = PickSplittable(kF32);
  const Opcode reducer = OneOf({Opcode::kAdd, Opcode::kMaximum, Opcode::kMinimum});
  double count = 1;
  std::vector<WindowDim> window = RandomWindows(shape(x.value).dims, count);
  if (Chance(15)) {  // a cumulative sum
    const int64_t dim = Below(rank(x));
    const int64_t size = shape(x.value).dims[dim];
    window[dim] = {.size = size, .padding_low = size - 1};
    count *= static_cast<double>(size);
  }
  if (reducer == Opcode::kAdd) x = Bounded(x, std::floor((kLimit - 4096) / count));
  const Known init = InitialValue();
  const Value result = builder_.ReduceWindow(x.value, init.value, window, reducer);
  if (Product(shape(result).dims) > kMaxElements) return;
  Keep(result, init.bound + x.bound * (reducer == Opcode::kAdd ? count : 1));
}

void ProgramGenerator::SelectAndScatter() {
  const Known x = PickSplittable(kF32);
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
  const Known init = InitialValue();
  const auto select =
      Chance(50) ? CompareAttributes::Direction::kGe : CompareAttributes::Direction::kLe;
  Keep(builder_.SelectAndScatterAdd(x.value, source.value, init.value, window, select),
       init.bound + source.bound * count);
}

void ProgramGenerator::BatchNorm() {
  const Known x = Bounded(Pick(kF32, 2), 8);
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
      norm.operands.push_back(Bounded(PickLike(kF32, dims), 8).value);
    }
  }
  const int32_t num_results = opcode == Opcode::kBatchNormInference ? 1 : 3;
  const Value first = builder_.Append(std::move(norm));
  // Operands are at most 8, so centred ones at most 16. Terms as large cancel: in the gradient of x
  // scale (8) times two centred factors and a gradient, in that of scale sums over one feature.
  const double count = static_cast<double>(Product(dims) / dims[feature]);
  const double largest = opcode == Opcode::kBatchNormGrad
                             ? std::max(8.0 * 16 * 16 * 8, count * 16 * 8)
                             : 16.0 * 16 * 8;
  for (int32_t i = 0; i < num_results; ++i) {
    inexact_.push_back({{first.instruction, i}, largest * 1e-6});
  }
}

}  // namespace minka
