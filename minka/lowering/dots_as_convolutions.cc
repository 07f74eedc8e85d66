#include "minka/lowering/dots_as_convolutions.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/base/check.h"
#include "minka/base/status.h"
#include "minka/ir/builder.h"
#include "minka/ir/replace_by_calls.h"
#include "minka/ir/simplify.h"

namespace minka {
namespace {

using Dims = std::vector<int64_t>;

bool IsImages(const Shape& shape) {
  return (shape.rank() == 4 || shape.rank() == 5) && shape.num_elements() > 0;
}

Dims Counting(int64_t begin, int64_t end) {
  Dims dims;
  for (int64_t dim = begin; dim < end; ++dim) dims.push_back(dim);
  return dims;
}

// A convolution of the dot's operands, the second one reshaped to be the kernel, and its result to
// be the dot's.
Module Body(const Shape& lhs, const Shape& rhs, Dims kernel_dims, ConvolutionAttributes attributes,
            const Instruction& dot) {
  ModuleBuilder module("convolution");
  ComputationBuilder b = module.Entry();
  b.SetOpName(dot.op_name);
  const Value images = b.Parameter(lhs, "images");
  const Value kernel = b.Reshape(b.Parameter(rhs, "kernel"), std::move(kernel_dims));
  const Value product = b.Convolution(images, kernel, std::move(attributes), dot.shape().type);
  b.SetResults({b.Reshape(product, dot.shape().dims)});
  absl::StatusOr<Module> body = std::move(module).Finish();
  MINKA_CHECK(body.ok(), "dot as a convolution: {}", Message(body.status()));
  return *std::move(body);
}

// Images by a matrix, of which the features are dimension `matrix_features`.
Module ByMatrix(const Shape& images, const Shape& matrix, int64_t matrix_features,
                const Instruction& dot) {
  const int64_t num_spatial = images.rank() - 2;
  Dims kernel_dims(num_spatial, 1);
  kernel_dims.insert(kernel_dims.end(), matrix.dims.begin(), matrix.dims.end());
  ConvolutionAttributes attributes{.window = std::vector<WindowDim>(num_spatial),
                                   .input_batch = 0,
                                   .input_feature = images.rank() - 1,
                                   .kernel_input_feature = num_spatial + matrix_features,
                                   .kernel_output_feature = num_spatial + 1 - matrix_features,
                                   .output_batch = 0,
                                   .output_feature = images.rank() - 1,
                                   .input_spatial = Counting(1, images.rank() - 1),
                                   .kernel_spatial = Counting(0, num_spatial),
                                   .output_spatial = Counting(1, images.rank() - 1)};
  return Body(images, matrix, std::move(kernel_dims), std::move(attributes), dot);
}

// The gradient of such a matrix: the images' batch is what the convolution contracts, their
// features are its batch, and the other images are a window that fits once.
Module MatrixGradient(const Shape& images, const Shape& gradient, const Instruction& dot) {
  const int64_t num_spatial = images.rank() - 2;
  ConvolutionAttributes attributes{.input_batch = images.rank() - 1,
                                   .input_feature = 0,
                                   .kernel_input_feature = 0,
                                   .kernel_output_feature = images.rank() - 1,
                                   .output_batch = num_spatial,
                                   .output_feature = num_spatial + 1,
                                   .input_spatial = Counting(1, images.rank() - 1),
                                   .kernel_spatial = Counting(1, images.rank() - 1),
                                   .output_spatial = Counting(0, num_spatial)};
  for (const int64_t dim : attributes.input_spatial) {
    attributes.window.push_back({.size = images.dims[dim]});
  }
  return Body(images, gradient, gradient.dims, std::move(attributes), dot);
}

std::optional<Module> AsConvolution(const Computation& computation,
                                    const Instruction& instruction) {
  if (instruction.opcode != Opcode::kDot) return std::nullopt;
  const auto& dot = instruction.As<DotAttributes>();
  const Shape& lhs = computation.shape(instruction.operands[0]);
  const Shape& rhs = computation.shape(instruction.operands[1]);
  if (!IsImages(lhs) || !dot.lhs_batch.empty() || !IsFloat(lhs.type) || lhs.type != rhs.type ||
      lhs.type != instruction.shape().type || rhs.num_elements() == 0) {
    return std::nullopt;
  }
  if (rhs.rank() == 2 && dot.lhs_contracting == Dims{lhs.rank() - 1}) {
    return ByMatrix(lhs, rhs, dot.rhs_contracting[0], instruction);
  }
  Dims contracted = dot.lhs_contracting;
  std::ranges::sort(contracted);
  if (rhs.rank() == lhs.rank() && contracted == Counting(0, lhs.rank() - 1) &&
      dot.lhs_contracting == dot.rhs_contracting) {
    return MatrixGradient(lhs, rhs, instruction);
  }
  return std::nullopt;
}

}  // namespace

Module DotsAsConvolutions(const Module& module) {
  return InlineCalls(ReplaceByCalls(module, AsConvolution));
}

}  // namespace minka
