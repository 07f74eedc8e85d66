// The rules behind InferShapes, one per opcode with a shape of its own. Each gets an instruction
// whose attributes have the right type, and returns the result shapes or why they do not exist.
#pragma once

#include <span>
#include <vector>

#include "minka/base/status.h"
#include "minka/ir/module.h"

namespace minka {

struct ShapeContext {
  const Module& module;
  const Instruction& instruction;
  std::span<const Shape> operands;

  const Shape& operand(size_t index) const { return operands[index]; }
  int num_operands() const { return static_cast<int>(operands.size()); }
};

using InferredShapes = absl::StatusOr<std::vector<Shape>>;

// "dot: <message>", naming the opcode in front.
template <typename... Args>
absl::Status DoesNotFit(const ShapeContext& context, fmt::format_string<Args...> format,
                        Args&&... args) {
  const Instruction& instruction = context.instruction;
  const auto* opaque = std::get_if<OpaqueAttributes>(&instruction.attributes);
  return InvalidArgument(
      "{}: {}", opaque != nullptr ? std::string_view(opaque->name) : OpcodeName(instruction.opcode),
      fmt::format(format, std::forward<Args>(args)...));
}

// "[1,2,3]" for messages.
std::string DimsText(std::span<const int64_t> dims);

absl::Status CheckNumOperands(const ShapeContext& context, int expected);
// Every entry lies in [0, rank) and none comes twice.
absl::Status CheckDimensions(const ShapeContext& context, std::span<const int64_t> dims, int rank,
                             std::string_view what);
absl::Status CheckSortedDimensions(const ShapeContext& context, std::span<const int64_t> dims,
                                   int rank, std::string_view what);
// The only declared result, for opcodes whose operands do not say it.
absl::StatusOr<Shape> DeclaredResult(const ShapeContext& context);
// Equal, or both floats: the mixed precision that XLA lets through.
bool SameTypeUpToPrecision(ElementType a, ElementType b);

// The dims of `shape` reinterpreted as `type`: a narrower type appends a dimension, a wider one
// drops the last. nullopt: the widths do not fit.
std::optional<std::vector<int64_t>> BitcastDims(const Shape& shape, ElementType type);

// shape_inference_data.cc
InferredShapes InferBitcastConvert(const ShapeContext& context);
InferredShapes InferBroadcast(const ShapeContext& context);
InferredShapes InferConcatenate(const ShapeContext& context);
InferredShapes InferConstant(const ShapeContext& context);
InferredShapes InferDynamicSlice(const ShapeContext& context);
InferredShapes InferDynamicUpdateSlice(const ShapeContext& context);
InferredShapes InferGather(const ShapeContext& context);
InferredShapes InferIota(const ShapeContext& context);
InferredShapes InferPad(const ShapeContext& context);
InferredShapes InferReshape(const ShapeContext& context);
InferredShapes InferReverse(const ShapeContext& context);
InferredShapes InferRng(const ShapeContext& context);
InferredShapes InferScatter(const ShapeContext& context);
InferredShapes InferSlice(const ShapeContext& context);
InferredShapes InferTranspose(const ShapeContext& context);

// shape_inference_calls.cc
InferredShapes InferCall(const ShapeContext& context);
InferredShapes InferCollectivePermute(const ShapeContext& context);
InferredShapes InferConditional(const ShapeContext& context);
InferredShapes InferDot(const ShapeContext& context);
InferredShapes InferMap(const ShapeContext& context);
InferredShapes InferReduce(const ShapeContext& context);
InferredShapes InferSort(const ShapeContext& context);
InferredShapes InferTopK(const ShapeContext& context);
InferredShapes InferWhile(const ShapeContext& context);
InferredShapes InferAllReduce(const ShapeContext& context);
InferredShapes InferAllGather(const ShapeContext& context);
InferredShapes InferReduceScatter(const ShapeContext& context);
InferredShapes InferAllToAll(const ShapeContext& context);
// Inputs of equal dims and as many scalar initial values, and a reducer for their types: reduce and
// reduce-window. Returns the types that the reducer gives.
absl::StatusOr<std::vector<ElementType>> CheckReduction(const ShapeContext& context);
absl::Status CheckReducer(const ShapeContext& context, std::span<const ElementType> types);
// Called computation `index` makes one scalar of two.
absl::Status CheckBinaryCallee(const ShapeContext& context, size_t index, ElementType operand,
                               ElementType result);

// shape_inference_windows.cc
InferredShapes InferBatchNorm(const ShapeContext& context);
InferredShapes InferConvolution(const ShapeContext& context);
InferredShapes InferReduceWindow(const ShapeContext& context);
InferredShapes InferSelectAndScatter(const ShapeContext& context);

}  // namespace minka
