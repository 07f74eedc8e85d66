// Exact operations on interned cost rows and tables, each computed once per distinct operands:
// repeated layers of a model repeat the same operations, so a problem of thousands of nodes costs
// hundreds of computations.
//
// kForbidden absorbs in sums and never wins a minimum over an allowed entry.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "minka/solver/problem.h"

namespace minka {

inline int64_t AddCosts(int64_t a, int64_t b) {
  return a == kForbidden || b == kForbidden ? kForbidden : a + b;
}

// What a table's pattern allows; see the fields.
struct TableTraits {
  // Row i has its only allowed column at column_of_row[i], for every row; empty if that does not
  // hold.
  std::vector<int32_t> column_of_row;
  // Every cell is row_part[i] + column_part[j]: the table says nothing about pairs. Empty if not
  // so.
  std::vector<int64_t> row_part;
  std::vector<int64_t> column_part;
  // Rows with at least one allowed cell.
  std::vector<bool> row_has_support;
  bool all_rows_supported = true;
};

class TableAlgebra {
 public:
  RowId AddRow(std::span<const int64_t> row) { return rows_.Intern(row); }
  std::span<const int64_t> row(RowId id) const { return rows_[id]; }
  TableId AddTable(int32_t num_rows, int32_t num_columns, std::span<const int64_t> cells);
  CostTable table(TableId id) const {
    return {shapes_[id].num_rows, shapes_[id].num_columns, rows_[shapes_[id].cells]};
  }
  int32_t num_tables() const { return static_cast<int32_t>(shapes_.size()); }

  RowId ScaleRow(RowId row, int64_t factor);
  RowId SumRows(RowId a, RowId b);
  TableId Scale(TableId table, int64_t factor);
  TableId Transpose(TableId table);
  TableId Sum(TableId a, TableId b);
  // Entry p of the result is entry picks[p]; `picks` is a row of indices.
  RowId PickEntries(RowId row, RowId picks);
  TableId PickRows(TableId table, RowId picks);
  // result[j] = min over i of row[i] + table[i][j]
  RowId Project(RowId row, TableId table);
  // result[i][j] = min over k of row[k] + left[k][i] + right[k][j]
  TableId Eliminate(RowId row, TableId left, TableId right);
  const TableTraits& Traits(TableId table);
  // num_rows x num_rows, flattened: at [k * num_rows + d] the most that row d costs over row k in
  // any column where k is allowed; kForbidden if d is forbidden in one of them.
  const std::vector<int64_t>& RowExcess(TableId table);

  // Table cells computed so far.
  int64_t work() const { return work_; }

 private:
  struct Shape {
    int32_t num_rows;
    int32_t num_columns;
    RowId cells;
    friend auto operator<=>(const Shape&, const Shape&) = default;
  };
  enum class Operation {
    kScaleRow,
    kSumRows,
    kScale,
    kTranspose,
    kSum,
    kPickEntries,
    kPickRows,
    kProject,
    kEliminate
  };
  struct Key {
    Operation operation;
    int64_t a = 0;
    int64_t b = 0;
    int64_t c = 0;
    friend auto operator<=>(const Key&, const Key&) = default;
  };

  template <typename Compute>
  int32_t Remember(const Key& key, Compute compute);

  RowPool rows_;
  std::vector<Shape> shapes_;
  std::map<Shape, TableId> ids_;
  std::map<Key, int32_t> results_;
  std::map<TableId, TableTraits> traits_;
  std::map<TableId, std::vector<int64_t>> excess_;
  int64_t work_ = 0;
};

}  // namespace minka
