#include <algorithm>
#include <numeric>

#include "minka/base/status.h"
#include "minka/frontend/contraction.h"
#include "minka/frontend/gradient_rules.h"

namespace minka {
namespace {

using Dims = std::vector<int64_t>;

Tensor Zeros(const Adjoint& a, int operand) { return a.graph->Full(a.operand_shape(operand), 0); }

std::vector<Tensor> Starts(const Adjoint& a, size_t first) {
  std::vector<Tensor> starts;
  for (size_t i = first; i < a.instruction.operands.size(); ++i) {
    starts.push_back(a.x(static_cast<int>(i)));
  }
  return starts;
}

// The dims of a tensor of `rank` that are not in `dims`, ascending.
Dims OtherDims(int rank, const Dims& dims) {
  Dims others;
  for (int64_t i = 0; i < rank; ++i) {
    if (std::ranges::find(dims, i) == dims.end()) others.push_back(i);
  }
  return others;
}

// x spread over the dims of operand 0 that `reduced` dropped.
Tensor Unreduce(const Adjoint& a, Tensor x, const Dims& reduced) {
  const Shape shape = a.operand_shape(0);
  return Broadcast(x, shape.dims, OtherDims(shape.rank(), reduced));
}

// The labels of a dot's operands and result, one character per dimension.
struct DotLabels {
  std::string lhs, rhs, result;
};

DotLabels LabelsOf(const DotAttributes& dot, int lhs_rank, int rhs_rank) {
  DotLabels labels{std::string(lhs_rank, '\0'), std::string(rhs_rank, '\0'), ""};
  char next = 1;
  for (size_t i = 0; i < dot.lhs_batch.size(); ++i, ++next) {
    labels.lhs[dot.lhs_batch[i]] = labels.rhs[dot.rhs_batch[i]] = next;
    labels.result += next;
  }
  for (size_t i = 0; i < dot.lhs_contracting.size(); ++i, ++next) {
    labels.lhs[dot.lhs_contracting[i]] = labels.rhs[dot.rhs_contracting[i]] = next;
  }
  for (std::string* operand : {&labels.lhs, &labels.rhs}) {
    for (char& label : *operand) {
      if (label != 0) continue;
      label = next++;
      labels.result += label;
    }
  }
  return labels;
}

GatherAttributes GatherOfScatter(const ScatterAttributes& scatter, const Shape& operand,
                                 const Shape& updates) {
  GatherAttributes gather;
  gather.offset_dims = scatter.update_window_dims;
  gather.collapsed_slice_dims = scatter.inserted_window_dims;
  gather.start_index_map = scatter.scatter_dims_to_operand_dims;
  gather.operand_batching_dims = scatter.input_batching_dims;
  gather.start_indices_batching_dims = scatter.scatter_indices_batching_dims;
  gather.index_vector_dim = scatter.index_vector_dim;
  gather.indices_are_sorted = scatter.indices_are_sorted;
  size_t next_window = 0;
  for (int64_t i = 0; i < operand.rank(); ++i) {
    const bool is_window = std::ranges::count(scatter.inserted_window_dims, i) == 0 &&
                           std::ranges::count(scatter.input_batching_dims, i) == 0;
    gather.slice_sizes.push_back(is_window ? updates.dims[scatter.update_window_dims[next_window++]]
                                           : 1);
  }
  return gather;
}

ScatterAttributes ScatterOfGather(const GatherAttributes& gather) {
  ScatterAttributes scatter;
  scatter.update_window_dims = gather.offset_dims;
  scatter.inserted_window_dims = gather.collapsed_slice_dims;
  scatter.scatter_dims_to_operand_dims = gather.start_index_map;
  scatter.input_batching_dims = gather.operand_batching_dims;
  scatter.scatter_indices_batching_dims = gather.start_indices_batching_dims;
  scatter.index_vector_dim = gather.index_vector_dim;
  scatter.indices_are_sorted = gather.indices_are_sorted;
  return scatter;
}

}  // namespace

absl::Status BroadcastGradient(Adjoint& a) {
  const Dims& positions = a.instruction.As<DimensionsAttributes>().dims;
  const Dims summed = OtherDims(a.g().rank(), positions);
  const ElementType type = a.g().type();
  // A bias sums over the whole batch: in 16 bits small terms would be lost.
  const bool widen = IsFloat(type) && ElementBytes(type) < 4 && !summed.empty();
  const Tensor sum = Convert(Sum(widen ? Convert(a.g(), ElementType::kF32) : a.g(), summed), type);
  Dims permutation;
  for (int64_t position : positions) {
    permutation.push_back(
        std::ranges::count_if(positions, [&](int64_t other) { return other < position; }));
  }
  a.gradients[0] = Transpose(sum, permutation);
  return absl::OkStatus();
}

absl::Status ConcatenateGradient(Adjoint& a) {
  const int64_t dim = a.instruction.As<DimensionsAttributes>().dims.front();
  Dims starts(a.g().rank(), 0), limits = a.g().dims();
  for (size_t i = 0; i < a.gradients.size(); ++i) {
    limits[dim] = starts[dim] + a.operand_shapes[i].dims[dim];
    if (a.wanted[i]) a.gradients[i] = Slice(a.g(), starts, limits);
    starts[dim] = limits[dim];
  }
  return absl::OkStatus();
}

absl::Status DotGradient(Adjoint& a) {
  const Shape lhs = a.operand_shape(0), rhs = a.operand_shape(1);
  const DotLabels labels = LabelsOf(a.instruction.As<DotAttributes>(), lhs.rank(), rhs.rank());
  const Tensor g = Convert(a.g(), lhs.type);
  const auto contract = [&](Tensor x, const std::string& x_labels, Tensor y,
                            const std::string& y_labels, const std::string& result) {
    return a.graph->Record(Contract(a.graph->builder(), x.value(), x_labels, y.value(), y_labels,
                                    result, ElementType::kInvalid),
                           {});
  };
  if (a.wanted[0]) {
    a.gradients[0] = contract(g, labels.result, Convert(a.x(1), lhs.type), labels.rhs, labels.lhs);
  }
  if (a.wanted[1]) {
    a.gradients[1] = Convert(
        contract(Convert(a.x(0), lhs.type), labels.lhs, g, labels.result, labels.rhs), rhs.type);
  }
  return absl::OkStatus();
}

absl::Status DynamicSliceGradient(Adjoint& a) {
  a.gradients[0] = DynamicUpdateSlice(Zeros(a, 0), a.g(), Starts(a, 1));
  return absl::OkStatus();
}

absl::Status DynamicUpdateSliceGradient(Adjoint& a) {
  const std::vector<Tensor> starts = Starts(a, 2);
  if (a.wanted[0]) a.gradients[0] = DynamicUpdateSlice(a.g(), Zeros(a, 1), starts);
  if (a.wanted[1]) a.gradients[1] = DynamicSlice(a.g(), starts, a.operand_shape(1).dims);
  return absl::OkStatus();
}

absl::Status GatherGradient(Adjoint& a) {
  a.gradients[0] = Scatter(Zeros(a, 0), a.x(1), a.g(),
                           ScatterOfGather(a.instruction.As<GatherAttributes>()), Opcode::kAdd);
  return absl::OkStatus();
}

absl::Status ScatterGradient(Adjoint& a) {
  const auto& attributes = a.instruction.As<ScatterAttributes>();
  if (a.instruction.operands.size() != 3 || a.called_opcode() != Opcode::kAdd) {
    return Unimplemented("only a scatter of one operand that adds has a gradient rule");
  }
  a.gradients[0] = a.g();
  if (a.wanted[2]) {
    a.gradients[2] =
        Gather(a.g(), a.x(1), GatherOfScatter(attributes, a.operand_shape(0), a.operand_shape(2)));
  }
  return absl::OkStatus();
}

absl::Status SliceGradient(Adjoint& a) {
  const auto& slice = a.instruction.As<SliceAttributes>();
  const Shape shape = a.operand_shape(0);
  PadAttributes pad{.low = slice.starts, .high = {}, .interior = {}};
  for (int i = 0; i < shape.rank(); ++i) {
    const int64_t size = a.g().dim(i), stride = slice.strides[i];
    const int64_t last = size == 0 ? slice.starts[i] : slice.starts[i] + (size - 1) * stride + 1;
    pad.interior.push_back(stride - 1);
    pad.high.push_back(shape.dims[i] - last);
  }
  a.gradients[0] = Pad(a.g(), a.graph->Scalar(shape.type, 0), pad);
  return absl::OkStatus();
}

absl::Status PadGradient(Adjoint& a) {
  const auto& pad = a.instruction.As<PadAttributes>();
  const Shape shape = a.operand_shape(0);
  PadAttributes crop{.low = {}, .high = {}, .interior = Dims(shape.rank(), 0)};
  Dims limits, strides;
  for (int i = 0; i < shape.rank(); ++i) {
    crop.low.push_back(-pad.low[i]);
    crop.high.push_back(-pad.high[i]);
    strides.push_back(pad.interior[i] + 1);
    limits.push_back(shape.dims[i] == 0 ? 0 : (shape.dims[i] - 1) * strides[i] + 1);
  }
  const Tensor zero = a.graph->Scalar(shape.type, 0);
  const bool crops = std::ranges::any_of(crop.low, [](int64_t n) { return n != 0; }) ||
                     std::ranges::any_of(crop.high, [](int64_t n) { return n != 0; });
  Tensor inner = crops ? Pad(a.g(), zero, crop) : a.g();
  if (inner.dims() != shape.dims) inner = Slice(inner, Dims(shape.rank(), 0), limits, strides);
  a.gradients[0] = inner;
  if (a.wanted[1]) a.gradients[1] = Sum(a.g()) - Sum(inner);
  return absl::OkStatus();
}

absl::Status ReduceGradient(Adjoint& a) {
  const Dims& dims = a.instruction.As<DimensionsAttributes>().dims;
  const Opcode reducer = a.called_opcode();
  if (a.instruction.operands.size() != 2) {
    return Unimplemented("a reduce of several arrays has no gradient rule");
  }
  if (reducer == Opcode::kAdd) {
    if (a.wanted[0]) a.gradients[0] = Unreduce(a, a.g(), dims);
    if (a.wanted[1]) a.gradients[1] = Sum(a.g());
    return absl::OkStatus();
  }
  if (reducer != Opcode::kMaximum && reducer != Opcode::kMinimum) {
    return Unimplemented("a reduce by \"{}\" has no gradient rule; add, maximum and minimum have",
                         OpcodeName(reducer));
  }
  if (a.wanted[1]) return Unimplemented("the start value of a maximum has no gradient rule");
  const Tensor chosen = Compare(Comparison::kEq, a.x(0), Unreduce(a, a.y(), dims));
  const Tensor ties = Sum(Convert(chosen, a.g().type()), dims);
  a.gradients[0] = Where(chosen, Unreduce(a, a.g() / ties, dims), 0.0);
  return absl::OkStatus();
}

absl::Status TransposeGradient(Adjoint& a) {
  const Dims& permutation = a.instruction.As<DimensionsAttributes>().dims;
  Dims inverse(permutation.size());
  for (size_t i = 0; i < permutation.size(); ++i) {
    inverse[permutation[i]] = static_cast<int64_t>(i);
  }
  a.gradients[0] = Transpose(a.g(), inverse);
  return absl::OkStatus();
}

}  // namespace minka
