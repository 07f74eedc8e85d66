#include "minka/frontend/gradient_rules.h"

#include <cmath>
#include <numbers>

#include "minka/base/status.h"

namespace minka {
namespace {

constexpr GradientRule kZero = {.kind = GradientKind::kZero};

GradientRule Refused(std::string_view reason) {
  return {.kind = GradientKind::kRefused, .reason = reason};
}

GradientRule Rule(absl::Status (*apply)(Adjoint&)) {
  return {.kind = GradientKind::kRule, .apply = apply};
}

Tensor Square(Tensor x) { return x * x; }

// g in the type; g's own source where g was narrowed from that type, so that sums in f32 stay
// whole.
Tensor ConvertBack(Tensor g, ElementType type) {
  const Instruction& producer = g.graph().computation().instruction(g.value());
  if (producer.opcode == Opcode::kConvert) {
    const Tensor source(&g.graph(), producer.operands.front());
    if (source.type() == type) return source;
  }
  return Convert(g, type);
}

// The gradient for an operand of `shape` that may be a scalar used for all elements.
Tensor Fit(Tensor gradient, const Shape& shape) {
  return gradient.valid() && shape.dims.empty() ? Sum(gradient) : gradient;
}

template <typename Build>
void SetWanted(Adjoint& a, int operand, Build build) {
  if (a.wanted[operand]) a.gradients[operand] = Fit(build(), a.operand_shape(operand));
}

absl::Status AddGradient(Adjoint& a) {
  a.gradients = {a.g(), a.g()};
  return absl::OkStatus();
}

absl::Status SubtractGradient(Adjoint& a) {
  a.gradients[0] = a.g();
  SetWanted(a, 1, [&] { return -a.g(); });
  return absl::OkStatus();
}

absl::Status MultiplyGradient(Adjoint& a) {
  if (a.instruction.operands[0] == a.instruction.operands[1]) {
    const Tensor once = a.g() * a.x();
    a.gradients = {once, once};
    return absl::OkStatus();
  }
  SetWanted(a, 0, [&] { return a.g() * a.x(1); });
  SetWanted(a, 1, [&] { return a.g() * a.x(0); });
  return absl::OkStatus();
}

absl::Status DivideGradient(Adjoint& a) {
  const Tensor quotient = a.g() / a.x(1);
  a.gradients[0] = quotient;
  SetWanted(a, 1, [&] { return -(quotient * a.y()); });
  return absl::OkStatus();
}

// x where the comparison holds, else y.
absl::Status ChoiceGradient(Adjoint& a, Comparison direction) {
  const Tensor first = Compare(direction, a.x(0), a.x(1));
  SetWanted(a, 0, [&] { return Where(first, a.g(), 0.0); });
  SetWanted(a, 1, [&] { return Where(first, a.graph->Full(a.g().shape(), 0), a.g()); });
  return absl::OkStatus();
}

absl::Status PowerGradient(Adjoint& a) {
  SetWanted(a, 0, [&] { return a.g() * a.x(1) * Power(a.x(0), a.x(1) - 1.0); });
  SetWanted(a, 1, [&] {
    const Tensor base = a.x(0);
    return a.g() * a.y() * Where(Compare(Comparison::kEq, base, 0.0), base, Log(base));
  });
  return absl::OkStatus();
}

absl::Status Atan2Gradient(Adjoint& a) {
  const Tensor scaled = a.g() / (Square(a.x(0)) + Square(a.x(1)));
  SetWanted(a, 0, [&] { return scaled * a.x(1); });
  SetWanted(a, 1, [&] { return -(scaled * a.x(0)); });
  return absl::OkStatus();
}

absl::Status RemainderGradient(Adjoint& a) {
  a.gradients[0] = a.g();
  SetWanted(a, 1, [&] {
    const Tensor quotient = a.x(0) / a.x(1);
    return -(a.g() * Sign(quotient) * Floor(Abs(quotient)));
  });
  return absl::OkStatus();
}

absl::Status SelectGradient(Adjoint& a) {
  const Tensor predicate = a.x(0);
  const Tensor zero = a.graph->Full(a.g().shape(), 0);
  SetWanted(a, 1, [&] { return Where(predicate, a.g(), zero); });
  SetWanted(a, 2, [&] { return Where(predicate, zero, a.g()); });
  return absl::OkStatus();
}

absl::Status ClampGradient(Adjoint& a) {
  const Tensor x = a.x(1);
  SetWanted(a, 0, [&] { return Where(Compare(Comparison::kLe, x, a.x(0)), a.g(), 0.0); });
  SetWanted(a, 1, [&] {
    return Where(And(Compare(Comparison::kGt, x, a.x(0)), Compare(Comparison::kLt, x, a.x(2))),
                 a.g(), 0.0);
  });
  SetWanted(a, 2, [&] { return Where(Compare(Comparison::kGe, x, a.x(2)), a.g(), 0.0); });
  return absl::OkStatus();
}

absl::Status ReverseGradient(Adjoint& a) {
  a.gradients[0] = a.graph->Record(
      a.graph->builder().Append({.opcode = Opcode::kReverse,
                                 .operands = {a.g().value()},
                                 .attributes = a.instruction.As<DimensionsAttributes>()}),
      {});
  return absl::OkStatus();
}

absl::Status PassThrough(Adjoint& a) {
  for (size_t i = 0; i < a.gradients.size(); ++i) a.gradients[i] = a.result_gradients[i];
  return absl::OkStatus();
}

}  // namespace

// The rule of a one-operand operation: the operand's gradient in terms of the adjoint `a`.
#define MINKA_UNARY(expression)    \
  Rule([](Adjoint& a) {            \
    a.gradients[0] = (expression); \
    return absl::OkStatus();       \
  })

Opcode Adjoint::called_opcode() const {
  const Computation& called = graph->module().computation(instruction.called.front());
  const bool is_binary = called.results.size() == 1 && called.num_instructions() == 3;
  return is_binary ? called.instruction(called.results.front()).opcode : Opcode::kOther;
}

GradientRule GradientRuleFor(Opcode opcode) {
  switch (opcode) {
    case Opcode::kAbs:
      return MINKA_UNARY(a.g() * Sign(a.x()));
    case Opcode::kAcos:
      return MINKA_UNARY(-(a.g() * Rsqrt(1.0 - Square(a.x()))));
    case Opcode::kAcosh:
      return MINKA_UNARY(a.g() * Rsqrt(Square(a.x()) - 1.0));
    case Opcode::kAsin:
      return MINKA_UNARY(a.g() * Rsqrt(1.0 - Square(a.x())));
    case Opcode::kAsinh:
      return MINKA_UNARY(a.g() * Rsqrt(Square(a.x()) + 1.0));
    case Opcode::kAtanh:
      return MINKA_UNARY(a.g() / (1.0 - Square(a.x())));
    case Opcode::kCbrt:
      return MINKA_UNARY(a.g() / (3.0 * Square(a.y())));
    case Opcode::kConvert:
      return MINKA_UNARY(ConvertBack(a.g(), a.operand_shape(0).type));
    case Opcode::kCopy:
      return MINKA_UNARY(a.g());
    case Opcode::kCosine:
      return MINKA_UNARY(-(a.g() * Sine(a.x())));
    case Opcode::kCosh:
      return MINKA_UNARY(a.g() * Unary(Opcode::kSinh, a.x()));
    case Opcode::kErf:
      return MINKA_UNARY(a.g() * (Exp(-Square(a.x())) * (2.0 * std::numbers::inv_sqrtpi)));
    case Opcode::kExponential:
      return MINKA_UNARY(a.g() * a.y());
    case Opcode::kExponentialMinusOne:
      return MINKA_UNARY(a.g() * (a.y() + 1.0));
    case Opcode::kLog:
      return MINKA_UNARY(a.g() / a.x());
    case Opcode::kLogPlusOne:
      return MINKA_UNARY(a.g() / (a.x() + 1.0));
    case Opcode::kLogistic:
      return MINKA_UNARY(a.g() * (a.y() * (1.0 - a.y())));
    case Opcode::kNegate:
      return MINKA_UNARY(-a.g());
    case Opcode::kRsqrt:
      return MINKA_UNARY(a.g() * (a.y() / a.x() * -0.5));
    case Opcode::kSine:
      return MINKA_UNARY(a.g() * Cosine(a.x()));
    case Opcode::kSinh:
      return MINKA_UNARY(a.g() * Unary(Opcode::kCosh, a.x()));
    case Opcode::kSqrt:
      return MINKA_UNARY(a.g() * (0.5 / a.y()));
    case Opcode::kTan:
      return MINKA_UNARY(a.g() * (Square(a.y()) + 1.0));
    case Opcode::kTanh:
      return MINKA_UNARY(a.g() * (1.0 - Square(a.y())));
    case Opcode::kReshape:
      return MINKA_UNARY(Reshape(a.g(), a.operand_shape(0).dims));
    case Opcode::kReducePrecision:
      return MINKA_UNARY(a.g());
    case Opcode::kReverse:
      return Rule(ReverseGradient);

    case Opcode::kAdd:
      return Rule(AddGradient);
    case Opcode::kSubtract:
      return Rule(SubtractGradient);
    case Opcode::kMultiply:
      return Rule(MultiplyGradient);
    case Opcode::kDivide:
      return Rule(DivideGradient);
    case Opcode::kMaximum:
      return Rule([](Adjoint& a) { return ChoiceGradient(a, Comparison::kGt); });
    case Opcode::kMinimum:
      return Rule([](Adjoint& a) { return ChoiceGradient(a, Comparison::kLt); });
    case Opcode::kPower:
      return Rule(PowerGradient);
    case Opcode::kAtan2:
      return Rule(Atan2Gradient);
    case Opcode::kRemainder:
      return Rule(RemainderGradient);
    case Opcode::kSelect:
      return Rule(SelectGradient);
    case Opcode::kClamp:
      return Rule(ClampGradient);

    case Opcode::kBatchNormInference:
      return Rule(BatchNormInferenceGradient);
    case Opcode::kBatchNormTraining:
      return Rule(BatchNormTrainingGradient);
    case Opcode::kBroadcast:
      return Rule(BroadcastGradient);
    case Opcode::kConcatenate:
      return Rule(ConcatenateGradient);
    case Opcode::kConvolution:
      return Rule(ConvolutionGradient);
    case Opcode::kDot:
      return Rule(DotGradient);
    case Opcode::kDynamicSlice:
      return Rule(DynamicSliceGradient);
    case Opcode::kDynamicUpdateSlice:
      return Rule(DynamicUpdateSliceGradient);
    case Opcode::kGather:
      return Rule(GatherGradient);
    case Opcode::kPad:
      return Rule(PadGradient);
    case Opcode::kReduce:
      return Rule(ReduceGradient);
    case Opcode::kReduceWindow:
      return Rule(ReduceWindowGradient);
    case Opcode::kScatter:
      return Rule(ScatterGradient);
    case Opcode::kSlice:
      return Rule(SliceGradient);
    case Opcode::kTranspose:
      return Rule(TransposeGradient);
    case Opcode::kOptBarrier:
      return Rule(PassThrough);

    case Opcode::kAnd:
    case Opcode::kBitcastConvert:
    case Opcode::kCeil:
    case Opcode::kCompare:
    case Opcode::kConstant:
    case Opcode::kCountLeadingZeros:
    case Opcode::kFloor:
    case Opcode::kIota:
    case Opcode::kIsFinite:
    case Opcode::kNot:
    case Opcode::kOr:
    case Opcode::kParameter:
    case Opcode::kPartitionId:
    case Opcode::kPopulationCount:
    case Opcode::kReplicaId:
    case Opcode::kRng:
    case Opcode::kRngBitGenerator:
    case Opcode::kRoundNearestAfz:
    case Opcode::kRoundNearestEven:
    case Opcode::kShiftLeft:
    case Opcode::kShiftRightArithmetic:
    case Opcode::kShiftRightLogical:
    case Opcode::kSign:
    case Opcode::kXor:
      return kZero;

    case Opcode::kCall:
      return Refused("inline calls first");
    case Opcode::kConditional:
    case Opcode::kWhile:
      return Refused("write the gradient by hand or unroll the control flow");
    case Opcode::kComplex:
    case Opcode::kImag:
    case Opcode::kReal:
      return Refused("complex numbers have no gradient rules");
    case Opcode::kBatchNormGrad:
    case Opcode::kMap:
    case Opcode::kSelectAndScatter:
    case Opcode::kSort:
    case Opcode::kStochasticConvert:
    case Opcode::kTopK:
      return Refused("there is no rule for it");
    case Opcode::kCustomCall:
    case Opcode::kOther:
      return Refused("its meaning is unknown; stop the gradient in front of it");
    case Opcode::kAllGather:
    case Opcode::kAllReduce:
    case Opcode::kAllToAll:
    case Opcode::kCollectivePermute:
    case Opcode::kReduceScatter:
      return Refused("differentiate the step of one device, before it is made parallel");
  }
  return Refused("unknown opcode");
}

#undef MINKA_UNARY

}  // namespace minka
