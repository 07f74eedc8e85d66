#include "minka/lowering/flatten_reductions.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "minka/ir/names.h"

namespace minka {
namespace {

using Dims = std::vector<int64_t>;

struct Flattened {
  Dims dims;        // of the operand
  int64_t reduced;  // of these
  Dims kept;        // the others: dims of the result
};

// nullopt: the reduction has one dimension already, or none that could be cut behind it.
std::optional<Flattened> Flatten(const Computation& computation, const Instruction& reduce) {
  const Shape& x = computation.shape(reduce.operands[0]);
  Dims reduced = reduce.As<DimensionsAttributes>().dims;
  std::ranges::sort(reduced);
  const bool are_neighbours = reduced.size() > 1 && reduced.back() - reduced.front() + 1 ==
                                                        static_cast<int64_t>(reduced.size());
  if (!are_neighbours || reduced.back() == x.rank() - 1 || x.num_elements() == 0 ||
      x.dims.back() % 2 != 0) {
    return std::nullopt;
  }
  Flattened flat{.dims = Dims(x.dims.begin(), x.dims.begin() + reduced.front()),
                 .reduced = reduced.front()};
  int64_t merged = 1;
  for (const int64_t dim : reduced) merged *= x.dims[dim];
  flat.dims.push_back(merged);
  flat.dims.insert(flat.dims.end(), x.dims.begin() + reduced.back() + 1, x.dims.end());
  flat.dims.back() /= 2;
  flat.dims.insert(flat.dims.end() - 1, 2);
  flat.kept = flat.dims;
  flat.kept.erase(flat.kept.begin() + flat.reduced);
  return flat;
}

// Writes the computation with its reductions flattened.
class FlatWriter {
 public:
  explicit FlatWriter(const Computation& computation) : source_(computation) {
    for (const Instruction& instruction : computation.instructions) {
      names_.Reserve(instruction.name);
    }
  }

  Computation Write() && {
    for (const Instruction& instruction : source_.instructions) {
      Instruction copy = instruction;
      for (Value& operand : copy.operands) operand = Now(operand);
      now_.push_back(WriteInstruction(instruction, std::move(copy)));
    }
    out_.name = source_.name;
    for (const InstructionId parameter : source_.parameters) {
      out_.parameters.push_back(now_[parameter]);
    }
    for (const Value result : source_.results) out_.results.push_back(Now(result));
    return std::move(out_);
  }

 private:
  Value Now(Value value) const { return {now_[value.instruction], value.result}; }

  InstructionId Append(Instruction instruction) {
    out_.instructions.push_back(std::move(instruction));
    return out_.num_instructions() - 1;
  }

  InstructionId WriteInstruction(const Instruction& source, Instruction copy) {
    if (source.opcode != Opcode::kReduce || source.operands.size() != 2)
      return Append(std::move(copy));
    const std::optional<Flattened> flat = Flatten(source_, source);
    if (!flat) return Append(std::move(copy));
    const ElementType type = source.shape().type;
    copy.operands[0] = Reshape(source, copy.operands[0], {type, flat->dims});
    copy.attributes = DimensionsAttributes{{flat->reduced}};
    copy.results = {{type, flat->kept}};
    const Value reduced{Append(std::move(copy)), 0};
    return Reshape(source, reduced, source.shape()).instruction;
  }

  Value Reshape(const Instruction& source, Value x, const Shape& shape) {
    return {Append({.opcode = Opcode::kReshape,
                    .name = names_.Take(source.name),
                    .operands = {x},
                    .results = {shape},
                    .op_name = source.op_name}),
            0};
  }

  const Computation& source_;
  UniqueNames names_;
  Computation out_;
  std::vector<InstructionId> now_;  // by instruction of the source
};

}  // namespace

Module FlattenReductions(const Module& module) {
  Module out = module;
  for (Computation& computation : out.computations) {
    const Computation source = computation;
    computation = FlatWriter(source).Write();
  }
  return out;
}

}  // namespace minka
