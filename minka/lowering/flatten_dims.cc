#include "minka/lowering/flatten_dims.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "minka/analysis/dot_layout.h"
#include "minka/ir/rewriter.h"

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

// A dot of matrices, one per batch element.
struct FlatDot {
  Shape lhs, rhs, result;
  DotAttributes dot;
};

// The operand's dimensions with those that are contracted merged, and those that are kept.
Dims AsMatrix(const Shape& operand, const Dims& batch, const Dims& contracting,
              bool contracts_last) {
  const auto num_batch = static_cast<int64_t>(batch.size());
  int64_t contracted = 1, elements = 1;
  for (const int64_t dim : contracting) contracted *= operand.dims[dim];
  for (int64_t dim = num_batch; dim < operand.rank(); ++dim) elements *= operand.dims[dim];
  Dims dims(operand.dims.begin(), operand.dims.begin() + num_batch);
  dims.push_back(contracts_last ? elements / contracted : contracted);
  dims.push_back(contracts_last ? contracted : elements / contracted);
  return dims;
}

// nullopt: the operands are no matrices.
std::optional<FlatDot> FlattenDot(const Computation& computation, const Instruction& instruction) {
  const auto& dot = instruction.As<DotAttributes>();
  const Shape& lhs = computation.shape(instruction.operands[0]);
  const Shape& rhs = computation.shape(instruction.operands[1]);
  const DotLayout layout = LayoutOf(dot, lhs.rank(), rhs.rank());
  const auto num_batch = static_cast<int64_t>(dot.lhs_batch.size());
  const auto has_all = [&](const Shape& operand) {
    return operand.num_elements() > 0 &&
           operand.rank() > num_batch + static_cast<int64_t>(dot.lhs_contracting.size());
  };
  if (!layout.lhs.is_matrix || !layout.rhs.is_matrix || dot.lhs_contracting.empty() ||
      !has_all(lhs) || !has_all(rhs)) {
    return std::nullopt;
  }
  FlatDot flat = {.lhs = {lhs.type, AsMatrix(lhs, dot.lhs_batch, dot.lhs_contracting,
                                             layout.lhs.contracts_last)},
                  .rhs = {rhs.type, AsMatrix(rhs, dot.rhs_batch, dot.rhs_contracting,
                                             layout.rhs.contracts_last)},
                  .dot = {.lhs_contracting = {num_batch + (layout.lhs.contracts_last ? 1 : 0)},
                          .rhs_contracting = {num_batch + (layout.rhs.contracts_last ? 1 : 0)},
                          .lhs_batch = dot.lhs_batch,
                          .rhs_batch = dot.rhs_batch}};
  flat.result = {instruction.shape().type,
                 Dims(flat.lhs.dims.begin(), flat.lhs.dims.begin() + num_batch)};
  flat.result.dims.push_back(flat.lhs.dims[num_batch + (layout.lhs.contracts_last ? 0 : 1)]);
  flat.result.dims.push_back(flat.rhs.dims[num_batch + (layout.rhs.contracts_last ? 0 : 1)]);
  return flat;
}

bool ShouldExchange(const FlatDot& flat) {
  const bool contracts_last = flat.dot.lhs_batch.empty() && flat.dot.lhs_contracting[0] == 1 &&
                              flat.dot.rhs_contracting[0] == 1;
  return contracts_last && IsFasterExchanged(flat.result.dims[0], flat.result.dims[1]);
}

// Writes the computation with its reductions and dots flattened.
class FlatWriter {
 public:
  FlatWriter(const Computation& computation, Departures departures)
      : source_(computation), departures_(departures), rewriter_(computation) {}

  Computation Write() && {
    for (InstructionId id = 0; id < source_.num_instructions(); ++id) {
      const Instruction& instruction = source_.instructions[id];
      if (instruction.opcode == Opcode::kDot && departures_.contains(Departure::kFlatDots)) {
        rewriter_.Map(id, {WriteDot(instruction, rewriter_.Translated(id))});
      } else if (instruction.opcode == Opcode::kReduce && instruction.operands.size() == 2 &&
                 departures_.contains(Departure::kFlatReductions)) {
        rewriter_.Map(id, {WriteReduction(instruction, rewriter_.Translated(id))});
      } else {
        rewriter_.Copy(id);
      }
    }
    return std::move(rewriter_).Finish();
  }

 private:
  Value WriteDot(const Instruction& source, Instruction copy) {
    const std::optional<FlatDot> flat = FlattenDot(source_, source);
    if (!flat) return rewriter_.AppendOne(std::move(copy));
    copy.operands = {Reshape(source, copy.operands[0], flat->lhs),
                     Reshape(source, copy.operands[1], flat->rhs)};
    copy.attributes = flat->dot;
    copy.results = {flat->result};
    if (departures_.contains(Departure::kExchangedDots) && ShouldExchange(*flat))
      return WriteExchanged(source, std::move(copy));
    const Value product = rewriter_.AppendOne(std::move(copy));
    return Reshape(source, product, source.shape());
  }

  // Both operands of the dot contract their second dimension.
  Value WriteExchanged(const Instruction& source, Instruction dot) {
    const Shape result = dot.shape();
    std::swap(dot.operands[0], dot.operands[1]);
    dot.results = {{result.type, {result.dims[1], result.dims[0]}}};
    const Shape exchanged = dot.shape();
    const Value product = rewriter_.AppendOne(std::move(dot));
    const Value kept = Derived(source, Opcode::kOptBarrier, product, exchanged, {});
    const Value transposed =
        Derived(source, Opcode::kTranspose, kept, result, DimensionsAttributes{{1, 0}});
    return Reshape(source, transposed, source.shape());
  }

  Value WriteReduction(const Instruction& source, Instruction copy) {
    const std::optional<Flattened> flat = Flatten(source_, source);
    if (!flat) return rewriter_.AppendOne(std::move(copy));
    const ElementType type = source.shape().type;
    copy.operands[0] = Reshape(source, copy.operands[0], {type, flat->dims});
    copy.attributes = DimensionsAttributes{{flat->reduced}};
    copy.results = {{type, flat->kept}};
    const Value reduced = rewriter_.AppendOne(std::move(copy));
    return Reshape(source, reduced, source.shape());
  }

  Value Reshape(const Instruction& source, Value x, const Shape& shape) {
    if (rewriter_.copy().shape(x) == shape) return x;
    return Derived(source, Opcode::kReshape, x, shape, {});
  }

  Value Derived(const Instruction& source, Opcode opcode, Value x, const Shape& shape,
                Attributes attributes) {
    return rewriter_.AppendOne({.opcode = opcode,
                                .name = rewriter_.NewName(source.name),
                                .operands = {x},
                                .results = {shape},
                                .attributes = std::move(attributes),
                                .op_name = source.op_name});
  }

  const Computation& source_;
  const Departures departures_;
  Rewriter rewriter_;
};

}  // namespace

Module FlattenDims(Module module, Departures departures) {
  const bool flattens =
      departures.contains(Departure::kFlatDots) || departures.contains(Departure::kFlatReductions);
  if (!flattens) return module;
  for (Computation& computation : module.computations) {
    const Computation source = std::move(computation);
    computation = FlatWriter(source, departures).Write();
  }
  return module;
}

}  // namespace minka
