#include "minka/lowering/convolution_forms.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "minka/analysis/convolution_form.h"
#include "minka/base/check.h"
#include "minka/base/status.h"
#include "minka/ir/builder.h"
#include "minka/ir/replace_by_calls.h"
#include "minka/ir/simplify.h"

namespace minka {
namespace {

using Dims = std::vector<int64_t>;

int64_t Product(const Dims& dims) {
  return std::accumulate(dims.begin(), dims.end(), int64_t{1}, std::multiplies<>());
}

// A convolution with its shapes.
struct Convolution {
  Convolution(const Computation& computation, const Instruction& instruction)
      : attributes(instruction.As<ConvolutionAttributes>()),
        input(computation.shape(instruction.operands[0])),
        kernel(computation.shape(instruction.operands[1])),
        result(instruction.shape()),
        op_name(instruction.op_name) {}

  int num_spatial() const { return static_cast<int>(attributes.window.size()); }
  int64_t input_size(int i) const { return input.dims[attributes.input_spatial[i]]; }
  int64_t positions(int i) const { return result.dims[attributes.output_spatial[i]]; }

  const ConvolutionAttributes& attributes;
  const Shape &input, &kernel, &result;
  const std::string& op_name;
};

// Calls visit(index) for every index below the sizes, the last one fastest.
void ForEachIndex(const Dims& sizes, const std::function<void(const Dims&)>& visit) {
  Dims index(sizes.size(), 0);
  for (int64_t left = Product(sizes); left > 0; --left) {
    visit(index);
    for (size_t i = sizes.size(); i-- > 0;) {
      if (++index[i] < sizes[i]) break;
      index[i] = 0;
    }
  }
}

// Writes depthwise convolutions.
class ByTaps {
 public:
  explicit ByTaps(const Convolution& convolution)
      : c_(convolution), attributes_(convolution.attributes), b_(module_.Entry()) {
    b_.SetOpName(c_.op_name);
    const Value input = InF32(b_.Parameter(c_.input, "input"));
    kernel_ = InF32(b_.Parameter(c_.kernel, "kernel"));
    PadAttributes pad{.low = Dims(c_.input.dims.size(), 0),
                      .high = Dims(c_.input.dims.size(), 0),
                      .interior = Dims(c_.input.dims.size(), 0)};
    for (int i = 0; i < c_.num_spatial(); ++i) {
      const int64_t dim = attributes_.input_spatial[i];
      pad.low[dim] = attributes_.window[i].padding_low;
      pad.high[dim] = attributes_.window[i].padding_high;
      pad.interior[dim] = attributes_.window[i].base_dilation - 1;
    }
    // Computed in each of its readers it would be compared and selected.
    padded_ = WrittenOnce(b_.Pad(input, Zero(), std::move(pad)));
  }

  Module Forward() && {
    Value sum{-1, 0};
    ForEachIndex(Sizes([](const WindowDim& window) { return window.size; }), [&](const Dims& tap) {
      const Value product = b_.Binary(Opcode::kMultiply, InputUnder(tap), Weights(tap));
      sum = sum.instruction < 0 ? product : b_.Binary(Opcode::kAdd, sum, product);
    });
    // From the input's order of dimensions to the output's.
    Dims place(c_.result.dims.size());
    place[attributes_.output_batch] = attributes_.input_batch;
    place[attributes_.output_feature] = attributes_.input_feature;
    for (int i = 0; i < c_.num_spatial(); ++i) {
      place[attributes_.output_spatial[i]] = attributes_.input_spatial[i];
    }
    // Each reader would compute the sum anew: what normalises it, and the backward pass, several.
    return Finish(WrittenOnce(b_.Convert(Transposed(sum, place), c_.result.type)));
  }

  Module KernelGradient() && {
    // The kernel, which is the result's gradient, in the input's order of dimensions.
    Dims place(c_.input.dims.size());
    place[attributes_.input_batch] = attributes_.kernel_output_feature;
    place[attributes_.input_feature] = attributes_.kernel_input_feature;
    Dims reduced = {attributes_.input_feature};
    for (int i = 0; i < c_.num_spatial(); ++i) {
      place[attributes_.input_spatial[i]] = attributes_.kernel_spatial[i];
      reduced.push_back(attributes_.input_spatial[i]);
    }
    const Value gradient = Transposed(kernel_, place);
    std::vector<Value> taps;
    Dims sizes;
    for (int i = 0; i < c_.num_spatial(); ++i) sizes.push_back(c_.positions(i));
    const int64_t features = c_.result.dims[attributes_.output_feature];
    ForEachIndex(sizes, [&](const Dims& position) {
      const Value product = b_.Binary(Opcode::kMultiply, InputAt(position), gradient);
      taps.push_back(b_.Reshape(b_.Reduce(product, Zero(), reduced, Opcode::kAdd), {1, features}));
    });
    const Value all = taps.size() == 1 ? taps[0] : b_.Concatenate(taps, 0);
    // [taps, features], the taps row-major in the order of the window.
    Dims split = sizes;
    split.push_back(features);
    split.push_back(1);  // the batch
    place.assign(c_.result.dims.size(), 0);
    place[attributes_.output_feature] = c_.num_spatial();
    place[attributes_.output_batch] = c_.num_spatial() + 1;
    for (int i = 0; i < c_.num_spatial(); ++i) place[attributes_.output_spatial[i]] = i;
    return Finish(Transposed(b_.Reshape(all, split), place));
  }

 private:
  // To memory.
  Value WrittenOnce(Value x) {
    const Value values[] = {x};
    return b_.OptBarrier(values)[0];
  }

  Value InF32(Value x) { return b_.Convert(x, ComputeType()); }
  ElementType ComputeType() const {
    return c_.result.type == ElementType::kF64 ? ElementType::kF64 : ElementType::kF32;
  }
  Value Zero() { return b_.Scalar(ComputeType(), 0); }

  template <typename SizeOf>
  Dims Sizes(const SizeOf& size_of) const {
    Dims sizes;
    for (const WindowDim& window : attributes_.window) sizes.push_back(size_of(window));
    return sizes;
  }

  Value Sliced(const Dims& starts, const Dims& counts, const Dims& strides) {
    const Dims& padded = b_.shape(padded_).dims;
    SliceAttributes slice{
        .starts = Dims(padded.size(), 0), .limits = padded, .strides = Dims(padded.size(), 1)};
    for (int i = 0; i < c_.num_spatial(); ++i) {
      const int64_t dim = attributes_.input_spatial[i];
      slice.starts[dim] = starts[i];
      slice.limits[dim] = starts[i] + (counts[i] - 1) * strides[i] + 1;
      slice.strides[dim] = strides[i];
    }
    return b_.Slice(padded_, std::move(slice));
  }

  // What one element of the window meets, at every position of the window.
  Value InputUnder(const Dims& tap) {
    Dims starts, counts, strides;
    for (int i = 0; i < c_.num_spatial(); ++i) {
      starts.push_back(tap[i] * attributes_.window[i].window_dilation);
      counts.push_back(c_.positions(i));
      strides.push_back(attributes_.window[i].stride);
    }
    return Sliced(starts, counts, strides);
  }

  // What the whole window meets at one position.
  Value InputAt(const Dims& position) {
    Dims starts, counts, strides;
    for (int i = 0; i < c_.num_spatial(); ++i) {
      starts.push_back(position[i] * attributes_.window[i].stride);
      counts.push_back(attributes_.window[i].size);
      strides.push_back(attributes_.window[i].window_dilation);
    }
    return Sliced(starts, counts, strides);
  }

  // One element of the kernel for each feature, in the shape of InputUnder.
  Value Weights(const Dims& tap) {
    const Dims& kernel = c_.kernel.dims;
    SliceAttributes slice{
        .starts = Dims(kernel.size(), 0), .limits = kernel, .strides = Dims(kernel.size(), 1)};
    for (int i = 0; i < c_.num_spatial(); ++i) {
      const WindowDim& window = attributes_.window[i];
      const int64_t dim = attributes_.kernel_spatial[i];
      slice.starts[dim] = window.reversal ? window.size - 1 - tap[i] : tap[i];
      slice.limits[dim] = slice.starts[dim] + 1;
    }
    const int64_t features = c_.input.dims[attributes_.input_feature];
    Dims dims = c_.input.dims;
    for (int i = 0; i < c_.num_spatial(); ++i) dims[attributes_.input_spatial[i]] = c_.positions(i);
    return b_.Broadcast(b_.Reshape(b_.Slice(kernel_, std::move(slice)), {features}), dims,
                        {attributes_.input_feature});
  }

  // Dimension i of the result is dimension place[i] of x.
  Value Transposed(Value x, const Dims& place) {
    return std::ranges::is_sorted(place) ? x : b_.Transpose(x, place);
  }

  Module Finish(Value result) {
    b_.SetResults({b_.Convert(result, c_.result.type)});
    absl::StatusOr<Module> body = std::move(module_).Finish();
    MINKA_CHECK(body.ok(), "depthwise convolution: {}", Message(body.status()));
    MINKA_CHECK(body->entry_computation().shape(body->entry_computation().results[0]) == c_.result,
                "depthwise convolution: another shape than {}", ToString(c_.result));
    return *std::move(body);
  }

  const Convolution& c_;
  const ConvolutionAttributes& attributes_;
  ModuleBuilder module_{"convolution"};
  ComputationBuilder b_;
  Value padded_, kernel_;
};

Value Reversed(ComputationBuilder& b, Value x, const Dims& dims) {
  return b.Append(
      {.opcode = Opcode::kReverse, .operands = {x}, .attributes = DimensionsAttributes{dims}});
}

Module Exchanged(const Convolution& c) {
  ModuleBuilder module("convolution");
  ComputationBuilder b = module.Entry();
  b.SetOpName(c.op_name);
  const Value input = b.Parameter(c.input, "input");
  const Value kernel = b.Parameter(c.kernel, "kernel");
  const ConvolutionAttributes& old = c.attributes;
  ConvolutionAttributes exchanged = old;
  std::swap(exchanged.output_batch, exchanged.output_feature);
  exchanged.input_batch = old.kernel_output_feature;
  exchanged.input_feature = old.kernel_input_feature;
  exchanged.kernel_output_feature = old.input_batch;
  exchanged.kernel_input_feature = old.input_feature;
  std::swap(exchanged.input_spatial, exchanged.kernel_spatial);
  for (int i = 0; i < c.num_spatial(); ++i) {
    WindowDim& window = exchanged.window[i];
    const int64_t spread_window = (window.size - 1) * window.window_dilation + 1;
    const int64_t spread_input = (c.input_size(i) - 1) * window.base_dilation + 1;
    window.size = c.input_size(i);
    window.padding_low += spread_input - spread_window;
    window.padding_high += spread_input - spread_window;
    std::swap(window.base_dilation, window.window_dilation);
  }
  b.SetResults(
      {b.Convolution(Reversed(b, kernel, old.kernel_spatial), Reversed(b, input, old.input_spatial),
                     std::move(exchanged), c.result.type)});
  absl::StatusOr<Module> body = std::move(module).Finish();
  MINKA_CHECK(body.ok(), "exchanged convolution: {}", Message(body.status()));
  return *std::move(body);
}

std::optional<Module> FastForm(const Computation& computation, const Instruction& instruction) {
  if (instruction.opcode != Opcode::kConvolution) return std::nullopt;
  const Convolution convolution(computation, instruction);
  switch (ConvolutionFormOf(convolution.attributes, convolution.input, convolution.kernel,
                            convolution.result)) {
    case ConvolutionForm::kDepthwise:
      return ByTaps(convolution).Forward();
    case ConvolutionForm::kDepthwiseKernelGradient:
      return ByTaps(convolution).KernelGradient();
    case ConvolutionForm::kExchanged:
      return Exchanged(convolution);
    case ConvolutionForm::kPlain:
      return std::nullopt;
  }
  MINKA_CHECK(false);
}

}  // namespace

Module ConvolutionForms(const Module& module) {
  return InlineCalls(ReplaceByCalls(module, FastForm));
}

}  // namespace minka
