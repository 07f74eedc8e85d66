#include "minka/lowering/local_operation.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "minka/analysis/convolution_form.h"
#include "minka/base/check.h"
#include "minka/ir/literal.h"
#include "minka/ir/window.h"
#include "minka/sharding/rule_builder.h"

namespace minka {
namespace {

std::vector<std::vector<int64_t>> GroupsOf(const Mesh& mesh, AxisSet axes) {
  return mesh.Groups(AxesOf(axes));
}

Shape LocalResult(const SourceOperation& source, int result, const Mesh& mesh) {
  const Shape& shape = source.instruction().results[result];
  if (shape.type == ElementType::kToken) return shape;
  return LocalShape(shape, ResultSharding(source.rule, source.strategy, result), mesh);
}

bool IsSplat(const Literal& literal) {
  const std::string& bytes = *literal.bytes;
  const size_t element = static_cast<size_t>(ElementBytes(literal.shape.type));
  return std::equal(bytes.begin() + static_cast<std::ptrdiff_t>(std::min(element, bytes.size())),
                    bytes.end(), bytes.begin());
}

Value EmitConstant(const SourceOperation& source, DevicePosition& position) {
  const Instruction& instruction = source.instruction();
  const Literal& literal = instruction.As<ConstantAttributes>().literal;
  const Sharding sharding = ResultSharding(source.rule, source.strategy, 0);
  const Shape local = LocalResult(source, 0, position.mesh());
  Instruction copy = instruction;
  if (local != literal.shape && IsSplat(literal)) {
    auto bytes = std::make_shared<const std::string>(
        literal.bytes->substr(0, static_cast<size_t>(local.num_bytes())));
    copy.attributes = ConstantAttributes{{local, std::move(bytes)}};
    copy.results = {local};
    return position.builder().Append(std::move(copy));
  }
  return OwnPart(position, position.builder().Append(std::move(copy)), sharding);
}

// Counts in s32 and converts once, because offsets need not be exact in a narrow type.
Value EmitIota(const SourceOperation& source, DevicePosition& position) {
  const Instruction& instruction = source.instruction();
  ComputationBuilder& builder = position.builder();
  const int64_t dim = instruction.As<DimensionsAttributes>().dims[0];
  const AxisList axes = ResultSharding(source.rule, source.strategy, 0).dims[dim];
  const Shape local = LocalResult(source, 0, position.mesh());
  if (axes.empty()) {
    Instruction copy = instruction;
    copy.results = {local};
    return builder.Append(std::move(copy));
  }
  const Value own = builder.Iota({ElementType::kS32, local.dims}, dim);
  const Value offset = builder.Broadcast(position.Offset(axes, local.dims[dim]), local.dims, {});
  const Value sum = builder.Binary(Opcode::kAdd, own, offset);
  return local.type == ElementType::kS32 ? sum : builder.Convert(sum, local.type);
}

// The operand that starts the accumulation of result `result`; -1: the operation accumulates
// nothing.
int StartOperand(const Instruction& instruction, int result) {
  switch (instruction.opcode) {
    case Opcode::kScatter:
      return 0;
    case Opcode::kSelectAndScatter:
      return 2;
    case Opcode::kReduce:
    case Opcode::kReduceWindow:
      return static_cast<int>(instruction.operands.size() / 2) + result;
    default:
      return -1;
  }
}

Opcode Combiner(const SourceOperation& source) {
  for (const AxisUse& use : source.strategy.axes) {
    if (use.kind != AxisUse::Kind::kFactor) continue;
    const Factor& factor = source.rule.factors[use.index];
    if (factor.kind == FactorKind::kCombine) return factor.combiner;
  }
  return Opcode::kAdd;
}

// What starts an accumulation counts once over all devices that accumulate.
void CountStartsOnce(const SourceOperation& source, std::vector<Value>& operands,
                     DevicePosition& position) {
  const Instruction& instruction = source.instruction();
  const AxisSet combined = CombineAxes(source.rule, source.strategy);
  const bool multiplies = !combined.empty() && Combiner(source) == Opcode::kMultiply;
  for (int result = 0; result < static_cast<int>(instruction.results.size()); ++result) {
    const int start = StartOperand(instruction, result);
    if (start < 0) return;
    const AxisSet owed =
        ResultSharding(source.rule, source.strategy, result)
            .partial.Minus(OperandSharding(source.rule, source.strategy, start).partial);
    if (!owed.empty() && !IsZero(source.computation, instruction.operands[start])) {
      operands[start] = KeepOnFirst(position, operands[start], owed);
    }
    if (multiplies) operands[start] = KeepOnFirst(position, operands[start], combined, 1);
  }
}

bool UsesForm(const SourceOperation& source, LocalForm form) {
  return std::ranges::any_of(source.strategy.axes, [&](const AxisUse& use) {
    return use.kind == AxisUse::Kind::kFactor && source.rule.factors[use.index].local_form == form;
  });
}

// The results of every part side by side, reduced once more.
std::vector<Value> ReduceGathered(const SourceOperation& source, const std::vector<Value>& parts,
                                  std::span<const Value> inits, DevicePosition& position,
                                  CalledComputations& called) {
  ComputationBuilder& builder = position.builder();
  const auto groups = GroupsOf(position.mesh(), CombineAxes(source.rule, source.strategy));
  Instruction reduce = source.instruction();
  reduce.attributes = DimensionsAttributes{{0}};
  reduce.operands.clear();
  reduce.results.clear();
  for (const Value part : parts) {
    std::vector<int64_t> dims = builder.shape(part).dims;
    reduce.results.push_back(builder.shape(part));
    dims.insert(dims.begin(), 1);
    reduce.operands.push_back(builder.AllGather(builder.Reshape(part, dims), 0, groups));
  }
  reduce.operands.insert(reduce.operands.end(), inits.begin(), inits.end());
  reduce.called = {called.Import(reduce.called[0])};
  const Value first = builder.Append(std::move(reduce));
  std::vector<Value> results;
  for (size_t i = 0; i < parts.size(); ++i) {
    results.push_back({first.instruction, static_cast<int32_t>(i)});
  }
  return results;
}

// The greatest or least of all devices' floats. As integers in the same order, beyond all of which
// lies what is not a number: of floats, the library for collectives loses that.
Value ReducedAsIntegers(ComputationBuilder& b, Value x, Opcode reducer,
                        const std::vector<std::vector<int64_t>>& groups) {
  const ElementType type = b.shape(x).type;
  const bool is_wide = type == ElementType::kF64;
  const Value floats = b.Convert(x, is_wide ? type : ElementType::kF32);
  const double last_bit = is_wide ? 63 : 31;
  // Its own inverse: negative floats are the greater the smaller their bits are.
  const auto reordered = [&](Value bits) {
    const Value sign = b.Binary(Opcode::kShiftRightArithmetic, bits, b.FullLike(bits, last_bit));
    const Value others = b.Binary(Opcode::kShiftRightLogical, sign, b.FullLike(sign, 1));
    return b.Binary(Opcode::kXor, bits, others);
  };
  const Value order =
      reordered(b.BitcastConvert(floats, is_wide ? ElementType::kS64 : ElementType::kS32));
  const double first = -std::exp2(last_bit);
  const double last = std::exp2(last_bit) - std::exp2(is_wide ? 51 : 22);  // a quiet NaN's bits
  const Value is_no_number = b.Compare(CompareAttributes::Direction::kNe, floats, floats);
  const Value values[] = {
      b.Select(is_no_number, b.FullLike(order, reducer == Opcode::kMaximum ? last : first), order)};
  const Value reduced = reordered(b.AllReduce(values, reducer, groups)[0]);
  return b.Convert(b.BitcastConvert(reduced, b.shape(floats).type), type);
}

// Results over split kCombine factors hold a part of the reduction: combine them at once.
void Complete(const SourceOperation& source, std::vector<Value>& results,
              std::span<const Value> inits, DevicePosition& position, CalledComputations& called) {
  const AxisSet axes = CombineAxes(source.rule, source.strategy);
  if (axes.empty()) return;
  if (UsesForm(source, LocalForm::kGatherAndReduce)) {
    results = ReduceGathered(source, results, inits, position, called);
    return;
  }
  const Opcode reducer = Combiner(source);
  const auto groups = GroupsOf(position.mesh(), axes);
  const bool orders = reducer == Opcode::kMaximum || reducer == Opcode::kMinimum;
  for (Value& result : results) {
    const bool is_float = IsFloat(position.builder().shape(result).type);
    if (orders && is_float && position.Takes(Departure::kMaximaOfIntegers)) {
      result = ReducedAsIntegers(position.builder(), result, reducer, groups);
      continue;
    }
    const Value values[] = {result};
    result = position.builder().AllReduce(values, reducer, groups)[0];
  }
}

AxisSet LargeAxes(const Mesh& mesh) {
  AxisSet axes;
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    if (mesh.size(axis) > 1) axes.Insert(axis);
  }
  return axes;
}

// Random bits are drawn whole by everyone from the same state; `rng`, whose state is the device's
// own, is drawn by the first device for all.
std::vector<Value> EmitRandom(const SourceOperation& source, std::vector<Value> operands,
                              DevicePosition& position) {
  Instruction copy = source.instruction();
  copy.operands = std::move(operands);
  const bool is_rng = copy.opcode == Opcode::kRng;
  const size_t num_results = copy.results.size();
  ComputationBuilder& builder = position.builder();
  const Value first = builder.Append(std::move(copy));
  std::vector<Value> results;
  for (int result = 0; result < static_cast<int>(num_results); ++result) {
    Value whole{first.instruction, result};
    const AxisSet axes = LargeAxes(position.mesh());
    if (is_rng && !axes.empty()) {
      const Value kept[] = {KeepOnFirst(position, whole, axes)};
      whole = builder.AllReduce(kept, Opcode::kAdd, GroupsOf(position.mesh(), axes))[0];
    }
    results.push_back(
        OwnPart(position, whole, ResultSharding(source.rule, source.strategy, result)));
  }
  return results;
}

// The value that leaves the other operand of the reducer as it is; nullopt: not known here.
std::optional<double> Neutral(Opcode reducer, ElementType type) {
  const double infinity = std::numeric_limits<double>::infinity();
  switch (reducer) {
    case Opcode::kAdd:
    case Opcode::kOr:
      return 0;
    case Opcode::kMultiply:
      return 1;
    case Opcode::kAnd:
      return type == ElementType::kPred ? std::optional<double>(1) : std::nullopt;
    case Opcode::kMaximum:
      if (type == ElementType::kS32) return std::numeric_limits<int32_t>::min();
      return IsFloat(type) ? std::optional(-infinity) : std::nullopt;
    case Opcode::kMinimum:
      if (type == ElementType::kS32) return std::numeric_limits<int32_t>::max();
      return IsFloat(type) ? std::optional(infinity) : std::nullopt;
    default:
      return std::nullopt;
  }
}

bool IsConstant(const Computation& computation, Value value, double wanted) {
  const auto* constant =
      std::get_if<ConstantAttributes>(&computation.instruction(value).attributes);
  return constant != nullptr && constant->literal.shape.rank() == 0 &&
         !IsComplex(constant->literal.shape.type) && ScalarValue(constant->literal) == wanted;
}

// kNeutralInits.
std::vector<Value> ReduceFromNeutral(const SourceOperation& source, std::vector<Value> operands,
                                     DevicePosition& position, CalledComputations& called) {
  const Instruction& instruction = source.instruction();
  const ElementType type = source.operand_shape(0).type;
  const std::optional<Opcode> reducer =
      operands.size() == 2 ? BinaryReducer(source.module, instruction.called[0]) : std::nullopt;
  const std::optional<double> neutral = reducer ? Neutral(*reducer, type) : std::nullopt;
  if (!neutral || IsComplex(type) ||
      IsConstant(source.computation, instruction.operands[1], *neutral)) {
    return AppendLocal(source, std::move(operands), position, called);
  }
  ComputationBuilder& builder = position.builder();
  Value init = operands[1];
  operands[1] = builder.Scalar(type, *neutral);
  const Value reduced = AppendLocal(source, std::move(operands), position, called)[0];
  const std::vector<int64_t> dims = builder.shape(reduced).dims;
  if (!dims.empty()) init = builder.Broadcast(init, dims, {});
  return {builder.Binary(*reducer, init, reduced)};
}

// kSpreadScalars.
std::vector<Value> SpreadScalars(const SourceOperation& source, std::vector<Value> operands,
                                 DevicePosition& position) {
  const Shape result = LocalResult(source, 0, position.mesh());
  for (Value& operand : operands) {
    const bool is_scalar = position.builder().shape(operand).rank() == 0;
    if (is_scalar && result.rank() > 0) {
      operand = position.builder().Broadcast(operand, result.dims, {});
    }
  }
  return operands;
}

// kClampedStarts. The inner start is clamped only as far as the outer's size asks, by a bound that
// wraps where its type is narrow; so the device's own slice of the result stays right.
std::vector<Value> ClampStarts(const SourceOperation& source, std::vector<Value> operands,
                               DevicePosition& position) {
  ComputationBuilder& builder = position.builder();
  const Shape result = LocalResult(source, 0, position.mesh());
  const std::vector<int64_t> dims = builder.shape(operands[0]).dims;
  for (size_t dim = 0; dim < dims.size(); ++dim) {
    Value& operand = operands[dim + 1];
    if (ElementBytes(builder.shape(operand).type) < 4) {
      operand = builder.Convert(operand, ElementType::kS32);
    }
    const auto last = static_cast<double>(dims[dim] - result.dims[dim]);
    const Instruction& start =
        source.computation.instruction(source.instruction().operands[dim + 1]);
    if (const auto* constant = std::get_if<ConstantAttributes>(&start.attributes)) {
      const double value = ScalarValue(constant->literal);
      if (value >= 0 && value <= last) continue;
    }
    operand = builder.Binary(Opcode::kMaximum, operand, builder.FullLike(operand, 0));
    operand = builder.Binary(Opcode::kMinimum, operand, builder.FullLike(operand, last));
  }
  return operands;
}

bool LooksUpOneIndex(const SourceOperation& gather, const Shape& indices) {
  const auto& attributes = gather.instruction().As<GatherAttributes>();
  const auto num_components = static_cast<int64_t>(attributes.start_index_map.size());
  return num_components > 0 && indices.num_elements() == num_components;
}

std::vector<Value> EmitUncombined(const SourceOperation& source, std::vector<Value> operands,
                                  DevicePosition& position, CalledComputations& called) {
  switch (source.instruction().opcode) {
    case Opcode::kConstant:
      return {EmitConstant(source, position)};
    case Opcode::kIota:
      return {EmitIota(source, position)};
    case Opcode::kRng:
    case Opcode::kRngBitGenerator:
      return EmitRandom(source, std::move(operands), position);
    case Opcode::kWhile:
    case Opcode::kConditional:
      return EmitLocalControl(source, operands, position, called);
    case Opcode::kSelect:
    case Opcode::kClamp:
      if (position.Takes(Departure::kSpreadScalars)) {
        operands = SpreadScalars(source, std::move(operands), position);
      }
      return AppendLocal(source, std::move(operands), position, called);
    case Opcode::kDynamicSlice:
      if (UsesForm(source, LocalForm::kWindowOffset)) {
        return {EmitWindowOfPart(source, operands, position)};
      }
      if (position.Takes(Departure::kClampedStarts)) {
        operands = ClampStarts(source, std::move(operands), position);
      }
      return AppendLocal(source, std::move(operands), position, called);
    case Opcode::kDynamicUpdateSlice:
      if (UsesForm(source, LocalForm::kWindowOffset)) {
        return {UpdateWindowOfPart(source, operands, position)};
      }
      return AppendLocal(source, std::move(operands), position, called);
    case Opcode::kReduce:
    case Opcode::kReduceWindow:
      if (position.Takes(Departure::kNeutralInits)) {
        return ReduceFromNeutral(source, std::move(operands), position, called);
      }
      return AppendLocal(source, std::move(operands), position, called);
    case Opcode::kGather:
      if (UsesForm(source, LocalForm::kIndexOffset) || UsesForm(source, LocalForm::kWindowOffset)) {
        return EmitGatherOfPart(source, std::move(operands), position);
      }
      if (position.Takes(Departure::kClampedStarts) &&
          LooksUpOneIndex(source, position.builder().shape(operands[1]))) {
        operands[1] = ClampIndices(source, operands[1], position);
      }
      return AppendLocal(source, std::move(operands), position, called);
    case Opcode::kScatter:
      if (UsesForm(source, LocalForm::kIndexOffset) || UsesForm(source, LocalForm::kWindowOffset)) {
        return {EmitScatterOfPart(source, std::move(operands), position, called)};
      }
      return AppendLocal(source, std::move(operands), position, called);
    default:
      return AppendLocal(source, std::move(operands), position, called);
  }
}

}  // namespace

ComputationId CalledComputations::Import(ComputationId source) {
  const auto [entry, is_new] = imported_.try_emplace(source, -1);
  if (is_new) entry->second = target_.Import(source_, source);
  return entry->second;
}

Attributes LocalAttributes(const Instruction& instruction, std::span<const Shape> operands,
                           std::span<const Shape> local_operands,
                           std::span<const Shape> local_results) {
  if (const auto* slice = std::get_if<SliceAttributes>(&instruction.attributes)) {
    SliceAttributes local = *slice;
    for (size_t dim = 0; dim < local.limits.size(); ++dim) {
      const int64_t size = local_operands[0].dims[dim];
      if (size != operands[0].dims[dim]) local.limits[dim] = size;
    }
    return local;
  }
  if (std::holds_alternative<DynamicSliceAttributes>(instruction.attributes)) {
    return DynamicSliceAttributes{local_results[0].dims};
  }
  if (const auto* gather = std::get_if<GatherAttributes>(&instruction.attributes)) {
    GatherAttributes local = *gather;
    for (size_t dim = 0; dim < local.slice_sizes.size(); ++dim) {
      if (local.slice_sizes[dim] == operands[0].dims[dim]) {
        local.slice_sizes[dim] = local_operands[0].dims[dim];
      }
    }
    return local;
  }
  if (const auto* window = std::get_if<WindowAttributes>(&instruction.attributes)) {
    WindowAttributes local = *window;
    for (size_t dim = 0; dim < local.dims.size(); ++dim) {
      // A window that covers its dimension covers the part that is here; others keep their size.
      const int64_t size = operands[0].dims[dim];
      if (BlocksOf(size, local.dims[dim]).blocks == WindowBlocks::kSum) {
        local.dims[dim].size /= size / local_operands[0].dims[dim];
      }
    }
    return local;
  }
  if (std::holds_alternative<ConvolutionAttributes>(instruction.attributes)) {
    return LocalConvolution(instruction.As<ConvolutionAttributes>(), operands, local_operands);
  }
  return instruction.attributes;
}

std::vector<Value> AppendLocal(const SourceOperation& source, std::vector<Value> operands,
                               DevicePosition& position, CalledComputations& called) {
  const Instruction& instruction = source.instruction();
  Instruction local = instruction;
  std::vector<Shape> shapes, local_shapes;
  for (size_t i = 0; i < operands.size(); ++i) {
    shapes.push_back(source.operand_shape(static_cast<int>(i)));
    local_shapes.push_back(position.builder().shape(operands[i]));
  }
  for (size_t i = 0; i < local.results.size(); ++i) {
    local.results[i] = LocalResult(source, static_cast<int>(i), position.mesh());
  }
  local.operands = std::move(operands);
  local.attributes = LocalAttributes(instruction, shapes, local_shapes, local.results);
  for (ComputationId& computation : local.called) computation = called.Import(computation);
  const Value first = position.builder().Append(std::move(local));
  std::vector<Value> results;
  for (size_t i = 0; i < instruction.results.size(); ++i) {
    results.push_back({first.instruction, static_cast<int32_t>(i)});
  }
  return results;
}

std::vector<Value> EmitLocalOperation(const SourceOperation& source, std::vector<Value> operands,
                                      DevicePosition& position, CalledComputations& called) {
  CountStartsOnce(source, operands, position);
  const std::vector<Value> inits(
      operands.begin() + static_cast<std::ptrdiff_t>(operands.size() / 2), operands.end());
  std::vector<Value> results = EmitUncombined(source, std::move(operands), position, called);
  Complete(source, results, inits, position, called);
  return results;
}

}  // namespace minka
