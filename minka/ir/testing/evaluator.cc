#include "minka/ir/testing/evaluator.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>

#include "minka/base/check.h"

namespace minka::testing {
namespace {

using Number = long double;
using Dims = std::vector<int64_t>;
using Direction = CompareAttributes::Direction;

// Calls `visit` with every index of an array of the dims, in row-major order.
void ForEachIndex(const Dims& dims, const std::function<void(const Dims&)>& visit) {
  const int64_t count = std::accumulate(dims.begin(), dims.end(), int64_t{1}, std::multiplies());
  Dims index(dims.size(), 0);
  for (int64_t n = 0; n < count; ++n) {
    visit(index);
    for (int i = static_cast<int>(dims.size()) - 1; i >= 0 && ++index[i] == dims[i]; --i) {
      index[i] = 0;
    }
  }
}

int64_t Offset(const Dims& dims, const Dims& index) {
  int64_t offset = 0;
  for (size_t i = 0; i < dims.size(); ++i) offset = offset * dims[i] + index[i];
  return offset;
}

Number& At(Array& array, const Dims& index) {
  return array.elements[Offset(array.shape.dims, index)];
}
Number At(const Array& array, const Dims& index) {
  return array.elements[Offset(array.shape.dims, index)];
}

bool InBounds(const Dims& dims, const Dims& index) {
  for (size_t i = 0; i < dims.size(); ++i) {
    if (index[i] < 0 || index[i] >= dims[i]) return false;
  }
  return true;
}

// The integer as its type stores it.
Number Wrap(ElementType type, uint64_t bits) {
  const int width = 8 * static_cast<int>(ElementBytes(type));
  if (width < 64) bits &= (uint64_t{1} << width) - 1;
  if (!IsSigned(type) || (bits >> (width - 1)) == 0) return static_cast<Number>(bits);
  return width == 64 ? static_cast<Number>(static_cast<int64_t>(bits))
                     : static_cast<Number>(bits) - std::ldexp(Number{1}, width);
}

uint64_t Bits(Number x) {
  return x < 0 ? static_cast<uint64_t>(static_cast<int64_t>(x)) : static_cast<uint64_t>(x);
}

Number ApplyUnary(const Instruction& instruction, Number x) {
  switch (instruction.opcode) {
    case Opcode::kAbs:
      return std::abs(x);
    case Opcode::kAcos:
      return std::acos(x);
    case Opcode::kAcosh:
      return std::acosh(x);
    case Opcode::kAsin:
      return std::asin(x);
    case Opcode::kAsinh:
      return std::asinh(x);
    case Opcode::kAtanh:
      return std::atanh(x);
    case Opcode::kCbrt:
      return std::cbrt(x);
    case Opcode::kCeil:
      return std::ceil(x);
    case Opcode::kCopy:
    case Opcode::kReducePrecision:
      return x;
    case Opcode::kConvert: {
      const ElementType type = instruction.shape().type;
      if (type == ElementType::kPred) return x != 0;
      return IsInteger(type) ? Wrap(type, Bits(std::trunc(x))) : x;
    }
    case Opcode::kCosine:
      return std::cos(x);
    case Opcode::kCosh:
      return std::cosh(x);
    case Opcode::kErf:
      return std::erf(x);
    case Opcode::kExponential:
      return std::exp(x);
    case Opcode::kExponentialMinusOne:
      return std::expm1(x);
    case Opcode::kFloor:
      return std::floor(x);
    case Opcode::kIsFinite:
      return std::isfinite(x);
    case Opcode::kLog:
      return std::log(x);
    case Opcode::kLogPlusOne:
      return std::log1p(x);
    case Opcode::kLogistic:
      return 1 / (1 + std::exp(-x));
    case Opcode::kNegate:
      return -x;
    case Opcode::kNot:
      return x == 0;
    case Opcode::kRsqrt:
      return 1 / std::sqrt(x);
    case Opcode::kSign:
      return (x > 0) - (x < 0);
    case Opcode::kSine:
      return std::sin(x);
    case Opcode::kSinh:
      return std::sinh(x);
    case Opcode::kSqrt:
      return std::sqrt(x);
    case Opcode::kTan:
      return std::tan(x);
    case Opcode::kTanh:
      return std::tanh(x);
    default:
      MINKA_CHECK(false, "evaluator: {}", OpcodeName(instruction.opcode));
  }
}

bool Holds(Direction direction, Number x, Number y) {
  switch (direction) {
    case Direction::kEq:
      return x == y;
    case Direction::kNe:
      return x != y;
    case Direction::kGe:
      return x >= y;
    case Direction::kGt:
      return x > y;
    case Direction::kLe:
      return x <= y;
    case Direction::kLt:
      return x < y;
  }
  return false;
}

Number ApplyBinary(Opcode opcode, ElementType type, Number x, Number y) {
  const bool is_integer = IsInteger(type);
  switch (opcode) {
    case Opcode::kAdd:
      return is_integer ? Wrap(type, Bits(x) + Bits(y)) : x + y;
    case Opcode::kSubtract:
      return is_integer ? Wrap(type, Bits(x) - Bits(y)) : x - y;
    case Opcode::kMultiply:
      return is_integer ? Wrap(type, Bits(x) * Bits(y)) : x * y;
    case Opcode::kDivide:
      return is_integer ? std::trunc(x / y) : x / y;
    case Opcode::kMaximum:
      return std::max(x, y);
    case Opcode::kMinimum:
      return std::min(x, y);
    case Opcode::kPower:
      return std::pow(x, y);
    case Opcode::kAtan2:
      return std::atan2(x, y);
    case Opcode::kRemainder:
      return std::fmod(x, y);
    case Opcode::kAnd:
      return Wrap(type, Bits(x) & Bits(y));
    case Opcode::kOr:
      return Wrap(type, Bits(x) | Bits(y));
    case Opcode::kXor:
      return Wrap(type, Bits(x) ^ Bits(y));
    case Opcode::kShiftLeft:
      return Wrap(type, Bits(x) << Bits(y));
    case Opcode::kShiftRightLogical:
      return Wrap(type, Bits(x) >> Bits(y));
    default:
      MINKA_CHECK(false, "evaluator: {}", OpcodeName(opcode));
  }
}

class Evaluation {
 public:
  Evaluation(const Module& module, const std::vector<Array>& parameters)
      : module_(module), computation_(module.entry_computation()), parameters_(parameters) {}

  std::vector<Array> Run() {
    for (InstructionId id = 0; id < computation_.num_instructions(); ++id) {
      const Instruction& instruction = computation_.instructions[id];
      if (instruction.opcode == Opcode::kOptBarrier) {
        for (size_t i = 0; i < instruction.operands.size(); ++i) {
          values_[{id, static_cast<int32_t>(i)}] = Operand(instruction, i);
        }
      } else if (instruction.results.size() == 3) {
        std::vector<Array> results = NormaliseBatch(instruction);
        for (int32_t i = 0; i < 3; ++i) values_[{id, i}] = std::move(results[i]);
      } else {
        values_[{id, 0}] = Apply(instruction);
      }
    }
    std::vector<Array> results;
    results.reserve(computation_.results.size());
    for (const Value value : computation_.results) results.push_back(values_.at(value));
    return results;
  }

 private:
  const Array& Operand(const Instruction& instruction, size_t i) const {
    return values_.at(instruction.operands[i]);
  }

  Array Apply(const Instruction& instruction) {
    Array result{instruction.shape(), std::vector<Number>(instruction.shape().num_elements())};
    switch (instruction.opcode) {
      case Opcode::kParameter: {
        const Array& given = parameters_.at(instruction.As<ParameterAttributes>().number);
        MINKA_CHECK(given.shape == instruction.shape(), "{}", instruction.name);
        return given;
      }
      case Opcode::kConstant:
        return FromLiteral(instruction.As<ConstantAttributes>().literal);
      case Opcode::kDot:
        Dot(instruction, result);
        return result;
      case Opcode::kReduce:
        Reduce(instruction, result);
        return result;
      case Opcode::kConvolution:
        Convolve(instruction, result);
        return result;
      case Opcode::kReduceWindow:
        ReduceWindows(instruction, result);
        return result;
      case Opcode::kSelectAndScatter:
        SelectAndScatter(instruction, result);
        return result;
      case Opcode::kBatchNormInference:
        return Normalised(instruction, Operand(instruction, 3), Operand(instruction, 4));
      case Opcode::kGather:
        Gather(instruction, result);
        return result;
      case Opcode::kScatter:
        return Scatter(instruction);
      case Opcode::kPad:
        Pad(instruction, result);
        return result;
      case Opcode::kConcatenate:
        Concatenate(instruction, result);
        return result;
      case Opcode::kDynamicUpdateSlice:
        return UpdateSlice(instruction);
      default:
        break;
    }
    ForEachIndex(result.shape.dims,
                 [&](const Dims& index) { At(result, index) = Element(instruction, index); });
    return result;
  }

  // Operations whose result elements each are a function of one element per operand.
  Number Element(const Instruction& instruction, const Dims& index) const {
    const auto x = [&](size_t operand) { return At(Operand(instruction, operand), index); };
    // Scalar predicates and bounds serve all elements.
    const auto broadcast = [&](size_t operand) {
      const Array& array = Operand(instruction, operand);
      return array.shape.dims.empty() ? array.elements.front() : At(array, index);
    };
    const Shape& shape = instruction.shape();
    switch (instruction.opcode) {
      case Opcode::kIota:
        return index[instruction.As<DimensionsAttributes>().dims.front()];
      case Opcode::kBroadcast: {
        Dims from;
        for (int64_t dim : instruction.As<DimensionsAttributes>().dims) from.push_back(index[dim]);
        return At(Operand(instruction, 0), from);
      }
      case Opcode::kReshape:
        return Operand(instruction, 0).elements[Offset(shape.dims, index)];
      case Opcode::kTranspose: {
        const Dims& permutation = instruction.As<DimensionsAttributes>().dims;
        Dims from(index.size());
        for (size_t i = 0; i < index.size(); ++i) from[permutation[i]] = index[i];
        return At(Operand(instruction, 0), from);
      }
      case Opcode::kReverse: {
        Dims from = index;
        for (int64_t dim : instruction.As<DimensionsAttributes>().dims) {
          from[dim] = shape.dims[dim] - 1 - index[dim];
        }
        return At(Operand(instruction, 0), from);
      }
      case Opcode::kSlice: {
        const auto& slice = instruction.As<SliceAttributes>();
        Dims from;
        for (size_t i = 0; i < index.size(); ++i) {
          from.push_back(slice.starts[i] + index[i] * slice.strides[i]);
        }
        return At(Operand(instruction, 0), from);
      }
      case Opcode::kDynamicSlice: {
        const Dims starts = ClampedStarts(instruction, 1, shape.dims);
        Dims from = index;
        for (size_t i = 0; i < index.size(); ++i) from[i] += starts[i];
        return At(Operand(instruction, 0), from);
      }
      case Opcode::kCompare:
        return Holds(instruction.As<CompareAttributes>().direction, x(0), x(1));
      case Opcode::kSelect:
        return broadcast(0) != 0 ? x(1) : x(2);
      case Opcode::kClamp:
        return std::min(std::max(broadcast(0), x(1)), broadcast(2));
      default:
        break;
    }
    if (instruction.operands.size() == 1) return ApplyUnary(instruction, x(0));
    return ApplyBinary(instruction.opcode, shape.type, x(0), x(1));
  }

  Dims ClampedStarts(const Instruction& instruction, size_t first, const Dims& sizes) const {
    const Dims& dims = Operand(instruction, 0).shape.dims;
    Dims starts;
    for (size_t i = 0; i < dims.size(); ++i) {
      const auto start = static_cast<int64_t>(Operand(instruction, first + i).elements.front());
      starts.push_back(std::clamp<int64_t>(start, 0, dims[i] - sizes[i]));
    }
    return starts;
  }

  Array UpdateSlice(const Instruction& instruction) const {
    Array result = Operand(instruction, 0);
    const Array& update = Operand(instruction, 1);
    const Dims starts = ClampedStarts(instruction, 2, update.shape.dims);
    ForEachIndex(update.shape.dims, [&](const Dims& index) {
      Dims to = index;
      for (size_t i = 0; i < to.size(); ++i) to[i] += starts[i];
      At(result, to) = At(update, index);
    });
    return result;
  }

  void Concatenate(const Instruction& instruction, Array& result) const {
    const int64_t dim = instruction.As<DimensionsAttributes>().dims.front();
    int64_t start = 0;
    for (size_t i = 0; i < instruction.operands.size(); ++i) {
      const Array& operand = Operand(instruction, i);
      ForEachIndex(operand.shape.dims, [&](const Dims& index) {
        Dims to = index;
        to[dim] += start;
        At(result, to) = At(operand, index);
      });
      start += operand.shape.dims[dim];
    }
  }

  void Pad(const Instruction& instruction, Array& result) const {
    const auto& pad = instruction.As<PadAttributes>();
    std::ranges::fill(result.elements, Operand(instruction, 1).elements.front());
    ForEachIndex(Operand(instruction, 0).shape.dims, [&](const Dims& index) {
      Dims to;
      for (size_t i = 0; i < index.size(); ++i) {
        to.push_back(pad.low[i] + index[i] * (pad.interior[i] + 1));
      }
      if (InBounds(result.shape.dims, to)) At(result, to) = At(Operand(instruction, 0), index);
    });
  }

  void Dot(const Instruction& instruction, Array& result) const {
    const auto& dot = instruction.As<DotAttributes>();
    const Array &lhs = Operand(instruction, 0), &rhs = Operand(instruction, 1);
    Dims contracted;
    for (int64_t dim : dot.lhs_contracting) contracted.push_back(lhs.shape.dims[dim]);
    const auto free_dims = [](const Array& x, const Dims& batch, const Dims& contracting) {
      Dims dims;
      for (int64_t i = 0; i < x.shape.rank(); ++i) {
        if (std::ranges::count(batch, i) + std::ranges::count(contracting, i) == 0) {
          dims.push_back(i);
        }
      }
      return dims;
    };
    const Dims lhs_free = free_dims(lhs, dot.lhs_batch, dot.lhs_contracting);
    const Dims rhs_free = free_dims(rhs, dot.rhs_batch, dot.rhs_contracting);
    ForEachIndex(result.shape.dims, [&](const Dims& index) {
      Dims left(lhs.shape.rank()), right(rhs.shape.rank());
      size_t next = 0;
      for (size_t i = 0; i < dot.lhs_batch.size(); ++i) {
        left[dot.lhs_batch[i]] = right[dot.rhs_batch[i]] = index[next++];
      }
      for (int64_t dim : lhs_free) left[dim] = index[next++];
      for (int64_t dim : rhs_free) right[dim] = index[next++];
      Number sum = 0;
      ForEachIndex(contracted, [&](const Dims& inner) {
        for (size_t i = 0; i < inner.size(); ++i) {
          left[dot.lhs_contracting[i]] = right[dot.rhs_contracting[i]] = inner[i];
        }
        sum += At(lhs, left) * At(rhs, right);
      });
      At(result, index) = sum;
    });
  }

  Opcode Called(const Instruction& instruction) const {
    const Computation& called = module_.computations[instruction.called.front()];
    return called.instruction(called.results.front()).opcode;
  }

  void Reduce(const Instruction& instruction, Array& result) const {
    const Dims& dims = instruction.As<DimensionsAttributes>().dims;
    std::ranges::fill(result.elements, Operand(instruction, 1).elements.front());
    ForEachIndex(Operand(instruction, 0).shape.dims, [&](const Dims& index) {
      Dims to;
      for (size_t i = 0; i < index.size(); ++i) {
        if (std::ranges::count(dims, static_cast<int64_t>(i)) == 0) to.push_back(index[i]);
      }
      At(result, to) = Combine(instruction, At(result, to), At(Operand(instruction, 0), index));
    });
  }

  // By the reducer's only operation, or what its computation gives.
  Number Combine(const Instruction& reduction, Number x, Number y) const {
    const ElementType type = reduction.shape().type;
    if (module_.computations[reduction.called.front()].num_instructions() == 3)
      return ApplyBinary(Called(reduction), type, x, y);
    Module combining = module_;
    combining.entry = reduction.called.front();
    const std::vector<Array> parameters = {{{type, {}}, {x}}, {{type, {}}, {y}}};
    return Evaluation(combining, parameters).Run().front().elements.front();
  }

  // The base element under window element `element` at `position`; -1: padding or a hole.
  static int64_t BaseElement(const WindowDim& window, int64_t base_size, int64_t position,
                             int64_t element) {
    const int64_t place =
        position * window.stride + element * window.window_dilation - window.padding_low;
    if (place < 0 || place % window.base_dilation != 0) return -1;
    return place / window.base_dilation < base_size ? place / window.base_dilation : -1;
  }

  void Convolve(const Instruction& instruction, Array& result) const {
    const auto& a = instruction.As<ConvolutionAttributes>();
    const Array &input = Operand(instruction, 0), &kernel = Operand(instruction, 1);
    const int64_t inputs = kernel.shape.dims[a.kernel_input_feature];
    const int64_t outputs = kernel.shape.dims[a.kernel_output_feature];
    const int64_t batch = result.shape.dims[a.output_batch];
    ForEachIndex(kernel.shape.dims, [&](const Dims& tap) {
      const int64_t output = tap[a.kernel_output_feature];
      Dims at(input.shape.rank());
      at[a.input_feature] =
          output / (outputs / a.feature_group_count) * inputs + tap[a.kernel_input_feature];
      ForEachIndex(result.shape.dims, [&](const Dims& index) {
        if (index[a.output_feature] != output) return;
        at[a.input_batch] =
            output / (outputs / a.batch_group_count) * batch + index[a.output_batch];
        for (size_t i = 0; i < a.window.size(); ++i) {
          const WindowDim& window = a.window[i];
          const int64_t element = tap[a.kernel_spatial[i]];
          at[a.input_spatial[i]] =
              BaseElement(window, input.shape.dims[a.input_spatial[i]], index[a.output_spatial[i]],
                          window.reversal ? window.size - 1 - element : element);
        }
        if (InBounds(input.shape.dims, at)) At(result, index) += At(input, at) * At(kernel, tap);
      });
    });
  }

  // Calls `visit` with the index of every element of the base under the window at `position`.
  static void ForEachUnderWindow(const std::vector<WindowDim>& window, const Dims& base,
                                 const Dims& position,
                                 const std::function<void(const Dims&)>& visit) {
    Dims sizes;
    for (const WindowDim& dim : window) sizes.push_back(dim.size);
    ForEachIndex(sizes, [&](const Dims& element) {
      Dims at(base.size());
      for (size_t i = 0; i < at.size(); ++i) {
        at[i] = BaseElement(window[i], base[i], position[i], element[i]);
      }
      if (InBounds(base, at)) visit(at);
    });
  }

  void ReduceWindows(const Instruction& instruction, Array& result) const {
    const Array& base = Operand(instruction, 0);
    std::ranges::fill(result.elements, Operand(instruction, 1).elements.front());
    ForEachIndex(result.shape.dims, [&](const Dims& position) {
      ForEachUnderWindow(
          instruction.As<WindowAttributes>().dims, base.shape.dims, position, [&](const Dims& at) {
            At(result, position) = ApplyBinary(Called(instruction), result.shape.type,
                                               At(result, position), At(base, at));
          });
    });
  }

  void SelectAndScatter(const Instruction& instruction, Array& result) const {
    const Array &base = Operand(instruction, 0), &source = Operand(instruction, 1);
    const Computation& select = module_.computations[instruction.called[0]];
    const auto direction =
        select.instruction(select.results.front()).As<CompareAttributes>().direction;
    std::ranges::fill(result.elements, Operand(instruction, 2).elements.front());
    ForEachIndex(source.shape.dims, [&](const Dims& position) {
      Dims chosen;
      ForEachUnderWindow(instruction.As<WindowAttributes>().dims, base.shape.dims, position,
                         [&](const Dims& at) {
                           if (chosen.empty() || !Holds(direction, At(base, chosen), At(base, at)))
                             chosen = at;
                         });
      if (!chosen.empty()) At(result, chosen) += At(source, position);
    });
  }

  // (x - mean) / sqrt(variance + epsilon) scale + offset.
  Array Normalised(const Instruction& instruction, const Array& mean, const Array& variance) const {
    const auto& a = instruction.As<BatchNormAttributes>();
    Array result = Operand(instruction, 0);
    ForEachIndex(result.shape.dims, [&](const Dims& index) {
      const int64_t f = index[a.feature_index];
      Number& x = At(result, index);
      x = (x - mean.elements[f]) / std::sqrt(variance.elements[f] + Number{a.epsilon});
      x = x * Operand(instruction, 1).elements[f] + Operand(instruction, 2).elements[f];
    });
    return result;
  }

  // Sums over all but the features of visit(index).
  Array FeatureSums(const Instruction& instruction,
                    const std::function<Number(const Dims&)>& visit) const {
    const Array& x = Operand(instruction, 0);
    const int64_t feature = instruction.As<BatchNormAttributes>().feature_index;
    Array sums{instruction.results[1], std::vector<Number>(x.shape.dims[feature])};
    ForEachIndex(x.shape.dims,
                 [&](const Dims& index) { sums.elements[index[feature]] += visit(index); });
    return sums;
  }

  // batch-norm-training: result, mean, variance. batch-norm-grad: gradients of operand, scale and
  // offset, by the formulas of Ioffe and Szegedy (arXiv:1502.03167, section 3).
  std::vector<Array> NormaliseBatch(const Instruction& instruction) const {
    const auto& a = instruction.As<BatchNormAttributes>();
    const Array& x = Operand(instruction, 0);
    const int64_t per_feature = x.shape.num_elements() / x.shape.dims[a.feature_index];
    const auto count = static_cast<Number>(per_feature);
    const auto of = [&](const Array& vector, const Dims& index) {
      return vector.elements[index[a.feature_index]];
    };
    if (instruction.opcode == Opcode::kBatchNormTraining) {
      const Array mean = FeatureSums(instruction, [&](const Dims& i) { return At(x, i) / count; });
      const Array variance = FeatureSums(instruction, [&](const Dims& i) {
        return std::pow(At(x, i) - of(mean, i), Number{2}) / count;
      });
      return {Normalised(instruction, mean, variance), mean, variance};
    }
    const Array &scale = Operand(instruction, 1), &mean = Operand(instruction, 2),
                &variance = Operand(instruction, 3), &g = Operand(instruction, 4);
    const auto deviation = [&](const Dims& i) {
      return std::sqrt(of(variance, i) + Number{a.epsilon});
    };
    const auto normal = [&](const Dims& i) { return (At(x, i) - of(mean, i)) / deviation(i); };
    const Array offset = FeatureSums(instruction, [&](const Dims& i) { return At(g, i); });
    const Array slope =
        FeatureSums(instruction, [&](const Dims& i) { return At(g, i) * normal(i); });
    Array gradient = x;
    ForEachIndex(x.shape.dims, [&](const Dims& i) {
      At(gradient, i) = of(scale, i) / deviation(i) *
                        (At(g, i) - of(offset, i) / count - normal(i) * of(slope, i) / count);
    });
    return {gradient, slope, offset};
  }

  // The operand's index where the window of a result or update index starts.
  static Dims WindowStart(const Array& indices, int64_t index_vector_dim, const Dims& batch_index,
                          const Dims& start_index_map, int rank) {
    Dims start(rank, 0);
    for (size_t i = 0; i < start_index_map.size(); ++i) {
      Dims at = batch_index;
      if (index_vector_dim < indices.shape.rank()) {
        at.insert(at.begin() + index_vector_dim, static_cast<int64_t>(i));
      }
      start[start_index_map[i]] = static_cast<int64_t>(At(indices, at));
    }
    return start;
  }

  static void Split(const Dims& index, const Dims& window_dims, Dims& batch, Dims& window) {
    for (size_t i = 0; i < index.size(); ++i) {
      const bool in_window = std::ranges::count(window_dims, static_cast<int64_t>(i)) > 0;
      (in_window ? window : batch).push_back(index[i]);
    }
  }

  void Gather(const Instruction& instruction, Array& result) const {
    const auto& gather = instruction.As<GatherAttributes>();
    const Array& operand = Operand(instruction, 0);
    ForEachIndex(result.shape.dims, [&](const Dims& index) {
      Dims batch, window;
      Split(index, gather.offset_dims, batch, window);
      Dims at = WindowStart(Operand(instruction, 1), gather.index_vector_dim, batch,
                            gather.start_index_map, operand.shape.rank());
      size_t next = 0;
      for (int64_t i = 0; i < operand.shape.rank(); ++i) {
        at[i] = std::clamp<int64_t>(at[i], 0, operand.shape.dims[i] - gather.slice_sizes[i]);
        if (std::ranges::count(gather.collapsed_slice_dims, i) == 0) at[i] += window[next++];
      }
      At(result, index) = At(operand, at);
    });
  }

  Array Scatter(const Instruction& instruction) const {
    const auto& scatter = instruction.As<ScatterAttributes>();
    Array result = Operand(instruction, 0);
    const Array& updates = Operand(instruction, 2);
    ForEachIndex(updates.shape.dims, [&](const Dims& index) {
      Dims batch, window;
      Split(index, scatter.update_window_dims, batch, window);
      Dims at = WindowStart(Operand(instruction, 1), scatter.index_vector_dim, batch,
                            scatter.scatter_dims_to_operand_dims, result.shape.rank());
      size_t next = 0;
      for (int64_t i = 0; i < result.shape.rank(); ++i) {
        if (std::ranges::count(scatter.inserted_window_dims, i) == 0) at[i] += window[next++];
      }
      if (!InBounds(result.shape.dims, at)) return;
      At(result, at) =
          ApplyBinary(Called(instruction), result.shape.type, At(result, at), At(updates, index));
    });
    return result;
  }

  const Module& module_;
  const Computation& computation_;
  const std::vector<Array>& parameters_;
  std::map<Value, Array> values_;
};

}  // namespace

std::vector<Array> Evaluate(const Module& module, const std::vector<Array>& parameters) {
  return Evaluation(module, parameters).Run();
}

Array SmallWholeNumbers(const Shape& shape, int seed) {
  Array array{shape, {}};
  for (int64_t i = 0; i < shape.num_elements(); ++i) {
    array.elements.push_back(static_cast<long double>((i * 37 + seed * 11) % 23 - 11));
  }
  return array;
}

Array FromLiteral(const Literal& literal) {
  Array array{literal.shape, {}};
  for (int64_t i = 0; i < literal.shape.num_elements(); ++i) {
    if (IsInteger(literal.shape.type)) {
      const int64_t width = ElementBytes(literal.shape.type);
      uint64_t bits = 0;
      std::memcpy(&bits, literal.bytes->data() + i * width, width);
      array.elements.push_back(Wrap(literal.shape.type, bits));
    } else {
      array.elements.push_back(ElementAsDouble(literal, i));
    }
  }
  return array;
}

}  // namespace minka::testing
