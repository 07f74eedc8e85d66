#include "minka/ir/shape_inference.h"

#include <algorithm>

#include "fmt/ranges.h"
#include "minka/ir/shape_inference_rules.h"

namespace minka {

std::string DimsText(std::span<const int64_t> dims) {
  return fmt::format("[{}]", fmt::join(dims, ","));
}

absl::Status CheckNumOperands(const ShapeContext& context, int expected) {
  if (context.num_operands() == expected) return absl::OkStatus();
  return DoesNotFit(context, "has {} operands, needs {}", context.num_operands(), expected);
}

absl::Status CheckDimensions(const ShapeContext& context, std::span<const int64_t> dims, int rank,
                             std::string_view what) {
  std::vector<bool> seen(rank);
  for (const int64_t dim : dims) {
    if (dim < 0 || dim >= rank) {
      return DoesNotFit(context, "{} {}: {} is not a dimension of rank {}", what, DimsText(dims),
                        dim, rank);
    }
    if (seen[dim]) return DoesNotFit(context, "{} {}: {} twice", what, DimsText(dims), dim);
    seen[dim] = true;
  }
  return absl::OkStatus();
}

absl::Status CheckSortedDimensions(const ShapeContext& context, std::span<const int64_t> dims,
                                   int rank, std::string_view what) {
  RETURN_IF_ERROR(CheckDimensions(context, dims, rank, what));
  if (std::is_sorted(dims.begin(), dims.end())) return absl::OkStatus();
  return DoesNotFit(context, "{} {} are not in ascending order", what, DimsText(dims));
}

absl::StatusOr<Shape> DeclaredResult(const ShapeContext& context) {
  const size_t num_results = context.instruction.results.size();
  if (num_results == 1) return context.instruction.shape();
  return DoesNotFit(context, "declares {} results, needs one", num_results);
}

bool SameTypeUpToPrecision(ElementType a, ElementType b) {
  return a == b || (IsFloat(a) && IsFloat(b));
}

namespace {

bool IsIntegerOrPred(ElementType type) { return IsInteger(type) || type == ElementType::kPred; }
bool IsArithmetic(ElementType type) {
  return IsFloat(type) || IsIntegerOrPred(type) || IsComplex(type);
}

ElementType ComponentType(ElementType complex) {
  return complex == ElementType::kC64 ? ElementType::kF32 : ElementType::kF64;
}

absl::Status CheckOperandType(const ShapeContext& context, bool fits, std::string_view needed) {
  if (fits) return absl::OkStatus();
  return DoesNotFit(context, "takes {}, not {}", needed, ToString(context.operand(0)));
}

absl::StatusOr<ElementType> UnaryResultType(const ShapeContext& context) {
  const ElementType type = context.operand(0).type;
  const bool floating = IsFloat(type);
  const bool complex = IsComplex(type);
  switch (context.instruction.opcode) {
    case Opcode::kCopy:
      return type;
    case Opcode::kConvert: {
      ASSIGN_OR_RETURN(const Shape declared, DeclaredResult(context));
      if (!IsArithmetic(declared.type) || !IsArithmetic(type)) {
        return DoesNotFit(context, "{} does not convert to {}", TypeName(type),
                          TypeName(declared.type));
      }
      return declared.type;
    }
    case Opcode::kReal:
    case Opcode::kImag:
      RETURN_IF_ERROR(CheckOperandType(context, floating || complex, "floats or complex numbers"));
      return complex ? ComponentType(type) : type;
    case Opcode::kAbs:
      RETURN_IF_ERROR(CheckOperandType(context, IsArithmetic(type), "numbers"));
      return complex ? ComponentType(type) : type;
    case Opcode::kIsFinite:
      RETURN_IF_ERROR(CheckOperandType(context, floating, "floats"));
      return ElementType::kPred;
    case Opcode::kNot:
      RETURN_IF_ERROR(CheckOperandType(context, IsIntegerOrPred(type), "integers or predicates"));
      return type;
    case Opcode::kCountLeadingZeros:
    case Opcode::kPopulationCount:
      RETURN_IF_ERROR(CheckOperandType(context, IsInteger(type), "integers"));
      return type;
    case Opcode::kCeil:
    case Opcode::kErf:
    case Opcode::kFloor:
    case Opcode::kReducePrecision:
    case Opcode::kRoundNearestAfz:
    case Opcode::kRoundNearestEven:
      RETURN_IF_ERROR(CheckOperandType(context, floating, "floats"));
      return type;
    case Opcode::kNegate:
    case Opcode::kSign:
      RETURN_IF_ERROR(CheckOperandType(context, floating || complex || IsInteger(type), "numbers"));
      return type;
    default:  // every other unary opcode is a function on real or complex numbers
      RETURN_IF_ERROR(CheckOperandType(context, floating || complex, "floats or complex numbers"));
      return type;
  }
}

InferredShapes InferUnary(const ShapeContext& context) {
  RETURN_IF_ERROR(CheckNumOperands(context, 1));
  ASSIGN_OR_RETURN(const ElementType type, UnaryResultType(context));
  return std::vector<Shape>{{type, context.operand(0).dims}};
}

absl::StatusOr<ElementType> BinaryResultType(const ShapeContext& context) {
  const ElementType type = context.operand(0).type;
  switch (context.instruction.opcode) {
    case Opcode::kCompare:
      return ElementType::kPred;
    case Opcode::kComplex:
      if (type == ElementType::kF32) return ElementType::kC64;
      RETURN_IF_ERROR(CheckOperandType(context, type == ElementType::kF64, "f32 or f64"));
      return ElementType::kC128;
    case Opcode::kAnd:
    case Opcode::kOr:
    case Opcode::kXor:
      RETURN_IF_ERROR(CheckOperandType(context, IsIntegerOrPred(type), "integers or predicates"));
      return type;
    case Opcode::kShiftLeft:
    case Opcode::kShiftRightArithmetic:
    case Opcode::kShiftRightLogical:
      RETURN_IF_ERROR(CheckOperandType(context, IsInteger(type), "integers"));
      return type;
    default:  // arithmetic
      RETURN_IF_ERROR(CheckOperandType(context, IsArithmetic(type), "numbers"));
      return type;
  }
}

InferredShapes InferBinary(const ShapeContext& context) {
  RETURN_IF_ERROR(CheckNumOperands(context, 2));
  const Shape& x = context.operand(0);
  const Shape& y = context.operand(1);
  if (x.dims != y.dims) {
    return DoesNotFit(context, "operand shapes {} and {} differ", ToString(x), ToString(y));
  }
  if (context.instruction.opcode == Opcode::kStochasticConvert) {
    ASSIGN_OR_RETURN(const Shape declared, DeclaredResult(context));
    RETURN_IF_ERROR(CheckOperandType(context, IsFloat(x.type), "floats"));
    return std::vector<Shape>{{declared.type, x.dims}};
  }
  if (x.type != y.type) {
    return DoesNotFit(context, "operand types {} and {} differ", TypeName(x.type),
                      TypeName(y.type));
  }
  ASSIGN_OR_RETURN(const ElementType type, BinaryResultType(context));
  return std::vector<Shape>{{type, x.dims}};
}

InferredShapes InferSelect(const ShapeContext& context) {
  RETURN_IF_ERROR(CheckNumOperands(context, 3));
  const Shape& predicate = context.operand(0);
  const Shape& on_true = context.operand(1);
  if (on_true != context.operand(2)) {
    return DoesNotFit(context, "branch shapes {} and {} differ", ToString(on_true),
                      ToString(context.operand(2)));
  }
  if (predicate.type != ElementType::kPred) {
    return DoesNotFit(context, "the selector is {}, not pred", ToString(predicate));
  }
  if (predicate.rank() != 0 && predicate.dims != on_true.dims) {
    return DoesNotFit(context, "selector {} is neither a scalar nor of the branches' shape {}",
                      ToString(predicate), ToString(on_true));
  }
  return std::vector<Shape>{on_true};
}

InferredShapes InferClamp(const ShapeContext& context) {
  RETURN_IF_ERROR(CheckNumOperands(context, 3));
  const Shape& x = context.operand(1);
  for (const int index : {0, 2}) {
    const Shape& bound = context.operand(index);
    if (bound.type != x.type || (bound.rank() != 0 && bound.dims != x.dims)) {
      return DoesNotFit(context, "bound {} does not fit {}", ToString(bound), ToString(x));
    }
  }
  return std::vector<Shape>{x};
}

InferredShapes InferAsDeclared(const ShapeContext& context) { return context.instruction.results; }

InferredShapes InferAsOperands(const ShapeContext& context) {
  return std::vector<Shape>(context.operands.begin(), context.operands.end());
}

InferredShapes InferDeviceNumber(const ShapeContext& context) {
  RETURN_IF_ERROR(CheckNumOperands(context, 0));
  return std::vector<Shape>{{ElementType::kU32, {}}};
}

InferredShapes InferParameter(const ShapeContext& context) {
  RETURN_IF_ERROR(CheckNumOperands(context, 0));
  ASSIGN_OR_RETURN(Shape declared, DeclaredResult(context));
  return std::vector<Shape>{std::move(declared)};
}

// Which alternative of Attributes the opcode needs; those whose fields nothing decodes take any.
template <typename T>
bool Has(const Instruction& instruction) {
  return std::holds_alternative<T>(instruction.attributes);
}

bool AttributesFit(const Instruction& instruction) {
  switch (instruction.opcode) {
    case Opcode::kParameter:
      return Has<ParameterAttributes>(instruction);
    case Opcode::kConstant:
      return Has<ConstantAttributes>(instruction);
    case Opcode::kBroadcast:
    case Opcode::kConcatenate:
    case Opcode::kIota:
    case Opcode::kReduce:
    case Opcode::kReverse:
    case Opcode::kSort:
    case Opcode::kTranspose:
      return Has<DimensionsAttributes>(instruction);
    case Opcode::kSlice:
      return Has<SliceAttributes>(instruction);
    case Opcode::kDynamicSlice:
      return Has<DynamicSliceAttributes>(instruction);
    case Opcode::kPad:
      return Has<PadAttributes>(instruction);
    case Opcode::kDot:
      return Has<DotAttributes>(instruction);
    case Opcode::kReduceWindow:
    case Opcode::kSelectAndScatter:
      return Has<WindowAttributes>(instruction);
    case Opcode::kConvolution:
      return Has<ConvolutionAttributes>(instruction);
    case Opcode::kBatchNormGrad:
    case Opcode::kBatchNormInference:
    case Opcode::kBatchNormTraining:
      return Has<BatchNormAttributes>(instruction);
    case Opcode::kGather:
      return Has<GatherAttributes>(instruction);
    case Opcode::kScatter:
      return Has<ScatterAttributes>(instruction);
    case Opcode::kCompare:
      return Has<CompareAttributes>(instruction);
    case Opcode::kReducePrecision:
      return Has<ReducePrecisionAttributes>(instruction);
    case Opcode::kTopK:
      return Has<TopKAttributes>(instruction);
    case Opcode::kRng:
    case Opcode::kRngBitGenerator:
      return Has<RngAttributes>(instruction);
    case Opcode::kAllReduce:
    case Opcode::kAllGather:
    case Opcode::kReduceScatter:
    case Opcode::kAllToAll:
      return Has<CollectiveAttributes>(instruction);
    case Opcode::kCollectivePermute:
      return Has<PermuteAttributes>(instruction);
    case Opcode::kCustomCall:
    case Opcode::kOther:
      return Has<OpaqueAttributes>(instruction);
    default:
      return true;
  }
}

InferredShapes InferByOpcode(const ShapeContext& context) {
  switch (context.instruction.opcode) {
    case Opcode::kSelect:
      return InferSelect(context);
    case Opcode::kClamp:
      return InferClamp(context);
    case Opcode::kBitcastConvert:
      return InferBitcastConvert(context);
    case Opcode::kBroadcast:
      return InferBroadcast(context);
    case Opcode::kConcatenate:
      return InferConcatenate(context);
    case Opcode::kConstant:
      return InferConstant(context);
    case Opcode::kDynamicSlice:
      return InferDynamicSlice(context);
    case Opcode::kDynamicUpdateSlice:
      return InferDynamicUpdateSlice(context);
    case Opcode::kGather:
      return InferGather(context);
    case Opcode::kIota:
      return InferIota(context);
    case Opcode::kPad:
      return InferPad(context);
    case Opcode::kReshape:
      return InferReshape(context);
    case Opcode::kReverse:
      return InferReverse(context);
    case Opcode::kScatter:
      return InferScatter(context);
    case Opcode::kSlice:
      return InferSlice(context);
    case Opcode::kTranspose:
      return InferTranspose(context);
    case Opcode::kRng:
    case Opcode::kRngBitGenerator:
      return InferRng(context);
    case Opcode::kDot:
      return InferDot(context);
    case Opcode::kMap:
      return InferMap(context);
    case Opcode::kReduce:
      return InferReduce(context);
    case Opcode::kSort:
      return InferSort(context);
    case Opcode::kTopK:
      return InferTopK(context);
    case Opcode::kCall:
      return InferCall(context);
    case Opcode::kConditional:
      return InferConditional(context);
    case Opcode::kWhile:
      return InferWhile(context);
    case Opcode::kParameter:
      return InferParameter(context);
    case Opcode::kOptBarrier:
      return InferAsOperands(context);
    case Opcode::kAllGather:
      return InferAllGather(context);
    case Opcode::kAllReduce:
      return InferAllReduce(context);
    case Opcode::kAllToAll:
      return InferAllToAll(context);
    case Opcode::kReduceScatter:
      return InferReduceScatter(context);
    case Opcode::kCollectivePermute:
      return InferCollectivePermute(context);
    case Opcode::kPartitionId:
    case Opcode::kReplicaId:
      return InferDeviceNumber(context);
    case Opcode::kBatchNormGrad:
    case Opcode::kBatchNormInference:
    case Opcode::kBatchNormTraining:
      return InferBatchNorm(context);
    case Opcode::kConvolution:
      return InferConvolution(context);
    case Opcode::kReduceWindow:
      return InferReduceWindow(context);
    case Opcode::kSelectAndScatter:
      return InferSelectAndScatter(context);
    case Opcode::kCustomCall:
    case Opcode::kOther:
      return InferAsDeclared(context);
    default:
      return Family(context.instruction.opcode) == OpFamily::kUnary ? InferUnary(context)
                                                                    : InferBinary(context);
  }
}

// Large enough for any real array, small enough that byte counts do not overflow.
constexpr int64_t kMaxElements = int64_t{1} << 56;

absl::Status CheckDeclared(const ShapeContext& context, const Shape& shape) {
  if (TypeName(shape.type) == "invalid") {
    return DoesNotFit(context, "declares a result of unknown type {}",
                      static_cast<int>(shape.type));
  }
  int64_t num_elements = 1;
  for (const int64_t dim : shape.dims) {
    if (dim < 0) return DoesNotFit(context, "declares a negative size: {}", ToString(shape));
    if (dim != 0 && num_elements > kMaxElements / dim) {
      return DoesNotFit(context, "declares more than 2^56 elements: {}", ToString(shape));
    }
    num_elements = std::max<int64_t>(num_elements * dim, 1);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<Shape>> InferShapes(const Module& module, const Instruction& instruction,
                                               std::span<const Shape> operands) {
  const ShapeContext context = {module, instruction, operands};
  if (!AttributesFit(instruction)) return DoesNotFit(context, "has not the attributes it needs");
  for (const ComputationId called : instruction.called) {
    if (called < 0 || called >= static_cast<int>(module.computations.size())) {
      return DoesNotFit(context, "calls computation {}, which does not exist", called);
    }
  }
  for (const Shape& declared : instruction.results) {
    RETURN_IF_ERROR(CheckDeclared(context, declared));
  }
  return InferByOpcode(context);
}

}  // namespace minka
