#include "minka/analysis/xla_cpu_forms.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "minka/ir/rewriter.h"
#include "minka/ir/simplify.h"

namespace minka {
namespace {

// Of what no fusion takes in, whatever it is.
constexpr Opcode kStandsAlone = Opcode::kRng;

// kMaxConcatenateArguments of CpuInstructionFusion.
constexpr size_t kMaxFusedParts = 8;

// What goes from one computation to another keeps its type, and what is there to hold it.
bool KeepsTypes(Opcode opcode) {
  switch (opcode) {
    case Opcode::kBitcastConvert:
    case Opcode::kCall:
    case Opcode::kConditional:
    case Opcode::kCustomCall:
    case Opcode::kDynamicUpdateSlice:
    case Opcode::kOptBarrier:
    case Opcode::kOther:
    case Opcode::kParameter:
    case Opcode::kRng:
    case Opcode::kRngBitGenerator:
    case Opcode::kWhile:
      return true;
    default:
      return false;
  }
}

// Has the result digits that a narrow type has not?
bool Rounds(Opcode opcode) {
  switch (opcode) {
    case Opcode::kAllGather:
    case Opcode::kAllReduce:
    case Opcode::kAllToAll:
    case Opcode::kConvolution:
    case Opcode::kDot:
    case Opcode::kReduce:
    case Opcode::kReduceScatter:
      return true;
    case Opcode::kSelect:
      return false;
    default:
      return IsElementwise(opcode);
  }
}

bool Contains(const std::vector<int64_t>& dims, int64_t dim) {
  return std::ranges::find(dims, dim) != dims.end();
}

// Narrow floats are wide while they are worked on: a value's wide form is what its producer leaves.
class FormsWriter {
 public:
  explicit FormsWriter(const Computation& source) : source_(source), rewriter_(source) {}

  Computation Run() && {
    for (InstructionId id = 0; id < source_.num_instructions(); ++id) Write(id);
    for (const Value result : source_.results) {
      rewriter_.Map(result, Convert(rewriter_.Now(result), source_.shape(result).type));
    }
    return std::move(rewriter_).Finish();
  }

 private:
  Value Append(Instruction instruction) { return rewriter_.AppendOne(std::move(instruction)); }

  // The value in the type that operations work in.
  Value Wide(Value value) {
    return IsNarrowFloat(ShapeOf(value).type) ? Convert(value, ElementType::kF32) : value;
  }

  // What works in a wider type rounds its result: a step of its own where neither side takes it in.
  Value Rounded(Value value, ElementType type) {
    if (!IsNarrowFloat(type) || ShapeOf(value).type == type) return value;
    return Append({.opcode = Opcode::kReducePrecision,
                   .name = Producer(value).name + ".rounded",
                   .operands = {value},
                   .results = {ShapeOf(value)}});
  }

  void Write(InstructionId id) {
    std::vector<Value> results = WriteWide(id);
    if (Rounds(source_.instructions[id].opcode)) {
      for (size_t i = 0; i < results.size(); ++i) {
        results[i] = Rounded(results[i], source_.instructions[id].results[i].type);
      }
    }
    rewriter_.Map(id, results);
  }

  std::vector<Value> WriteWide(InstructionId id) {
    Instruction instruction = source_.instructions[id];
    const bool keeps_types = KeepsTypes(instruction.opcode);
    for (Value& operand : instruction.operands) {
      const ElementType type = source_.shape(operand).type;
      const Value now = rewriter_.Now(operand);
      operand = keeps_types ? Convert(now, type) : Wide(now);
    }
    for (Shape& shape : instruction.results) {
      if (!keeps_types && IsNarrowFloat(shape.type)) shape.type = ElementType::kF32;
    }
    const size_t num_results = instruction.results.size();
    switch (instruction.opcode) {
      case Opcode::kDot:
        return {WriteDot(std::move(instruction), source_.instructions[id])};
      case Opcode::kConvolution:
        return {WriteConvolution(std::move(instruction))};
      case Opcode::kConcatenate:
        if (instruction.operands.size() > kMaxFusedParts) instruction.opcode = kStandsAlone;
        break;
      case Opcode::kPad:
        instruction.opcode = kStandsAlone;
        break;
      case Opcode::kReshape:
        return {Reshaped(instruction.operands[0], instruction.shape().dims)};
      case Opcode::kSelectAndScatter:
        return {WriteSelectAndScatter(instruction)};
      case Opcode::kConvert:
        if (ShapeOf(instruction.operands[0]).type == instruction.shape().type &&
            !IsNarrowFloat(source_.instructions[id].shape().type)) {
          return {instruction.operands[0]};
        }
        break;
      case Opcode::kAllToAll:
        if (num_results == 1) return {WriteAllToAll(std::move(instruction))};
        break;
      case Opcode::kAllGather:
      case Opcode::kReduceScatter:
        if (num_results == 1) return {WriteAlongFirst(std::move(instruction))};
        break;
      default:
        break;
    }
    return rewriter_.Append(std::move(instruction));
  }

  const Shape& ShapeOf(Value value) const { return rewriter_.copy().shape(value); }
  const Instruction& Producer(Value value) const { return rewriter_.copy().instruction(value); }

  Value Convert(Value value, ElementType type) {
    if (ShapeOf(value).type == type) return value;
    const auto [found, added] = converted_.try_emplace({value, type});
    if (added) {
      found->second = Append({.opcode = Opcode::kConvert,
                              .name = Producer(value).name + ".convert",
                              .operands = {value},
                              .results = {{type, ShapeOf(value).dims}}});
    }
    return found->second;
  }

  // Nothing is written where only dimensions of size 1 change places.
  Value Transpose(Value value, const std::vector<int64_t>& permutation) {
    const Shape& shape = ShapeOf(value);
    std::vector<int64_t> moved, dims;
    for (const int64_t dim : permutation) {
      if (shape.dims[dim] != 1) moved.push_back(dim);
      dims.push_back(shape.dims[dim]);
    }
    const bool stays = std::ranges::is_sorted(moved);
    const auto [found, added] = transposed_.try_emplace({value, permutation});
    if (!added) return found->second;
    const Shape result{shape.type, dims};
    Instruction written{.opcode = stays ? Opcode::kReshape : Opcode::kTranspose,
                        .name = Producer(value).name + ".moved",
                        .operands = {value},
                        .results = {result}};
    if (!stays) written.attributes = DimensionsAttributes{.dims = permutation};
    return found->second = Append(std::move(written));
  }

  // The operand of a dot, with `first` dimensions in front of `second` ones behind the batch.
  // A matrix is read either way, unless it is converted after it is transposed.
  Value DotOperand(Value value, bool is_converted, const std::vector<int64_t>& batch,
                   const std::vector<int64_t>& first, const std::vector<int64_t>& second) {
    std::vector<int64_t> permutation = batch;
    permutation.insert(permutation.end(), first.begin(), first.end());
    permutation.insert(permutation.end(), second.begin(), second.end());
    std::vector<int64_t> swapped = batch;
    swapped.insert(swapped.end(), second.begin(), second.end());
    swapped.insert(swapped.end(), first.begin(), first.end());
    // A batch of one is dropped between the transpose and the dot, which then is no matrix's.
    const bool is_matrix =
        first.size() == 1 && second.size() == 1 &&
        std::ranges::all_of(batch, [&](int64_t dim) { return ShapeOf(value).dims[dim] > 1; });
    if (is_matrix && !is_converted && std::ranges::is_sorted(swapped)) return value;
    if (std::ranges::is_sorted(permutation)) return value;
    const Shape& shape = ShapeOf(value);
    std::vector<int64_t> moved;
    for (const int64_t dim : permutation) {
      if (shape.dims[dim] != 1) moved.push_back(dim);
    }
    if (std::ranges::is_sorted(moved)) return value;
    const Value transposed = Transpose(value, permutation);
    if (!is_converted) return transposed;
    const auto [found, added] = widened_.try_emplace(transposed);
    if (added) found->second = Rounded(transposed, ElementType::kBF16);
    return found->second;
  }

  // Only the number of dimensions matters.
  Value AsMatrix(Value value, size_t num_free, size_t num_contracting) {
    if (num_free <= 1 && num_contracting <= 1) return value;
    return Reshaped(value, {ShapeOf(value).num_elements()});
  }

  // Equal reshapes are one, and of two in a row the last is left. So what several dots read by
  // reshapes of their own is written once, not repeated in each of them.
  Value Reshaped(Value value, const std::vector<int64_t>& dims) {
    while (Producer(value).opcode == Opcode::kReshape) {
      value = Producer(value).operands[0];
    }
    if (ShapeOf(value).dims == dims) return value;
    const auto [found, added] = reshaped_.try_emplace({value, dims});
    if (added) {
      found->second = Append({.opcode = Opcode::kReshape,
                              .name = Producer(value).name + ".shaped",
                              .operands = {value},
                              .results = {{ShapeOf(value).type, dims}}});
    }
    return found->second;
  }

  Value WriteDot(Instruction dot, const Instruction& source) {
    const auto attributes = dot.As<DotAttributes>();
    const auto free_dims = [&](Value value, const std::vector<int64_t>& batch,
                               const std::vector<int64_t>& contracting) {
      std::vector<int64_t> dims;
      for (int64_t dim = 0; dim < ShapeOf(value).rank(); ++dim) {
        if (!Contains(batch, dim) && !Contains(contracting, dim)) dims.push_back(dim);
      }
      return dims;
    };
    const std::vector<int64_t> lhs_free =
        free_dims(dot.operands[0], attributes.lhs_batch, attributes.lhs_contracting);
    const std::vector<int64_t> rhs_free =
        free_dims(dot.operands[1], attributes.rhs_batch, attributes.rhs_contracting);
    const auto is_converted = [&](int operand) {
      return IsNarrowFloat(source_.shape(source.operands[operand]).type);
    };
    dot.operands[0] = DotOperand(dot.operands[0], is_converted(0), attributes.lhs_batch, lhs_free,
                                 attributes.lhs_contracting);
    dot.operands[1] = DotOperand(dot.operands[1], is_converted(1), attributes.rhs_batch,
                                 attributes.rhs_contracting, rhs_free);
    const size_t num_contracting = attributes.lhs_contracting.size();
    dot.operands[0] = AsMatrix(dot.operands[0], lhs_free.size(), num_contracting);
    dot.operands[1] = AsMatrix(dot.operands[1], rhs_free.size(), num_contracting);
    if (lhs_free.size() > 1 || rhs_free.size() > 1) {
      const Shape shape = dot.shape();
      dot.results[0].dims = {shape.num_elements()};
      return Reshaped(Append(std::move(dot)), shape.dims);
    }
    return Append(std::move(dot));
  }

  // The parts are cut off, exchanged and put together again.
  Value WriteAllToAll(Instruction exchange) {
    const auto& attributes = exchange.As<CollectiveAttributes>();
    const int64_t dimension = attributes.dimension;
    const Value whole = exchange.operands[0];
    const Shape shape = ShapeOf(whole);
    const int64_t num_parts =
        attributes.groups.empty() ? 1 : static_cast<int64_t>(attributes.groups[0].size());
    if (dimension < 0 || num_parts < 2) return Append(std::move(exchange));
    Shape part = shape;
    part.dims[dimension] /= num_parts;
    const std::string name = exchange.name;
    exchange.operands.clear();
    exchange.results.assign(num_parts, part);
    for (int64_t i = 0; i < num_parts; ++i) {
      exchange.operands.push_back(Append({.opcode = Opcode::kSlice,
                                          .name = name + ".part",
                                          .operands = {whole},
                                          .results = {part}}));
    }
    const Value first = Append(std::move(exchange));
    Instruction together{.opcode = Opcode::kConcatenate, .name = name, .results = {shape}};
    for (int64_t i = 0; i < num_parts; ++i) {
      together.operands.push_back({first.instruction, static_cast<int32_t>(i)});
    }
    return Append(std::move(together));
  }

  // [batch, spatial, features] by [spatial, input features, output features].
  Value WriteConvolution(Instruction convolution) {
    const auto attributes = convolution.As<ConvolutionAttributes>();
    const auto order = [](int64_t first, const std::vector<int64_t>& spatial, int64_t last) {
      std::vector<int64_t> dims = {first};
      dims.insert(dims.end(), spatial.begin(), spatial.end());
      dims.push_back(last);
      return dims;
    };
    std::vector<int64_t> kernel = attributes.kernel_spatial;
    kernel.push_back(attributes.kernel_input_feature);
    kernel.push_back(attributes.kernel_output_feature);
    const std::vector<int64_t> output =
        order(attributes.output_batch, attributes.output_spatial, attributes.output_feature);
    convolution.operands[0] =
        Ordered(convolution.operands[0],
                order(attributes.input_batch, attributes.input_spatial, attributes.input_feature));
    convolution.operands[1] = Ordered(convolution.operands[1], kernel);
    std::vector<int64_t> dims, back(output.size());
    for (size_t i = 0; i < output.size(); ++i) {
      dims.push_back(convolution.shape().dims[output[i]]);
      back[output[i]] = static_cast<int64_t>(i);
    }
    convolution.results[0].dims = dims;
    return Ordered(Append(std::move(convolution)), back);
  }

  Value Ordered(Value value, const std::vector<int64_t>& permutation) {
    return std::ranges::is_sorted(permutation) ? value : Transpose(value, permutation);
  }

  // The places of the elements that are selected, found with their indices, then a scatter.
  Value WriteSelectAndScatter(const Instruction& source) {
    const std::string& name = source.name;
    const Shape operand = ShapeOf(source.operands[0]), updates = ShapeOf(source.operands[1]);
    const int rank = operand.rank();
    Instruction windows{.opcode = Opcode::kReduceWindow,
                        .name = name + ".windows",
                        .operands = {source.operands[0]},
                        .results = {updates}};
    for (int i = 0; i < rank; ++i) {
      windows.operands.push_back(Append({.opcode = kStandsAlone,
                                         .name = name + ".iota",
                                         .results = {{ElementType::kS32, operand.dims}}}));
      windows.results.push_back({ElementType::kS32, updates.dims});
    }
    const Value found = Append(std::move(windows));
    Instruction indices{.opcode = Opcode::kConcatenate, .name = name + ".indices"};
    for (int i = 0; i < rank; ++i) indices.operands.push_back({found.instruction, i + 1});
    indices.results = {{ElementType::kS32, {updates.num_elements(), rank}}};
    const Value places = Append(std::move(indices));
    const Value zeros = Append({.opcode = Opcode::kBroadcast,
                                .name = name + ".zeros",
                                .operands = {source.operands[2]},
                                .results = {operand}});
    const Value moved = Append({.opcode = Opcode::kCopy,
                                .name = name + ".updates",
                                .operands = {source.operands[1]},
                                .results = {updates}});
    return Append({.opcode = Opcode::kScatter,
                   .name = name,
                   .operands = {zeros, places, moved},
                   .results = {operand},
                   .attributes = ScatterAttributes{}});
  }

  Value WriteAlongFirst(Instruction collective) {
    const int64_t dimension = collective.As<CollectiveAttributes>().dimension;
    const int rank = collective.shape().rank();
    if (dimension <= 0) return Append(std::move(collective));
    std::vector<int64_t> there(rank), back(rank);
    std::iota(there.begin(), there.end(), 0);
    std::rotate(there.begin(), there.begin() + dimension, there.begin() + dimension + 1);
    for (int i = 0; i < rank; ++i) back[there[i]] = i;
    collective.operands[0] = Transpose(collective.operands[0], there);
    std::vector<int64_t> dims;
    for (const int64_t dim : there) dims.push_back(collective.shape().dims[dim]);
    collective.results[0].dims = dims;
    return Transpose(Append(std::move(collective)), back);
  }

  const Computation& source_;
  Rewriter rewriter_;
  std::map<std::pair<Value, ElementType>, Value> converted_;
  std::map<Value, Value> widened_;  // transposed and then converted
  std::map<std::pair<Value, std::vector<int64_t>>, Value> transposed_, reshaped_;
};

}  // namespace

Module CpuForms(const Module& module) {
  Module out = module;
  for (Computation& computation : out.computations) {
    const Computation source = computation;
    computation = FormsWriter(source).Run();
  }
  return EliminateDeadCode(out);
}

}  // namespace minka
