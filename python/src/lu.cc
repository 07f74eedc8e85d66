#include "lu.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "triangular_solve.h"

namespace minka {
namespace {

using Direction = CompareAttributes::Direction;

// So many columns are factored one by one; what they do to those behind them is one product.
constexpr int64_t kBlockColumns = 128;

std::vector<int64_t> FirstDims(size_t count) {
  std::vector<int64_t> dims(count);
  for (size_t i = 0; i < count; ++i) dims[i] = static_cast<int64_t>(i);
  return dims;
}

// Arrays of a batch of matrices [batch..., m, n]: columns [batch..., m], rows [batch..., n] and
// numbers [batch...].
class Matrices {
 public:
  Matrices(ComputationBuilder& b, Shape shape)
      : b_(b), shape_(std::move(shape)), num_batch_dims_(shape_.dims.size() - 2) {}

  int64_t num_rows() const { return shape_.dims[num_batch_dims_]; }
  int64_t num_columns() const { return shape_.dims[num_batch_dims_ + 1]; }
  int64_t num_pivots() const { return std::min(num_rows(), num_columns()); }

  std::vector<int64_t> Dims(std::vector<int64_t> last) const {
    std::vector<int64_t> dims(shape_.dims.begin(), shape_.dims.begin() + num_batch_dims_);
    dims.insert(dims.end(), last.begin(), last.end());
    return dims;
  }

  Value RowNumbers() { return b_.Iota({ElementType::kS32, Dims({num_rows()})}, num_batch_dims_); }
  Value ColumnNumbers() {
    return b_.Iota({ElementType::kS32, Dims({num_columns()})}, num_batch_dims_);
  }

  // A scalar or one number for each matrix, for each element of a row or column.
  Value Repeat(Value x, int64_t count) {
    return b_.Broadcast(x, Dims({count}), FirstDims(b_.shape(x).dims.size()));
  }
  Value OfColumn(Value column) {
    return b_.Broadcast(column, shape_.dims, FirstDims(num_batch_dims_ + 1));
  }
  Value OfRow(Value row) {
    std::vector<int64_t> dims = FirstDims(num_batch_dims_ + 1);
    ++dims.back();
    return b_.Broadcast(row, shape_.dims, dims);
  }

  Value Column(Value x, Value number) { return At(x, number, num_batch_dims_ + 1); }
  Value Row(Value x, Value number) { return At(x, number, num_batch_dims_); }

  // x with `values` at index `number` of its last dimension.
  Value Put(Value x, Value number, Value values) {
    std::vector<Value> starts(num_batch_dims_, b_.Scalar(ElementType::kS32, 0));
    starts.push_back(number);
    return b_.DynamicUpdateSlice(x, b_.Reshape(values, Dims({1})), starts);
  }

  // Of a column [batch..., m] or matrix [batch..., m, n] the rows where `is_it` is true, added.
  Value SumOfRows(Value is_it, Value x) {
    const Value zero = b_.Scalar(b_.shape(x).type, 0);
    return b_.Reduce(b_.Select(is_it, x, b_.FullLike(x, 0)), zero, {LastBatchDim()}, Opcode::kAdd);
  }

  Value ReduceColumn(Value column, double init, Opcode reducer) {
    return b_.Reduce(column, b_.Scalar(b_.shape(column).type, init), {LastBatchDim()}, reducer);
  }

 private:
  int64_t LastBatchDim() const { return static_cast<int64_t>(num_batch_dims_); }

  // x at index `number` of the dimension, without it.
  Value At(Value x, Value number, size_t dim) {
    std::vector<int64_t> sizes = b_.shape(x).dims;
    std::vector<Value> starts(sizes.size(), b_.Scalar(ElementType::kS32, 0));
    sizes[dim] = 1;
    starts[dim] = number;
    const Value slice = b_.DynamicSlice(x, starts, sizes);
    sizes.erase(sizes.begin() + static_cast<std::ptrdiff_t>(dim));
    return b_.Reshape(slice, sizes);
  }

  ComputationBuilder& b_;
  Shape shape_;
  size_t num_batch_dims_;
};

// As LAPACK measures what it chooses pivots by.
Value Magnitude(ComputationBuilder& b, Value x) {
  if (!IsComplex(b.shape(x).type)) return b.Unary(Opcode::kAbs, x);
  return b.Binary(Opcode::kAdd, b.Unary(Opcode::kAbs, b.Unary(Opcode::kReal, x)),
                  b.Unary(Opcode::kAbs, b.Unary(Opcode::kImag, x)));
}

// What the loop over the columns of a panel [batch..., m, n] carries.
struct PanelState {
  Value column;  // s32: that is next
  Value panel;
  Value pivots;  // s32[batch..., min(m, n)], from 0 on
  Value order;   // s32[batch..., m]: where each row was before
};

PanelState AfterColumn(ComputationBuilder& b, const PanelState& now) {
  Matrices of(b, b.shape(now.panel));
  const Value rows = of.RowNumbers(), columns = of.ColumnNumbers();
  const Value row_now = of.Repeat(now.column, of.num_rows());

  // The first of the largest; of none where one is no number.
  const Value magnitude = Magnitude(b, of.Column(now.panel, now.column));
  const Value candidates =
      b.Select(b.Compare(Direction::kGe, rows, row_now), magnitude, b.FullLike(magnitude, -1));
  const Value largest = of.ReduceColumn(candidates, -1, Opcode::kMaximum);
  const Value is_largest = b.Compare(Direction::kEq, candidates, of.Repeat(largest, of.num_rows()));
  const auto none = static_cast<double>(of.num_rows());
  const Value first =
      of.ReduceColumn(b.Select(is_largest, rows, b.FullLike(rows, none)), none, Opcode::kMinimum);
  const Value is_none = b.Compare(Direction::kEq, first, b.FullLike(first, none));
  const Value pivot_row =
      b.Select(is_none, b.Broadcast(now.column, b.shape(first).dims, {}), first);

  // The rows change places.
  const Value is_now = b.Compare(Direction::kEq, rows, row_now);
  const Value is_pivot = b.Compare(Direction::kEq, rows, of.Repeat(pivot_row, of.num_rows()));
  const Value upper = of.SumOfRows(of.OfColumn(is_pivot), now.panel);
  const Value lower = of.Row(now.panel, now.column);
  const Value exchanged = b.Select(of.OfColumn(is_now), of.OfRow(upper),
                                   b.Select(of.OfColumn(is_pivot), of.OfRow(lower), now.panel));
  const Value upper_order = of.SumOfRows(is_pivot, now.order);
  const Value lower_order = of.SumOfRows(is_now, now.order);
  const Value order =
      b.Select(is_now, of.Repeat(upper_order, of.num_rows()),
               b.Select(is_pivot, of.Repeat(lower_order, of.num_rows()), now.order));

  // A column of zeros stays.
  const Value column = of.Column(exchanged, now.column);
  const Value pivot = of.SumOfRows(is_now, column);
  const Value divisor =
      b.Select(b.Compare(Direction::kEq, pivot, b.FullLike(pivot, 0)), b.FullLike(pivot, 1), pivot);
  const Value factors = b.Binary(Opcode::kDivide, column, of.Repeat(divisor, of.num_rows()));

  // Only what is below and right of the pivot changes.
  const Value is_below = b.Compare(Direction::kGt, rows, row_now);
  const Value column_now = of.Repeat(now.column, of.num_columns());
  const Value is_right = b.Compare(Direction::kGt, columns, column_now);
  const Value is_column = b.Compare(Direction::kEq, columns, column_now);
  const Value less = b.Binary(Opcode::kSubtract, exchanged,
                              b.Binary(Opcode::kMultiply, of.OfColumn(factors), of.OfRow(upper)));
  const Value changed = b.Select(of.OfRow(is_right), less,
                                 b.Select(of.OfRow(is_column), of.OfColumn(factors), exchanged));
  return {.column = b.Binary(Opcode::kAdd, now.column, b.Scalar(ElementType::kS32, 1)),
          .panel = b.Select(of.OfColumn(is_below), changed, exchanged),
          .pivots = of.Put(now.pivots, now.column, pivot_row),
          .order = order};
}

PanelState FactorPanel(ComputationBuilder& b, Value panel) {
  Matrices of(b, b.shape(panel));
  const Value zero = b.Scalar(ElementType::kS32, 0);
  const std::vector<Value> initial = {
      zero, panel, b.Broadcast(zero, of.Dims({of.num_pivots()}), {}), of.RowNumbers()};
  std::vector<Shape> shapes;
  for (const Value value : initial) shapes.push_back(b.shape(value));

  const auto parameters = [&](ComputationBuilder& computation) -> PanelState {
    return {.column = computation.Parameter(shapes[0], "column"),
            .panel = computation.Parameter(shapes[1], "panel"),
            .pivots = computation.Parameter(shapes[2], "pivots"),
            .order = computation.Parameter(shapes[3], "order")};
  };
  ComputationBuilder body = b.module().AddComputation("lu_column");
  const PanelState after = AfterColumn(body, parameters(body));
  body.SetResults({after.column, after.panel, after.pivots, after.order});
  ComputationBuilder condition = b.module().AddComputation("more_columns");
  const Value limit = condition.Scalar(ElementType::kS32, static_cast<double>(of.num_pivots()));
  condition.SetResults({condition.Compare(Direction::kLt, parameters(condition).column, limit)});
  const InstructionId loop = b.Append({.opcode = Opcode::kWhile,
                                       .operands = initial,
                                       .results = shapes,
                                       .called = {b.module().id(body), b.module().id(condition)}})
                                 .instruction;
  return {.column = {loop, 0}, .panel = {loop, 1}, .pivots = {loop, 2}, .order = {loop, 3}};
}

// Rows and columns from these on up to those.
Value Part(ComputationBuilder& b, Value x, std::array<int64_t, 2> starts,
           std::array<int64_t, 2> limits) {
  SliceAttributes slice{.limits = b.shape(x).dims};
  const size_t rank = slice.limits.size();
  slice.starts.assign(rank, 0);
  slice.strides.assign(rank, 1);
  for (size_t i = 0; i < 2; ++i) {
    slice.starts[rank - 2 + i] = starts[i];
    slice.limits[rank - 2 + i] = limits[i];
  }
  return b.Slice(x, std::move(slice));
}

// Of each matrix the rows in this order.
Value TakeRows(ComputationBuilder& b, Value x, Value order) {
  const auto num_batch_dims = static_cast<int64_t>(b.shape(x).dims.size()) - 2;
  const std::vector<int64_t> batch_dims = FirstDims(static_cast<size_t>(num_batch_dims));
  std::vector<int64_t> sizes(b.shape(x).dims.size(), 1);
  sizes.back() = b.shape(x).dims.back();
  return b.Gather(x, order,
                  {.offset_dims = {num_batch_dims + 1},
                   .collapsed_slice_dims = {num_batch_dims},
                   .start_index_map = {num_batch_dims},
                   .operand_batching_dims = batch_dims,
                   .start_indices_batching_dims = batch_dims,
                   .slice_sizes = std::move(sizes),
                   .index_vector_dim = num_batch_dims + 1});
}

Value Product(ComputationBuilder& b, Value x, Value y) {
  const std::vector<int64_t> batch_dims = FirstDims(b.shape(x).dims.size() - 2);
  const auto rows = static_cast<int64_t>(batch_dims.size());
  return b.Dot(x, y,
               {.lhs_contracting = {rows + 1},
                .rhs_contracting = {rows},
                .lhs_batch = batch_dims,
                .rhs_batch = batch_dims});
}

// What a factored block of columns leaves of those right of it.
Value RightOf(ComputationBuilder& b, const PanelState& block, Value right) {
  const std::vector<int64_t>& dims = b.shape(block.panel).dims;
  const int64_t num_rows = dims[dims.size() - 2], width = dims.back();
  const int64_t num_columns = b.shape(right).dims.back();
  const Value upper =
      TriangularSolve(b, Part(b, block.panel, {0, 0}, {width, width}),
                      Part(b, right, {0, 0}, {width, num_columns}), {.has_unit_diagonal = true});
  if (num_rows == width) return upper;
  const Value factors = Part(b, block.panel, {width, 0}, {num_rows, width});
  const Value lower =
      b.Binary(Opcode::kSubtract, Part(b, right, {width, 0}, {num_rows, num_columns}),
               Product(b, factors, upper));
  return b.Concatenate(std::array{upper, lower}, static_cast<int64_t>(dims.size()) - 2);
}

}  // namespace

// By blocks of columns, from the left: each is factored, the rows of the others are exchanged
// alike, and those right of it lose what its factors make of them (Golub and Van Loan, Matrix
// Computations, 3.4.7).
LuFactors FactorLu(ComputationBuilder& b, Value matrices) {
  const Shape shape = b.shape(matrices);
  const auto row_dim = static_cast<int64_t>(shape.dims.size()) - 2, column_dim = row_dim + 1;
  const int64_t num_rows = shape.dims[row_dim], num_columns = shape.dims[column_dim];
  const int64_t num_pivots = std::min(num_rows, num_columns);
  if (num_pivots == 0) {
    const Value zero = b.Scalar(ElementType::kS32, 0);
    return {.factors = matrices, .pivots = b.Broadcast(zero, Matrices(b, shape).Dims({0}), {})};
  }

  Value x = matrices;
  std::vector<Value> pivots;
  for (int64_t start = 0; start < num_pivots; start += kBlockColumns) {
    const int64_t end = std::min(start + kBlockColumns, num_pivots);
    const PanelState block = FactorPanel(b, Part(b, x, {start, start}, {num_rows, end}));
    const Value first = b.FullLike(block.pivots, static_cast<double>(start + 1));
    pivots.push_back(b.Binary(Opcode::kAdd, block.pivots, first));

    std::vector<Value> columns = {block.panel};
    if (start > 0) {
      const Value left = Part(b, x, {start, 0}, {num_rows, start});
      columns.insert(columns.begin(), TakeRows(b, left, block.order));
    }
    if (end < num_columns) {
      const Value right = Part(b, x, {start, end}, {num_rows, num_columns});
      columns.push_back(RightOf(b, block, TakeRows(b, right, block.order)));
    }
    std::vector<Value> rows = {b.Concatenate(columns, column_dim)};
    if (start > 0) rows.insert(rows.begin(), Part(b, x, {0, 0}, {start, num_columns}));
    x = b.Concatenate(rows, row_dim);
  }
  return {.factors = x, .pivots = b.Concatenate(pivots, row_dim)};
}

}  // namespace minka
