#include <algorithm>

#include "minka/ir/shape_inference_rules.h"
#include "minka/ir/window.h"

namespace minka {
namespace {

bool Contains(std::span<const int64_t> dims, int64_t dim) {
  return std::find(dims.begin(), dims.end(), dim) != dims.end();
}

template <typename T>
absl::Status CheckOnePerDimension(const ShapeContext& context, const std::vector<T>& list, int rank,
                                  std::string_view what) {
  if (static_cast<int>(list.size()) == rank) return absl::OkStatus();
  return DoesNotFit(context, "{} {} for rank {}", list.size(), what, rank);
}

// Operands `first`.. are one integer scalar per dimension.
absl::Status CheckStartIndices(const ShapeContext& context, int first, int rank) {
  RETURN_IF_ERROR(CheckNumOperands(context, first + rank));
  for (int i = first; i < context.num_operands(); ++i) {
    const Shape& index = context.operand(i);
    if (index.rank() != 0 || !IsInteger(index.type)) {
      return DoesNotFit(context, "start index {} is {}, not an integer scalar", i - first,
                        ToString(index));
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::optional<std::vector<int64_t>> BitcastDims(const Shape& shape, ElementType type) {
  const int64_t from = ElementBits(shape.type);
  const int64_t to = ElementBits(type);
  if (from == 0 || to == 0) return std::nullopt;
  std::vector<int64_t> dims = shape.dims;
  if (from > to && from % to == 0) {
    dims.push_back(from / to);
  } else if (from < to) {
    if (dims.empty() || to % from != 0 || dims.back() != to / from) return std::nullopt;
    dims.pop_back();
  } else if (from != to) {
    return std::nullopt;
  }
  return dims;
}

InferredShapes InferBitcastConvert(const ShapeContext& context) {
  RETURN_IF_ERROR(CheckNumOperands(context, 1));
  ASSIGN_OR_RETURN(const Shape declared, DeclaredResult(context));
  const auto dims = BitcastDims(context.operand(0), declared.type);
  if (!dims) {
    return DoesNotFit(context, "the bits of {} do not make {}", ToString(context.operand(0)),
                      ToString(declared));
  }
  return std::vector<Shape>{{declared.type, *dims}};
}

InferredShapes InferBroadcast(const ShapeContext& context) {
  RETURN_IF_ERROR(CheckNumOperands(context, 1));
  ASSIGN_OR_RETURN(const Shape declared, DeclaredResult(context));
  const Shape& x = context.operand(0);
  const std::vector<int64_t>& dims = context.instruction.As<DimensionsAttributes>().dims;
  RETURN_IF_ERROR(CheckOnePerDimension(context, dims, x.rank(), "dimensions"));
  RETURN_IF_ERROR(CheckDimensions(context, dims, declared.rank(), "dimensions"));
  for (int i = 0; i < x.rank(); ++i) {
    if (declared.dims[dims[i]] != x.dims[i]) {
      return DoesNotFit(context, "dimension {} of operand {} goes to dimension {} of {}", i,
                        ToString(x), dims[i], ToString(declared));
    }
  }
  return std::vector<Shape>{{x.type, declared.dims}};
}

InferredShapes InferConcatenate(const ShapeContext& context) {
  if (context.num_operands() == 0) return DoesNotFit(context, "has no operands");
  Shape result = context.operand(0);
  const std::vector<int64_t>& dims = context.instruction.As<DimensionsAttributes>().dims;
  if (dims.size() != 1) return DoesNotFit(context, "{} dimensions, needs one", dims.size());
  RETURN_IF_ERROR(CheckDimensions(context, dims, result.rank(), "dimension"));
  int64_t total = 0;
  for (const Shape& operand : context.operands) {
    result.dims[dims[0]] =
        operand.rank() == result.rank() ? operand.dims[dims[0]] : result.dims[dims[0]];
    if (operand != result) {
      return DoesNotFit(context, "operands {} and {} differ outside dimension {}",
                        ToString(context.operand(0)), ToString(operand), dims[0]);
    }
    total += operand.dims[dims[0]];
  }
  result.dims[dims[0]] = total;
  return std::vector<Shape>{std::move(result)};
}

InferredShapes InferConstant(const ShapeContext& context) {
  RETURN_IF_ERROR(CheckNumOperands(context, 0));
  const Literal& literal = context.instruction.As<ConstantAttributes>().literal;
  const auto num_bytes = literal.bytes ? static_cast<int64_t>(literal.bytes->size()) : 0;
  if (num_bytes != literal.shape.num_bytes()) {
    return DoesNotFit(context, "literal {} has {} bytes, needs {}", ToString(literal.shape),
                      num_bytes, literal.shape.num_bytes());
  }
  return std::vector<Shape>{literal.shape};
}

InferredShapes InferDynamicSlice(const ShapeContext& context) {
  if (context.num_operands() == 0) return DoesNotFit(context, "has no operands");
  const Shape& x = context.operand(0);
  const std::vector<int64_t>& sizes = context.instruction.As<DynamicSliceAttributes>().sizes;
  RETURN_IF_ERROR(CheckStartIndices(context, 1, x.rank()));
  RETURN_IF_ERROR(CheckOnePerDimension(context, sizes, x.rank(), "sizes"));
  for (int i = 0; i < x.rank(); ++i) {
    if (sizes[i] < 0 || sizes[i] > x.dims[i]) {
      return DoesNotFit(context, "size {} of dimension {} exceeds {}", sizes[i], i, ToString(x));
    }
  }
  return std::vector<Shape>{{x.type, sizes}};
}

InferredShapes InferDynamicUpdateSlice(const ShapeContext& context) {
  if (context.num_operands() < 2) {
    return DoesNotFit(context, "has {} operands, needs two and the start indices",
                      context.num_operands());
  }
  const Shape& x = context.operand(0);
  const Shape& update = context.operand(1);
  RETURN_IF_ERROR(CheckStartIndices(context, 2, x.rank()));
  bool fits = update.type == x.type && update.rank() == x.rank();
  for (int i = 0; fits && i < x.rank(); ++i) fits = update.dims[i] <= x.dims[i];
  if (!fits) {
    return DoesNotFit(context, "update {} does not fit into {}", ToString(update), ToString(x));
  }
  return std::vector<Shape>{x};
}

InferredShapes InferIota(const ShapeContext& context) {
  RETURN_IF_ERROR(CheckNumOperands(context, 0));
  ASSIGN_OR_RETURN(Shape declared, DeclaredResult(context));
  const std::vector<int64_t>& dims = context.instruction.As<DimensionsAttributes>().dims;
  if (dims.size() != 1) return DoesNotFit(context, "{} dimensions, needs one", dims.size());
  RETURN_IF_ERROR(CheckDimensions(context, dims, declared.rank(), "dimension"));
  return std::vector<Shape>{std::move(declared)};
}

InferredShapes InferPad(const ShapeContext& context) {
  RETURN_IF_ERROR(CheckNumOperands(context, 2));
  const Shape& padding = context.operand(1);
  const auto& attributes = context.instruction.As<PadAttributes>();
  Shape result = context.operand(0);
  if (padding.rank() != 0 || padding.type != result.type) {
    return DoesNotFit(context, "padding value {} is not a scalar of {}", ToString(padding),
                      ToString(result));
  }
  RETURN_IF_ERROR(CheckOnePerDimension(context, attributes.low, result.rank(), "low paddings"));
  RETURN_IF_ERROR(CheckOnePerDimension(context, attributes.high, result.rank(), "high paddings"));
  RETURN_IF_ERROR(
      CheckOnePerDimension(context, attributes.interior, result.rank(), "interior paddings"));
  for (int i = 0; i < result.rank(); ++i) {
    // The positions of a window of one element. Interiors that would overflow are refused, too.
    const std::optional<int64_t> padded =
        attributes.interior[i] < 0 || attributes.interior[i] == INT64_MAX
            ? std::nullopt
            : NumWindowPositions(result.dims[i], {.padding_low = attributes.low[i],
                                                  .padding_high = attributes.high[i],
                                                  .base_dilation = attributes.interior[i] + 1});
    if (!padded) {
      return DoesNotFit(context, "dimension {} of {} padded by {}, {} and {} inside", i,
                        ToString(context.operand(0)), attributes.low[i], attributes.high[i],
                        attributes.interior[i]);
    }
    result.dims[i] = *padded;
  }
  return std::vector<Shape>{std::move(result)};
}

InferredShapes InferReshape(const ShapeContext& context) {
  RETURN_IF_ERROR(CheckNumOperands(context, 1));
  ASSIGN_OR_RETURN(const Shape declared, DeclaredResult(context));
  const Shape& x = context.operand(0);
  if (x.num_elements() != declared.num_elements()) {
    return DoesNotFit(context, "{} has {} elements, {} has {}", ToString(x), x.num_elements(),
                      ToString(declared), declared.num_elements());
  }
  return std::vector<Shape>{{x.type, declared.dims}};
}

InferredShapes InferReverse(const ShapeContext& context) {
  RETURN_IF_ERROR(CheckNumOperands(context, 1));
  const Shape& x = context.operand(0);
  RETURN_IF_ERROR(CheckDimensions(context, context.instruction.As<DimensionsAttributes>().dims,
                                  x.rank(), "dimensions"));
  return std::vector<Shape>{x};
}

InferredShapes InferRng(const ShapeContext& context) {
  const std::vector<Shape>& declared = context.instruction.results;
  if (context.instruction.opcode == Opcode::kRng) {
    RETURN_IF_ERROR(CheckNumOperands(context, 2));
    ASSIGN_OR_RETURN(Shape shape, DeclaredResult(context));
    return std::vector<Shape>{std::move(shape)};
  }
  RETURN_IF_ERROR(CheckNumOperands(context, 1));
  if (declared.size() != 2) {
    return DoesNotFit(context, "declares {} results, needs state and bits", declared.size());
  }
  return std::vector<Shape>{context.operand(0), declared[1]};
}

InferredShapes InferSlice(const ShapeContext& context) {
  RETURN_IF_ERROR(CheckNumOperands(context, 1));
  Shape result = context.operand(0);
  const auto& [starts, limits, strides] = context.instruction.As<SliceAttributes>();
  RETURN_IF_ERROR(CheckOnePerDimension(context, starts, result.rank(), "starts"));
  RETURN_IF_ERROR(CheckOnePerDimension(context, limits, result.rank(), "limits"));
  RETURN_IF_ERROR(CheckOnePerDimension(context, strides, result.rank(), "strides"));
  for (int i = 0; i < result.rank(); ++i) {
    if (starts[i] < 0 || limits[i] < starts[i] || limits[i] > result.dims[i] || strides[i] < 1) {
      return DoesNotFit(context, "[{}:{}:{}] does not slice dimension {} of {}", starts[i],
                        limits[i], strides[i], i, ToString(context.operand(0)));
    }
    result.dims[i] = (limits[i] - starts[i] + strides[i] - 1) / strides[i];
  }
  return std::vector<Shape>{std::move(result)};
}

InferredShapes InferTranspose(const ShapeContext& context) {
  RETURN_IF_ERROR(CheckNumOperands(context, 1));
  const Shape& x = context.operand(0);
  const std::vector<int64_t>& permutation = context.instruction.As<DimensionsAttributes>().dims;
  RETURN_IF_ERROR(CheckOnePerDimension(context, permutation, x.rank(), "dimensions"));
  RETURN_IF_ERROR(CheckDimensions(context, permutation, x.rank(), "permutation"));
  Shape result = {x.type, {}};
  for (const int64_t dim : permutation) result.dims.push_back(x.dims[dim]);
  return std::vector<Shape>{std::move(result)};
}

namespace {

// What gather and scatter have in common: how index vectors address the table.
struct Indexing {
  std::span<const int64_t> window_dims;       // of the gathered or updating array
  std::span<const int64_t> collapsed_dims;    // of the table: no dimension in the window
  std::span<const int64_t> index_map;         // table dimension of each index component
  std::span<const int64_t> table_batching;    // table dims that run along with ...
  std::span<const int64_t> indices_batching;  // ... these dims of the indices
  int64_t index_vector_dim;
};

absl::Status CheckIndexVector(const ShapeContext& context, const Shape& indices,
                              const Indexing& indexing) {
  const int64_t vector_dim = indexing.index_vector_dim;
  if (!IsInteger(indices.type)) {
    return DoesNotFit(context, "indices {} are not integers", ToString(indices));
  }
  if (vector_dim < 0 || vector_dim > indices.rank()) {
    return DoesNotFit(context, "index_vector_dim {} for indices {}", vector_dim, ToString(indices));
  }
  const int64_t components = vector_dim == indices.rank() ? 1 : indices.dims[vector_dim];
  if (components != static_cast<int64_t>(indexing.index_map.size())) {
    return DoesNotFit(context, "index vectors of {} have {} components, {} table dimensions given",
                      ToString(indices), components, indexing.index_map.size());
  }
  return absl::OkStatus();
}

absl::Status CheckIndexing(const ShapeContext& context, const Shape& table, const Shape& indices,
                           const Indexing& indexing) {
  RETURN_IF_ERROR(CheckIndexVector(context, indices, indexing));
  RETURN_IF_ERROR(CheckDimensions(context, indexing.index_map, table.rank(), "indexed dimensions"));
  RETURN_IF_ERROR(CheckSortedDimensions(context, indexing.collapsed_dims, table.rank(),
                                        "collapsed dimensions"));
  RETURN_IF_ERROR(CheckSortedDimensions(context, indexing.table_batching, table.rank(),
                                        "batching dimensions of the table"));
  RETURN_IF_ERROR(CheckDimensions(context, indexing.indices_batching, indices.rank(),
                                  "batching dimensions of the indices"));
  if (indexing.table_batching.size() != indexing.indices_batching.size()) {
    return DoesNotFit(context, "{} batching dimensions of the table, {} of the indices",
                      indexing.table_batching.size(), indexing.indices_batching.size());
  }
  for (size_t i = 0; i < indexing.table_batching.size(); ++i) {
    const int64_t in_table = indexing.table_batching[i];
    const int64_t in_indices = indexing.indices_batching[i];
    if (in_indices == indexing.index_vector_dim || Contains(indexing.collapsed_dims, in_table) ||
        Contains(indexing.index_map, in_table)) {
      return DoesNotFit(context,
                        "batching dimension {} of the table, {} of the indices, is also "
                        "indexed or collapsed",
                        in_table, in_indices);
    }
    if (table.dims[in_table] != indices.dims[in_indices]) {
      return DoesNotFit(context, "batching dimension {} of {} and {} of {} differ", in_table,
                        ToString(table), in_indices, ToString(indices));
    }
  }
  const size_t window_rank =
      table.rank() - indexing.collapsed_dims.size() - indexing.table_batching.size();
  if (indexing.window_dims.size() != window_rank) {
    return DoesNotFit(context,
                      "{} window dimensions for table {} with {} collapsed and {} batching",
                      indexing.window_dims.size(), ToString(table), indexing.collapsed_dims.size(),
                      indexing.table_batching.size());
  }
  return absl::OkStatus();
}

// The indices' dims without the index vector: what gather and scatter run over.
std::vector<int64_t> BatchDims(const Shape& indices, int64_t index_vector_dim) {
  std::vector<int64_t> dims = indices.dims;
  if (index_vector_dim < indices.rank()) dims.erase(dims.begin() + index_vector_dim);
  return dims;
}

// Batch and window dims in one array: window dims lie at `window_positions`, batch dims fill up.
std::vector<int64_t> Interleave(std::span<const int64_t> batch, std::span<const int64_t> window,
                                std::span<const int64_t> window_positions) {
  std::vector<int64_t> dims;
  size_t next_batch = 0;
  size_t next_window = 0;
  for (size_t i = 0; i < batch.size() + window.size(); ++i) {
    const bool in_window = Contains(window_positions, static_cast<int64_t>(i));
    dims.push_back(in_window ? window[next_window++] : batch[next_batch++]);
  }
  return dims;
}

}  // namespace

InferredShapes InferGather(const ShapeContext& context) {
  RETURN_IF_ERROR(CheckNumOperands(context, 2));
  const Shape& table = context.operand(0);
  const Shape& indices = context.operand(1);
  const auto& a = context.instruction.As<GatherAttributes>();
  RETURN_IF_ERROR(
      CheckIndexing(context, table, indices,
                    {a.offset_dims, a.collapsed_slice_dims, a.start_index_map,
                     a.operand_batching_dims, a.start_indices_batching_dims, a.index_vector_dim}));
  RETURN_IF_ERROR(CheckOnePerDimension(context, a.slice_sizes, table.rank(), "slice sizes"));
  std::vector<int64_t> window;
  for (int i = 0; i < table.rank(); ++i) {
    const bool in_window =
        !Contains(a.collapsed_slice_dims, i) && !Contains(a.operand_batching_dims, i);
    const int64_t limit = in_window ? table.dims[i] : std::min<int64_t>(table.dims[i], 1);
    if (a.slice_sizes[i] < 0 || a.slice_sizes[i] > limit) {
      return DoesNotFit(context, "slice size {} of dimension {} exceeds {} of table {}",
                        a.slice_sizes[i], i, limit, ToString(table));
    }
    if (in_window) window.push_back(a.slice_sizes[i]);
  }
  const std::vector<int64_t> batch = BatchDims(indices, a.index_vector_dim);
  const int rank = static_cast<int>(batch.size() + window.size());
  RETURN_IF_ERROR(CheckSortedDimensions(context, a.offset_dims, rank, "offset dimensions"));
  return std::vector<Shape>{{table.type, Interleave(batch, window, a.offset_dims)}};
}

namespace {

absl::Status CheckScatterUpdate(const ShapeContext& context, const Shape& table,
                                const Shape& indices, const Shape& update) {
  const auto& a = context.instruction.As<ScatterAttributes>();
  if (!SameTypeUpToPrecision(table.type, update.type)) {
    return DoesNotFit(context, "updates {} for table {}", ToString(update), ToString(table));
  }
  RETURN_IF_ERROR(CheckSortedDimensions(context, a.update_window_dims, update.rank(),
                                        "window dimensions of the updates"));
  const std::vector<int64_t> batch = BatchDims(indices, a.index_vector_dim);
  std::vector<int64_t> window;
  window.reserve(a.update_window_dims.size());
  for (const int64_t dim : a.update_window_dims) window.push_back(update.dims[dim]);
  if (batch.size() + window.size() != update.dims.size() ||
      Interleave(batch, window, a.update_window_dims) != update.dims) {
    return DoesNotFit(context, "updates {} do not run over indices {}", ToString(update),
                      ToString(indices));
  }
  size_t next_window = 0;
  for (int i = 0; i < table.rank(); ++i) {
    if (Contains(a.inserted_window_dims, i) || Contains(a.input_batching_dims, i)) continue;
    if (window[next_window++] > table.dims[i]) {
      return DoesNotFit(context, "updates {} exceed dimension {} of table {}", ToString(update), i,
                        ToString(table));
    }
  }
  return absl::OkStatus();
}

}  // namespace

InferredShapes InferScatter(const ShapeContext& context) {
  const int num_tables = (context.num_operands() - 1) / 2;
  if (num_tables < 1 || context.num_operands() != 2 * num_tables + 1) {
    return DoesNotFit(context, "has {} operands, needs tables, indices and as many updates",
                      context.num_operands());
  }
  const auto& a = context.instruction.As<ScatterAttributes>();
  const Shape& indices = context.operand(num_tables);
  std::vector<ElementType> types;
  for (int i = 0; i < num_tables; ++i) {
    const Shape& table = context.operand(i);
    RETURN_IF_ERROR(CheckIndexing(
        context, table, indices,
        {a.update_window_dims, a.inserted_window_dims, a.scatter_dims_to_operand_dims,
         a.input_batching_dims, a.scatter_indices_batching_dims, a.index_vector_dim}));
    RETURN_IF_ERROR(
        CheckScatterUpdate(context, table, indices, context.operand(num_tables + 1 + i)));
    types.push_back(table.type);
  }
  RETURN_IF_ERROR(CheckReducer(context, types));
  return std::vector<Shape>(context.operands.begin(), context.operands.begin() + num_tables);
}

}  // namespace minka
