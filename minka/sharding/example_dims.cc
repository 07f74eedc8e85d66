#include "minka/sharding/example_dims.h"

#include <algorithm>
#include <utility>

#include "minka/ir/micro_loop.h"
#include "minka/sharding/op_rule.h"

namespace minka {
namespace {

ExampleDims OfParameter(const Instruction& instruction, const ParameterInfo& info,
                        bool has_micro_batches) {
  if (info.received) return *info.received;
  if (info.role != ParameterRole::kBatch || info.batch_dim < 0) return {};
  ExampleDims dims{.batch = info.batch_dim};
  for (int dim = 0; dim < instruction.shape().rank(); ++dim) {
    const bool counts_micro_batches = has_micro_batches && dim == info.batch_dim - 1;
    if (dim != info.batch_dim && !counts_micro_batches) dims.within.push_back(dim);
  }
  return dims;
}

bool Contains(const std::vector<int>& dims, int dim) {
  return std::ranges::find(dims, dim) != dims.end();
}

int DimOf(const std::vector<int>& factor_of_dim, int factor) {
  const auto found = std::ranges::find(factor_of_dim, factor);
  return found == factor_of_dim.end() ? -1 : static_cast<int>(found - factor_of_dim.begin());
}

// The dimension of the result that an operation cuts, fills up or slides a window over, so that it
// has no factor; -1: none.
int DimWithoutFactor(const Instruction& instruction, size_t operand, int dim) {
  switch (instruction.opcode) {
    case Opcode::kSlice:
    case Opcode::kDynamicSlice:
    case Opcode::kPad:
    case Opcode::kReverse:
    case Opcode::kReduceWindow:
      return operand == 0 ? dim : -1;
    case Opcode::kConcatenate:
      return dim;
    case Opcode::kDynamicUpdateSlice:
    case Opcode::kSelectAndScatter:
      return operand < 2 ? dim : -1;
    case Opcode::kConvolution: {
      const auto& convolution = instruction.As<ConvolutionAttributes>();
      const auto found = std::ranges::find(convolution.input_spatial, dim);
      if (operand != 0 || found == convolution.input_spatial.end()) return -1;
      return static_cast<int>(
          convolution.output_spatial[found - convolution.input_spatial.begin()]);
    }
    default:
      return -1;
  }
}

// Of dimensions that a reshape makes of others, their elements in the same order.
void FollowReshaped(const std::vector<int>& from, const std::vector<int>& to,
                    const ExampleDims& operand, ExampleDims& result) {
  const bool has_batch = Contains(from, operand.batch);
  const bool has_within =
      std::ranges::any_of(from, [&](int dim) { return Contains(operand.within, dim); });
  if (!has_batch && !has_within) return;
  auto rest = to.begin();
  if (has_batch && (from.front() == operand.batch || !has_within)) {
    const bool is_merged = has_within || operand.batch_is_merged;
    result.batch = *rest++;
    result.batch_is_merged = is_merged && to.size() == 1;
    if (!is_merged) return;  // examples are counted by several
  }
  result.within.insert(result.within.end(), rest, to.end());
}

std::vector<int> DimsAboveOne(const Shape& shape) {
  std::vector<int> dims;
  for (int dim = 0; dim < shape.rank(); ++dim) {
    if (shape.dims[dim] != 1) dims.push_back(dim);
  }
  return dims;
}

// Dimensions go together until as many elements lie on both sides.
void FollowReshape(const Shape& from, const Shape& to, const ExampleDims& operand,
                   ExampleDims& result) {
  if (from.num_elements() == 0) return;
  const std::vector<int> from_dims = DimsAboveOne(from), to_dims = DimsAboveOne(to);
  for (size_t i = 0, j = 0; i < from_dims.size() && j < to_dims.size();) {
    std::vector<int> of_from, of_to;
    int64_t product_from = 1, product_to = 1;
    do {
      if (product_from <= product_to) {
        product_from *= from.dims[of_from.emplace_back(from_dims[i++])];
      } else {
        product_to *= to.dims[of_to.emplace_back(to_dims[j++])];
      }
    } while (product_from != product_to);
    FollowReshaped(of_from, of_to, operand, result);
  }
}

// Where operands disagree the first one says what counts examples.
void Follow(const Instruction& instruction, const OpRule& rule,
            const std::vector<ExampleDims>& operands, std::vector<ExampleDims>& results) {
  for (size_t i = 0; i < operands.size(); ++i) {
    const std::vector<int>& factor_of_dim = rule.operand_dims[i];
    const int batch = operands[i].batch < 0 ? kWholeDim : factor_of_dim[operands[i].batch];
    for (size_t r = 0; r < results.size(); ++r) {
      ExampleDims& result = results[r];
      if (batch != kWholeDim && result.batch < 0) {
        result.batch = DimOf(rule.result_dims[r], batch);
        result.batch_is_merged = result.batch >= 0 && operands[i].batch_is_merged;
      }
      for (const int within : operands[i].within) {
        const int factor = factor_of_dim[within];
        const int dim = factor == kWholeDim ? DimWithoutFactor(instruction, i, within)
                                            : DimOf(rule.result_dims[r], factor);
        if (dim >= 0) result.within.push_back(dim);
      }
    }
  }
}

// Ascending, each once.
void Tidy(ExampleDims& dims) {
  std::ranges::sort(dims.within);
  const auto repeated = std::ranges::unique(dims.within);
  dims.within.erase(repeated.begin(), repeated.end());
  std::erase(dims.within, dims.batch);
}

}  // namespace

std::vector<std::vector<ExampleDims>> FindExampleDims(const Step& step) {
  const Computation& entry = step.module.entry_computation();
  const bool has_micro_batches = FindMicroLoop(step.module).exists();
  std::vector<std::vector<ExampleDims>> found(entry.num_instructions());
  for (InstructionId id = 0; id < entry.num_instructions(); ++id) {
    const Instruction& instruction = entry.instructions[id];
    std::vector<ExampleDims>& results = found[id];
    results.resize(instruction.results.size());
    if (instruction.opcode == Opcode::kParameter) {
      const auto number = static_cast<size_t>(instruction.As<ParameterAttributes>().number);
      results[0] = OfParameter(instruction, step.parameters[number], has_micro_batches);
      continue;
    }
    std::vector<ExampleDims> operands;
    for (const Value operand : instruction.operands) {
      operands.push_back(found[operand.instruction][operand.result]);
    }
    if (std::ranges::all_of(operands, [](const ExampleDims& dims) { return dims.empty(); }))
      continue;
    if (instruction.opcode == Opcode::kReshape) {
      FollowReshape(entry.shape(instruction.operands[0]), instruction.shape(), operands[0],
                    results[0]);
    } else if (const OpRule rule = RuleFor(step.module, entry, id); rule.num_lanes == 1) {
      Follow(instruction, rule, operands, results);
    } else {
      results = std::move(operands);  // the shapes of a lane are equal
    }
    for (ExampleDims& dims : results) {
      if (instruction.part.phase == Phase::kApply) dims.within.clear();
      Tidy(dims);
    }
  }
  return found;
}

}  // namespace minka
