#include <algorithm>
#include <cmath>

#include "minka/ir/shape_inference_rules.h"
#include "minka/ir/window.h"

namespace minka {
namespace {

std::string WindowText(const WindowDim& window) {
  return fmt::format("size {} stride {} padding {}_{} dilations {} and {}", window.size,
                     window.stride, window.padding_low, window.padding_high, window.base_dilation,
                     window.window_dilation);
}

absl::StatusOr<int64_t> PositionsAlong(const ShapeContext& context, int64_t dim, int64_t size,
                                       const WindowDim& window) {
  const std::optional<int64_t> positions = NumWindowPositions(size, window);
  if (positions) return *positions;
  return DoesNotFit(context, "a window of {} is not possible along dimension {} of size {}",
                    WindowText(window), dim, size);
}

// The positions of a window over every dimension.
absl::StatusOr<std::vector<int64_t>> PositionsOver(const ShapeContext& context, const Shape& base) {
  const std::vector<WindowDim>& window = context.instruction.As<WindowAttributes>().dims;
  if (static_cast<int>(window.size()) != base.rank()) {
    return DoesNotFit(context, "a window of {} dimensions on {}", window.size(), ToString(base));
  }
  std::vector<int64_t> positions(base.rank());
  for (int dim = 0; dim < base.rank(); ++dim) {
    ASSIGN_OR_RETURN(positions[dim], PositionsAlong(context, dim, base.dims[dim], window[dim]));
  }
  return positions;
}

// Two numbered dimensions and the spatial ones, which are each dimension once.
absl::Status CheckLabels(const ShapeContext& context, int64_t first, int64_t second,
                         const std::vector<int64_t>& spatial, int rank, std::string_view what) {
  std::vector<int64_t> all = {first, second};
  all.insert(all.end(), spatial.begin(), spatial.end());
  RETURN_IF_ERROR(CheckDimensions(context, all, rank, what));
  const size_t num_spatial = context.instruction.As<ConvolutionAttributes>().window.size();
  if (spatial.size() == num_spatial && static_cast<int>(all.size()) == rank) {
    return absl::OkStatus();
  }
  return DoesNotFit(context, "{} of rank {} has {} spatial dimensions, the window {}", what, rank,
                    spatial.size(), num_spatial);
}

absl::Status CheckGroupCounts(const ShapeContext& context) {
  const auto& a = context.instruction.As<ConvolutionAttributes>();
  const Shape& input = context.operand(0);
  const Shape& kernel = context.operand(1);
  const int64_t features = input.dims[a.input_feature];
  const int64_t batch = input.dims[a.input_batch];
  const int64_t kernel_inputs = kernel.dims[a.kernel_input_feature];
  const int64_t outputs = kernel.dims[a.kernel_output_feature];
  if (a.feature_group_count < 1 || a.batch_group_count < 1 ||
      (a.feature_group_count > 1 && a.batch_group_count > 1)) {
    return DoesNotFit(context, "has {} feature and {} batch groups; one of them must be 1",
                      a.feature_group_count, a.batch_group_count);
  }
  if (features % a.feature_group_count != 0 || features / a.feature_group_count != kernel_inputs) {
    return DoesNotFit(context, "{} input features in {} groups for a kernel of {}", features,
                      a.feature_group_count, kernel_inputs);
  }
  const int64_t groups = std::max(a.feature_group_count, a.batch_group_count);
  if (outputs % groups != 0 || batch % a.batch_group_count != 0) {
    return DoesNotFit(context, "{} output features and a batch of {} do not form {} groups",
                      outputs, batch, groups);
  }
  return absl::OkStatus();
}

}  // namespace

InferredShapes InferConvolution(const ShapeContext& context) {
  RETURN_IF_ERROR(CheckNumOperands(context, 2));
  const Shape& input = context.operand(0);
  const Shape& kernel = context.operand(1);
  const auto& a = context.instruction.As<ConvolutionAttributes>();
  if (!SameTypeUpToPrecision(input.type, kernel.type) &&
      !(IsInteger(input.type) && IsInteger(kernel.type))) {
    return DoesNotFit(context, "operand types {} and {} differ", TypeName(input.type),
                      TypeName(kernel.type));
  }
  RETURN_IF_ERROR(
      CheckLabels(context, a.input_batch, a.input_feature, a.input_spatial, input.rank(), "input"));
  RETURN_IF_ERROR(CheckLabels(context, a.kernel_input_feature, a.kernel_output_feature,
                              a.kernel_spatial, kernel.rank(), "kernel"));
  RETURN_IF_ERROR(CheckLabels(context, a.output_batch, a.output_feature, a.output_spatial,
                              input.rank(), "output"));
  RETURN_IF_ERROR(CheckGroupCounts(context));
  Shape result;
  result.type = context.instruction.results.empty() ? input.type : context.instruction.shape().type;
  result.dims.resize(input.rank());
  result.dims[a.output_batch] = input.dims[a.input_batch] / a.batch_group_count;
  result.dims[a.output_feature] = kernel.dims[a.kernel_output_feature];
  for (size_t i = 0; i < a.window.size(); ++i) {
    const int64_t kernel_size = kernel.dims[a.kernel_spatial[i]];
    if (kernel_size != a.window[i].size) {
      return DoesNotFit(context, "spatial dimension {} of the kernel has size {}, the window {}", i,
                        kernel_size, a.window[i].size);
    }
    ASSIGN_OR_RETURN(
        result.dims[a.output_spatial[i]],
        PositionsAlong(context, a.input_spatial[i], input.dims[a.input_spatial[i]], a.window[i]));
  }
  return std::vector<Shape>{std::move(result)};
}

InferredShapes InferReduceWindow(const ShapeContext& context) {
  ASSIGN_OR_RETURN(const std::vector<ElementType> types, CheckReduction(context));
  ASSIGN_OR_RETURN(const std::vector<int64_t> dims, PositionsOver(context, context.operand(0)));
  std::vector<Shape> results;
  results.reserve(types.size());
  for (const ElementType type : types) results.push_back({type, dims});
  return results;
}

InferredShapes InferSelectAndScatter(const ShapeContext& context) {
  RETURN_IF_ERROR(CheckNumOperands(context, 3));
  const Shape& operand = context.operand(0);
  const Shape& source = context.operand(1);
  const Shape& init = context.operand(2);
  ASSIGN_OR_RETURN(const std::vector<int64_t> positions, PositionsOver(context, operand));
  if (source.dims != positions || !SameTypeUpToPrecision(source.type, operand.type)) {
    return DoesNotFit(context, "source {} for windows {} of {}", ToString(source),
                      DimsText(positions), ToString(operand));
  }
  if (init.rank() != 0 || !SameTypeUpToPrecision(init.type, operand.type)) {
    return DoesNotFit(context, "initial value {} is not a scalar of {}", ToString(init),
                      ToString(operand));
  }
  if (context.instruction.called.size() != 2) {
    return DoesNotFit(context, "calls {} computations, needs two",
                      context.instruction.called.size());
  }
  RETURN_IF_ERROR(CheckBinaryCallee(context, 0, operand.type, ElementType::kPred));
  RETURN_IF_ERROR(CheckBinaryCallee(context, 1, source.type, operand.type));
  return std::vector<Shape>{operand};
}

InferredShapes InferBatchNorm(const ShapeContext& context) {
  const Opcode opcode = context.instruction.opcode;
  RETURN_IF_ERROR(CheckNumOperands(context, opcode == Opcode::kBatchNormTraining ? 3 : 5));
  const Shape& x = context.operand(0);
  const auto [epsilon, feature] = context.instruction.As<BatchNormAttributes>();
  if (!std::isfinite(epsilon)) return DoesNotFit(context, "epsilon is {}", epsilon);
  RETURN_IF_ERROR(CheckDimensions(context, std::span(&feature, 1), x.rank(), "feature dimension"));
  if (!IsFloat(x.type)) return DoesNotFit(context, "takes floats, not {}", ToString(x));
  const bool is_gradient = opcode == Opcode::kBatchNormGrad;
  const int num_vectors = is_gradient ? 4 : context.num_operands();
  for (int i = 1; i < num_vectors; ++i) {
    const Shape& vector = context.operand(i);
    if (vector.rank() != 1 || vector.dims[0] != x.dims[feature] || !IsFloat(vector.type)) {
      return DoesNotFit(context, "operand {} is {}, not one number per feature of {}", i,
                        ToString(vector), ToString(x));
    }
  }
  if (is_gradient && (context.operand(4).dims != x.dims || !IsFloat(context.operand(4).type))) {
    return DoesNotFit(context, "gradient {} for {}", ToString(context.operand(4)), ToString(x));
  }
  if (opcode == Opcode::kBatchNormInference) return std::vector<Shape>{x};
  const Shape& vector = context.operand(1);
  return std::vector<Shape>{x, vector, vector};
}

}  // namespace minka
