#include <algorithm>

#include "minka/driver/inputs.h"

namespace minka {
namespace {

// What is known of a value: does it come from the parameter, and is it an iota of that length?
struct Origin {
  bool from_parameter = false;
  int64_t iota_length = 0;
};

bool KeepsIndices(const Instruction& instruction) {
  switch (instruction.opcode) {
    case Opcode::kConvert:
    case Opcode::kCopy:
    case Opcode::kReshape:
    case Opcode::kBroadcast:
    case Opcode::kTranspose:
    case Opcode::kSlice:
    case Opcode::kReverse:
    case Opcode::kConcatenate:
    case Opcode::kPad:
    case Opcode::kAdd:
    case Opcode::kSubtract:
    case Opcode::kMaximum:
    case Opcode::kMinimum:
    case Opcode::kClamp:
    case Opcode::kSelect:
      return true;
    default:
      return false;
  }
}

class BoundSearch {
 public:
  explicit BoundSearch(const Module& module) : module_(module) {}

  std::vector<Origin> Visit(ComputationId id, const std::vector<Origin>& parameters) {
    const Computation& computation = module_.computations[id];
    std::vector<std::vector<Origin>> origins(computation.num_instructions());
    for (InstructionId i = 0; i < computation.num_instructions(); ++i) {
      const Instruction& instruction = computation.instructions[i];
      std::vector<Origin> operands;
      for (const Value operand : instruction.operands) {
        operands.push_back(origins[operand.instruction][operand.result]);
      }
      origins[i] = Results(instruction, operands, parameters);
      NoteUse(computation, instruction, operands);
    }
    std::vector<Origin> results;
    for (const Value result : computation.results) {
      results.push_back(origins[result.instruction][result.result]);
    }
    return results;
  }

  std::optional<int64_t> bound() const { return bound_; }

 private:
  std::vector<Origin> Results(const Instruction& instruction, const std::vector<Origin>& operands,
                              const std::vector<Origin>& parameters) {
    std::vector<Origin> out(instruction.results.size());
    switch (instruction.opcode) {
      case Opcode::kParameter:
        return {parameters[instruction.As<ParameterAttributes>().number]};
      case Opcode::kIota:
        out[0].iota_length =
            instruction.shape().dims[instruction.As<DimensionsAttributes>().dims.front()];
        return out;
      case Opcode::kCall:
        return Visit(instruction.called.front(), operands);
      case Opcode::kOptBarrier:
        return operands;
      default:
        break;
    }
    if (!KeepsIndices(instruction)) return out;
    const size_t first = instruction.opcode == Opcode::kSelect ? 1 : 0;
    for (size_t i = first; i < operands.size(); ++i) {
      out[0].from_parameter |= operands[i].from_parameter;
      out[0].iota_length = std::max(out[0].iota_length, operands[i].iota_length);
    }
    return out;
  }

  void NoteUse(const Computation& computation, const Instruction& instruction,
               const std::vector<Origin>& operands) {
    const auto from_parameter = [&](size_t operand) {
      return operand < operands.size() && operands[operand].from_parameter;
    };
    switch (instruction.opcode) {
      case Opcode::kGather: {
        if (!from_parameter(1)) return;
        const auto& gather = instruction.As<GatherAttributes>();
        const Shape& table = computation.shape(instruction.operands[0]);
        for (const int64_t dim : gather.start_index_map) {
          Note(table.dims[dim] - gather.slice_sizes[dim] + 1);
        }
        return;
      }
      case Opcode::kScatter: {
        const size_t num_tables = instruction.operands.size() / 2;
        if (!from_parameter(num_tables)) return;
        const Shape& table = computation.shape(instruction.operands[0]);
        for (const int64_t dim : instruction.As<ScatterAttributes>().scatter_dims_to_operand_dims) {
          Note(table.dims[dim]);
        }
        return;
      }
      case Opcode::kDynamicSlice: {
        const Shape& table = computation.shape(instruction.operands[0]);
        for (int dim = 0; dim < table.rank(); ++dim) {
          if (from_parameter(dim + 1)) Note(table.dims[dim] - instruction.shape().dims[dim] + 1);
        }
        return;
      }
      case Opcode::kCompare:
        for (const size_t side : {0, 1}) {
          if (operands[side].from_parameter && operands[1 - side].iota_length > 0) {
            Note(operands[1 - side].iota_length);
          }
        }
        return;
      default:
        return;
    }
  }

  void Note(int64_t bound) {
    bound_ = std::max<int64_t>(1, std::min(bound, bound_.value_or(bound)));
  }

  const Module& module_;
  std::optional<int64_t> bound_;
};

}  // namespace

std::optional<int64_t> IndexBound(const Module& module, int parameter) {
  std::vector<Origin> parameters(module.entry_computation().parameters.size());
  parameters[parameter].from_parameter = true;
  BoundSearch search(module);
  search.Visit(module.entry, parameters);
  return search.bound();
}

}  // namespace minka
