#include "minka/ir/convolutions_as_dots.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "minka/base/check.h"
#include "minka/base/status.h"
#include "minka/ir/builder.h"
#include "minka/ir/replace_by_calls.h"

namespace minka {
namespace {

using Dims = std::vector<int64_t>;

// Does a window element, or a position, that advances by `step` from the base's first element that
// is not cropped, meet elements alone?
bool MeetsElementsAlone(const WindowDim& window, int64_t base_size, int64_t step, int64_t count) {
  return window.base_dilation == 1 && window.padding_low <= 0 && count > 0 &&
         (count - 1) * step - window.padding_low < base_size;
}

// How a spatial dimension of the input enters the dot.
struct SpatialDim {
  bool is_contracted = false;
  int64_t start = 0, count = 0, stride = 1;  // of the slice that the dot reads
  bool is_padded = false;                    // the dot's result, as the window says
};

std::optional<SpatialDim> AsDotDim(const WindowDim& window, int64_t base_size, int64_t positions) {
  if (window.size == 1) {
    if (MeetsElementsAlone(window, base_size, window.stride, positions)) {
      return SpatialDim{.start = -window.padding_low, .count = positions, .stride = window.stride};
    }
    if (window.stride == 1) return SpatialDim{.count = base_size, .is_padded = true};
    return std::nullopt;
  }
  if (positions == 1 && !window.reversal &&
      MeetsElementsAlone(window, base_size, window.window_dilation, window.size)) {
    return SpatialDim{.is_contracted = true,
                      .start = -window.padding_low,
                      .count = window.size,
                      .stride = window.window_dilation};
  }
  return std::nullopt;
}

// Writes the body of one convolution.
class AsDot {
 public:
  AsDot(const Computation& computation, const Instruction& instruction)
      : attributes_(instruction.As<ConvolutionAttributes>()),
        input_(computation.shape(instruction.operands[0])),
        kernel_(computation.shape(instruction.operands[1])),
        result_(instruction.shape()),
        op_name_(instruction.op_name) {}

  std::optional<Module> Run() {
    if (attributes_.feature_group_count != 1 || attributes_.batch_group_count != 1 ||
        input_.num_elements() == 0 || kernel_.num_elements() == 0 || result_.num_elements() == 0) {
      return std::nullopt;
    }
    for (size_t i = 0; i < attributes_.window.size(); ++i) {
      const std::optional<SpatialDim> dim =
          AsDotDim(attributes_.window[i], input_.dims[attributes_.input_spatial[i]],
                   result_.dims[attributes_.output_spatial[i]]);
      if (!dim) return std::nullopt;
      spatial_.push_back(*dim);
    }
    if (!IsInOrder()) return std::nullopt;
    return Body();
  }

 private:
  // The convolution's dimensions of the dot's result in its order: what the input keeps, then the
  // kernel's features.
  Dims OutputDimsOfDot() const {
    std::vector<std::pair<int64_t, int64_t>> kept = {
        {attributes_.input_batch, attributes_.output_batch}};
    for (size_t i = 0; i < spatial_.size(); ++i) {
      if (!spatial_[i].is_contracted)
        kept.emplace_back(attributes_.input_spatial[i], attributes_.output_spatial[i]);
    }
    std::ranges::sort(kept);
    Dims dims;
    for (const auto& [input, output] : kept) dims.push_back(output);
    dims.push_back(attributes_.output_feature);
    return dims;
  }

  bool IsInOrder() const { return std::ranges::is_sorted(OutputDimsOfDot()); }

  Value Sliced(ComputationBuilder& b, Value input) const {
    SliceAttributes slice{.starts = Dims(input_.dims.size(), 0),
                          .limits = input_.dims,
                          .strides = Dims(input_.dims.size(), 1)};
    for (size_t i = 0; i < spatial_.size(); ++i) {
      const SpatialDim& dim = spatial_[i];
      const int64_t at = attributes_.input_spatial[i];
      slice.starts[at] = dim.start;
      slice.limits[at] = dim.start + (dim.count - 1) * dim.stride + 1;
      slice.strides[at] = dim.stride;
    }
    const bool is_whole = std::ranges::all_of(slice.starts, [](int64_t s) { return s == 0; }) &&
                          std::ranges::all_of(slice.strides, [](int64_t s) { return s == 1; }) &&
                          slice.limits == input_.dims;
    return is_whole ? input : b.Slice(input, std::move(slice));
  }

  // A reshape that does nothing would be planned like any other, and XLA would drop it.
  static Value Reshaped(ComputationBuilder& b, Value x, const Dims& dims) {
    return b.shape(x).dims == dims ? x : b.Reshape(x, dims);
  }

  // The dims of a convolution's result with holes and padding, from those without.
  Value Padded(ComputationBuilder& b, Value x) const {
    PadAttributes pad{.low = Dims(result_.dims.size(), 0),
                      .high = Dims(result_.dims.size(), 0),
                      .interior = Dims(result_.dims.size(), 0)};
    bool pads = false;
    for (size_t i = 0; i < spatial_.size(); ++i) {
      if (!spatial_[i].is_padded) continue;
      const WindowDim& window = attributes_.window[i];
      const int64_t at = attributes_.output_spatial[i];
      pad.low[at] = window.padding_low;
      pad.high[at] = window.padding_high;
      pad.interior[at] = window.base_dilation - 1;
      pads = true;
    }
    return pads ? b.Pad(x, b.Scalar(result_.type, 0), std::move(pad)) : x;
  }

  Module Body() const {
    ModuleBuilder module("convolution");
    ComputationBuilder b = module.Entry();
    b.SetOpName(op_name_);
    const Value input = b.Parameter(input_, "input");
    const Value kernel = b.Parameter(kernel_, "kernel");

    // The kernel without its pointwise dimensions; where its other ones have gone.
    Dims kernel_dims, places(kernel_.dims.size(), -1);
    for (int64_t dim = 0; dim < kernel_.rank(); ++dim) {
      const auto found = std::ranges::find(attributes_.kernel_spatial, dim);
      const bool is_pointwise = found != attributes_.kernel_spatial.end() &&
                                !spatial_[found - attributes_.kernel_spatial.begin()].is_contracted;
      if (is_pointwise) continue;
      places[dim] = static_cast<int64_t>(kernel_dims.size());
      kernel_dims.push_back(kernel_.dims[dim]);
    }
    DotAttributes dot{.lhs_contracting = {attributes_.input_feature},
                      .rhs_contracting = {places[attributes_.kernel_input_feature]}};
    for (size_t i = 0; i < spatial_.size(); ++i) {
      if (!spatial_[i].is_contracted) continue;
      dot.lhs_contracting.push_back(attributes_.input_spatial[i]);
      dot.rhs_contracting.push_back(places[attributes_.kernel_spatial[i]]);
    }
    const Value product =
        b.Dot(Sliced(b, input), Reshaped(b, kernel, kernel_dims), std::move(dot), result_.type);

    // Contracted dimensions stand in the result with size 1.
    Dims dims = result_.dims;
    for (size_t i = 0; i < spatial_.size(); ++i) {
      if (spatial_[i].is_padded)
        dims[attributes_.output_spatial[i]] = input_.dims[attributes_.input_spatial[i]];
    }
    b.SetResults({Padded(b, Reshaped(b, product, dims))});
    absl::StatusOr<Module> body = std::move(module).Finish();
    MINKA_CHECK(body.ok(), "convolution as a dot: {}", Message(body.status()));
    return *std::move(body);
  }

  const ConvolutionAttributes& attributes_;
  const Shape& input_;
  const Shape& kernel_;
  const Shape& result_;
  const std::string& op_name_;
  std::vector<SpatialDim> spatial_;
};

}  // namespace

Module ConvolutionsAsDots(Module module) {
  return ReplaceByCalls(
      std::move(module),
      [](const Computation& computation, const Instruction& instruction) -> std::optional<Module> {
        if (instruction.opcode != Opcode::kConvolution) return std::nullopt;
        return AsDot(computation, instruction).Run();
      });
}

}  // namespace minka
