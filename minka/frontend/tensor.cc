#include "minka/frontend/tensor.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "minka/base/check.h"
#include "minka/base/status.h"
#include "minka/frontend/contraction.h"

namespace minka {
namespace {

using Dims = std::vector<int64_t>;

// The graph of the operands, null where one is invalid.
Graph* CommonGraph(std::span<const Tensor> operands) {
  for (const Tensor& operand : operands) {
    if (!operand.valid()) return nullptr;
    MINKA_CHECK(&operand.graph() == &operands.front().graph(), "operands of two graphs");
  }
  return operands.empty() ? nullptr : &operands.front().graph();
}

// Records the one instruction that `build` appends.
template <typename Build>
Tensor Emit(std::span<const Tensor> operands, Build build) {
  Graph* graph = CommonGraph(operands);
  return graph ? graph->Record(build(graph->builder()), operands) : Tensor();
}
template <typename Build>
Tensor Emit(std::initializer_list<Tensor> operands, Build build) {
  return Emit(std::span<const Tensor>(operands.begin(), operands.size()), build);
}

template <typename... Args>
Tensor Fail(Graph& graph, fmt::format_string<Args...> format, Args&&... args) {
  return graph.Fail(InvalidArgument(format, std::forward<Args>(args)...));
}

std::vector<Value> Values(std::span<const Tensor> tensors) {
  std::vector<Value> values;
  values.reserve(tensors.size());
  for (const Tensor& tensor : tensors) values.push_back(tensor.value());
  return values;
}

Dims AllDims(int rank) {
  Dims dims(rank);
  std::iota(dims.begin(), dims.end(), 0);
  return dims;
}

// numpy's common dims, or nullopt.
std::optional<Dims> CommonDims(const Dims& x, const Dims& y) {
  const Dims& longer = x.size() >= y.size() ? x : y;
  const Dims& shorter = x.size() >= y.size() ? y : x;
  Dims common = longer;
  const size_t offset = longer.size() - shorter.size();
  for (size_t i = 0; i < shorter.size(); ++i) {
    int64_t& dim = common[offset + i];
    if (dim == shorter[i] || shorter[i] == 1) continue;
    if (dim != 1) return std::nullopt;
    dim = shorter[i];
  }
  return common;
}

// Both operands with their common dims; false after a mistake, which is recorded.
bool BroadcastTogether(std::string_view operation, Tensor& x, Tensor& y) {
  if (!CommonGraph(std::array{x, y})) return false;
  const Shape x_shape = x.shape(), y_shape = y.shape();
  if (x_shape.type != y_shape.type) {
    Fail(x.graph(), "{}: operands {} and {} have different types; convert one", operation,
         ToString(x_shape), ToString(y_shape));
    return false;
  }
  if (x_shape.dims == y_shape.dims) return true;
  const std::optional<Dims> dims = CommonDims(x_shape.dims, y_shape.dims);
  if (!dims) {
    Fail(x.graph(), "{}: shapes {} and {} cannot be broadcast to common dimensions", operation,
         ToString(x_shape), ToString(y_shape));
    return false;
  }
  x = BroadcastTo(x, *dims);
  y = BroadcastTo(y, *dims);
  return x.valid() && y.valid();
}

int NormalisedDim(int dim, int rank) { return dim < 0 ? dim + rank : dim; }

}  // namespace

Shape Tensor::shape() const { return valid() ? graph_->builder().shape(value_) : Shape{}; }

int64_t Tensor::dim(int index) const {
  if (!valid()) return 1;
  const Shape own = shape();
  const int i = NormalisedDim(index, own.rank());
  if (i >= 0 && i < own.rank()) return own.dims[i];
  Fail(*graph_, "dimension {} of {} does not exist", index, ToString(own));
  return 1;
}

Graph::Graph(std::string_view name) : module_(name), entry_(module_.Entry()) {}

Tensor Graph::Parameter(const Shape& shape, std::string_view name) {
  return Record(entry_.Parameter(shape, name), {});
}

Tensor Graph::Constant(Literal literal) { return Record(entry_.Constant(std::move(literal)), {}); }

Tensor Graph::Scalar(ElementType type, double value) {
  auto [it, is_new] = scalars_.try_emplace({type, value});
  if (is_new) it->second = entry_.Scalar(type, value);
  return Record(it->second, {});
}

Tensor Graph::Full(const Shape& shape, double value) {
  const Tensor scalar = Scalar(shape.type, value);
  if (shape.dims.empty() || !scalar.valid()) return scalar;
  auto [it, is_new] = filled_.try_emplace({scalar.value(), shape.dims});
  if (is_new) it->second = entry_.Broadcast(scalar.value(), shape.dims, {});
  return Record(it->second, {});
}

Tensor Graph::Iota(const Shape& shape, int dimension) {
  return Record(entry_.Iota(shape, dimension), {});
}

Tensor Graph::Record(Value value, std::span<const Tensor> operands) {
  if (!status().ok()) return Tensor();
  for (size_t i = 0; i < operands.size(); ++i) {
    if (operands[i].stops_gradient()) {
      stopped_uses_.insert({value.instruction, static_cast<int>(i)});
    }
  }
  return Tensor(this, value);
}

Tensor Graph::Fail(const absl::Status& status) {
  if (status_.ok()) status_ = scope_.empty() ? status : WithContext(status, scope_);
  return Tensor();
}

absl::Status Graph::status() const { return status_.ok() ? module_.status() : status_; }

std::string Graph::SetScope(std::string_view scope) {
  std::string former = std::exchange(scope_, std::string(scope));
  entry_.SetOpName(scope_);
  return former;
}

Tensor Unary(Opcode opcode, Tensor x) {
  return Emit({x}, [&](ComputationBuilder& b) { return b.Unary(opcode, x.value()); });
}

Tensor Binary(Opcode opcode, Tensor x, Tensor y) {
  if (!BroadcastTogether(OpcodeName(opcode), x, y)) return Tensor();
  return Emit({x, y},
              [&](ComputationBuilder& b) { return b.Binary(opcode, x.value(), y.value()); });
}

Tensor Binary(Opcode opcode, Tensor x, double y) {
  return x.valid() ? Binary(opcode, x, x.graph().Full(x.shape(), y)) : Tensor();
}

Tensor operator-(double x, Tensor y) {
  return y.valid() ? y.graph().Full(y.shape(), x) - y : Tensor();
}

Tensor operator/(double x, Tensor y) {
  return y.valid() ? y.graph().Full(y.shape(), x) / y : Tensor();
}

Tensor Compare(Comparison direction, Tensor x, Tensor y) {
  if (!BroadcastTogether("compare", x, y)) return Tensor();
  return Emit({x, y},
              [&](ComputationBuilder& b) { return b.Compare(direction, x.value(), y.value()); });
}

Tensor Compare(Comparison direction, Tensor x, double y) {
  return x.valid() ? Compare(direction, x, x.graph().Full(x.shape(), y)) : Tensor();
}

Tensor Where(Tensor predicate, Tensor on_true, Tensor on_false) {
  if (!predicate.valid() || !BroadcastTogether("select", on_true, on_false)) return Tensor();
  const Dims dims = on_true.dims();
  if (predicate.dims() != dims) predicate = BroadcastTo(predicate, dims);
  return Emit({predicate, on_true, on_false}, [&](ComputationBuilder& b) {
    return b.Select(predicate.value(), on_true.value(), on_false.value());
  });
}

Tensor Where(Tensor predicate, Tensor on_true, double on_false) {
  if (!on_true.valid()) return Tensor();
  return Where(predicate, on_true, on_true.graph().Full(on_true.shape(), on_false));
}

Tensor Clamp(Tensor low, Tensor x, Tensor high) {
  return Emit({low, x, high},
              [&](ComputationBuilder& b) { return b.Clamp(low.value(), x.value(), high.value()); });
}

Tensor Convert(Tensor x, ElementType type) {
  if (x.type() == type) return x;
  return Emit({x}, [&](ComputationBuilder& b) { return b.Convert(x.value(), type); });
}

Tensor StopGradient(Tensor x) {
  x.stops_gradient_ = true;
  return x;
}

Tensor BroadcastTo(Tensor x, Dims dims) {
  if (!x.valid()) return x;
  const Shape from = x.shape();
  if (from.dims == dims) return x;
  const size_t offset = dims.size() - from.dims.size();
  Dims kept, positions;
  for (size_t i = 0; i < from.dims.size() && from.dims.size() <= dims.size(); ++i) {
    const int64_t wanted = dims[offset + i];
    if (from.dims[i] == 1 && wanted != 1) continue;
    if (from.dims[i] != wanted) break;
    kept.push_back(wanted);
    positions.push_back(static_cast<int64_t>(offset + i));
  }
  if (CommonDims(from.dims, dims) != dims) {
    return Fail(x.graph(), "broadcast: {} does not broadcast to {}", ToString(from),
                ToString({from.type, dims}));
  }
  return Broadcast(Reshape(x, kept), std::move(dims), std::move(positions));
}

Tensor Broadcast(Tensor x, Dims dims, Dims dimensions) {
  return Emit({x}, [&](ComputationBuilder& b) { return b.Broadcast(x.value(), dims, dimensions); });
}

Tensor Reshape(Tensor x, Dims dims) {
  if (!x.valid() || x.dims() == dims) return x;
  return Emit({x}, [&](ComputationBuilder& b) { return b.Reshape(x.value(), dims); });
}

Tensor Transpose(Tensor x, Dims permutation) {
  if (!x.valid() || permutation == AllDims(x.rank())) return x;
  return Emit({x}, [&](ComputationBuilder& b) { return b.Transpose(x.value(), permutation); });
}

Tensor Slice(Tensor x, Dims starts, Dims limits, Dims strides) {
  if (strides.empty()) strides.assign(starts.size(), 1);
  return Emit({x}, [&](ComputationBuilder& b) {
    return b.Slice(x.value(), {.starts = starts, .limits = limits, .strides = strides});
  });
}

Tensor Concatenate(std::span<const Tensor> operands, int dimension) {
  return Emit(operands, [&](ComputationBuilder& b) {
    return b.Concatenate(Values(operands), NormalisedDim(dimension, operands.front().rank()));
  });
}

Tensor Pad(Tensor x, Tensor value, PadAttributes attributes) {
  return Emit({x, value}, [&](ComputationBuilder& b) {
    return b.Pad(x.value(), value.value(), std::move(attributes));
  });
}

Tensor Reduce(Opcode reducer, Tensor x, double init, Dims dims) {
  if (!x.valid() || dims.empty()) return x;
  for (int64_t& dim : dims) dim = NormalisedDim(static_cast<int>(dim), x.rank());
  std::sort(dims.begin(), dims.end());
  const Tensor start = x.graph().Scalar(x.type(), init);
  return Emit({x, start}, [&](ComputationBuilder& b) {
    return b.Reduce(x.value(), start.value(), dims, reducer);
  });
}

Tensor Sum(Tensor x, Dims dims) { return Reduce(Opcode::kAdd, x, 0, std::move(dims)); }
Tensor Sum(Tensor x) { return Sum(x, AllDims(x.rank())); }

Tensor Mean(Tensor x, Dims dims) {
  int64_t count = 1;
  for (int64_t dim : dims) count *= x.dim(static_cast<int>(dim));
  return Sum(x, std::move(dims)) * (1.0 / static_cast<double>(count));
}
Tensor Mean(Tensor x) { return Mean(x, AllDims(x.rank())); }

Tensor ReduceMax(Tensor x, Dims dims) {
  const double lowest = IsFloat(x.type()) ? -std::numeric_limits<double>::infinity()
                        : IsSigned(x.type())
                            ? -std::ldexp(1.0, static_cast<int>(ElementBits(x.type())) - 1)
                            : 0.0;
  return Reduce(Opcode::kMaximum, x, lowest, std::move(dims));
}

Tensor Einsum(std::string_view equation, Tensor x, Tensor y) {
  if (!CommonGraph(std::array{x, y})) return Tensor();
  Graph& graph = x.graph();
  const size_t comma = equation.find(','), arrow = equation.find("->");
  if (comma == equation.npos || arrow == equation.npos || comma > arrow) {
    return Fail(graph, "einsum: \"{}\" is not of the form \"ab,bc->ac\"", equation);
  }
  const std::string_view x_labels = equation.substr(0, comma);
  const std::string_view y_labels = equation.substr(comma + 1, arrow - comma - 1);
  const std::string_view result = equation.substr(arrow + 2);
  if (static_cast<int>(x_labels.size()) != x.rank() ||
      static_cast<int>(y_labels.size()) != y.rank() || x.type() != y.type()) {
    return Fail(graph, "einsum: \"{}\" does not fit operands {} and {}", equation,
                ToString(x.shape()), ToString(y.shape()));
  }
  for (char label : fmt::format("{}{}{}", x_labels, y_labels, result)) {
    const auto times = [label](std::string_view labels) {
      return std::ranges::count(labels, label);
    };
    const int64_t count = times(x_labels) + times(y_labels) + times(result);
    if (count < 2 || times(x_labels) > 1 || times(y_labels) > 1 || times(result) > 1) {
      return Fail(graph, "einsum: label {} of \"{}\" must be in two tensors, once in each", label,
                  equation);
    }
    const size_t in_x = x_labels.find(label), in_y = y_labels.find(label);
    if (in_x != equation.npos && in_y != equation.npos &&
        x.dim(static_cast<int>(in_x)) != y.dim(static_cast<int>(in_y))) {
      return Fail(graph, "einsum: label {} of \"{}\" has two sizes in {} and {}", label, equation,
                  ToString(x.shape()), ToString(y.shape()));
    }
  }
  // Contract may swap operands, which stopped_uses() counts by position.
  if (x.stops_gradient()) x = Unary(Opcode::kCopy, x);
  if (y.stops_gradient()) y = Unary(Opcode::kCopy, y);
  return graph.Record(Contract(graph.builder(), x.value(), x_labels, y.value(), y_labels, result,
                               ElementType::kInvalid),
                      {});
}

Tensor MatMul(Tensor x, Tensor y) {
  if (!CommonGraph(std::array{x, y})) return Tensor();
  const int num_batch = y.rank() - 2;
  if (num_batch < 0 || x.rank() < num_batch + 1 || (num_batch > 0 && x.rank() != y.rank())) {
    return Fail(x.graph(), "matmul: {} times {}", ToString(x.shape()), ToString(y.shape()));
  }
  DotAttributes attributes;
  for (int i = 0; i < num_batch; ++i) {
    attributes.lhs_batch.push_back(i);
    attributes.rhs_batch.push_back(i);
  }
  attributes.lhs_contracting = {x.rank() - 1};
  attributes.rhs_contracting = {num_batch};
  return Dot(x, y, std::move(attributes));
}

Tensor Dot(Tensor x, Tensor y, DotAttributes attributes) {
  return Emit({x, y}, [&](ComputationBuilder& b) {
    return b.Dot(x.value(), y.value(), std::move(attributes));
  });
}

Tensor Take(Tensor table, Tensor indices) {
  if (!CommonGraph(std::array{table, indices})) return Tensor();
  const int num_indices = indices.rank();
  GatherAttributes attributes;
  attributes.collapsed_slice_dims = {0};
  attributes.start_index_map = {0};
  attributes.index_vector_dim = num_indices;
  attributes.slice_sizes = table.dims();
  if (!attributes.slice_sizes.empty()) attributes.slice_sizes[0] = 1;
  for (int i = 1; i < table.rank(); ++i) attributes.offset_dims.push_back(num_indices + i - 1);
  return Gather(table, indices, std::move(attributes));
}

Tensor Gather(Tensor x, Tensor indices, GatherAttributes attributes) {
  return Emit({x, indices}, [&](ComputationBuilder& b) {
    return b.Gather(x.value(), indices.value(), std::move(attributes));
  });
}

Tensor Scatter(Tensor x, Tensor indices, Tensor updates, ScatterAttributes attributes,
               Opcode combiner) {
  return Emit({x, indices, updates}, [&](ComputationBuilder& b) {
    return b.Scatter(x.value(), indices.value(), updates.value(), std::move(attributes), combiner);
  });
}

Tensor DynamicSlice(Tensor x, std::span<const Tensor> starts, Dims sizes) {
  std::vector<Tensor> operands = {x};
  operands.insert(operands.end(), starts.begin(), starts.end());
  return Emit(operands, [&](ComputationBuilder& b) {
    return b.DynamicSlice(x.value(), Values(starts), std::move(sizes));
  });
}

Tensor DynamicUpdateSlice(Tensor x, Tensor update, std::span<const Tensor> starts) {
  std::vector<Tensor> operands = {x, update};
  operands.insert(operands.end(), starts.begin(), starts.end());
  return Emit(operands, [&](ComputationBuilder& b) {
    return b.DynamicUpdateSlice(x.value(), update.value(), Values(starts));
  });
}

Tensor OneHot(Tensor indices, int64_t depth, ElementType type) {
  if (!indices.valid()) return indices;
  Shape shape = indices.shape();
  const Dims positions = AllDims(shape.rank());
  shape.dims.push_back(depth);
  const Tensor classes = indices.graph().Iota(shape, shape.rank() - 1);
  return Convert(Compare(Comparison::kEq, classes, Broadcast(indices, shape.dims, positions)),
                 type);
}

std::vector<Tensor> OptBarrier(std::span<const Tensor> operands) {
  Graph* graph = CommonGraph(operands);
  std::vector<Tensor> results(operands.size());
  if (!graph) return results;
  const std::vector<Value> values = graph->builder().OptBarrier(Values(operands));
  for (size_t i = 0; i < values.size(); ++i) {
    results[i] = graph->Record(values[i], i == 0 ? operands : std::span<const Tensor>());
  }
  return results;
}

}  // namespace minka
