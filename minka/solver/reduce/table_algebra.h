// Exact operations on interned cost rows and tables, each computed once per distinct operands:
// repeated layers of a model repeat the same operations, so a problem of thousands of nodes costs
// hundreds of computations.
//
// kForbidden absorbs in sums and never wins a minimum over an allowed entry.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "minka/solver/model/problem.h"

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
  bool HasForbidden(RowId row);
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
  // The positions, as a row, of the choices that no kept one dominates: k goes if some kept d never
  // costs more, whatever the neighbours do, and never uses more memory. `tables` have the choices
  // as rows; `usages` are rows of bytes.
  RowId Undominated(RowId costs, std::span<const TableId> tables, std::span<const RowId> usages);

  // Table cells computed so far.
  int64_t work() const { return work_; }

 private:
  struct Shape {
    int32_t num_rows;
    int32_t num_columns;
    RowId cells;
    friend bool operator==(const Shape&, const Shape&) = default;
    template <typename H>
    friend H AbslHashValue(H hash, const Shape& shape) {
      return H::combine(std::move(hash), shape.num_rows, shape.num_columns, shape.cells);
    }
  };
  enum class Operation {
    kScaleRow,
    kSumRows,
    kScale,
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
    friend bool operator==(const Key&, const Key&) = default;
    template <typename H>
    friend H AbslHashValue(H hash, const Key& key) {
      return H::combine(std::move(hash), static_cast<int>(key.operation), key.a, key.b, key.c);
    }
  };

  // A few columns of a table, each contiguous, in floating point; forbidden cells are huge, more so
  // in `subtracted`.
  struct Sample {
    std::vector<double> cells;
    std::vector<double> subtracted;
  };
  const Sample& SampleOf(TableId table);
  template <typename Compute>
  int32_t Remember(const Key& key, Compute compute);

  RowPool rows_;
  std::vector<Shape> shapes_;
  // Looked up only, never iterated.
  absl::flat_hash_map<Shape, TableId> ids_;
  absl::flat_hash_map<Key, int32_t> results_;
  absl::flat_hash_map<std::vector<int32_t>, RowId> undominated_;
  std::vector<TableId> transposed_;                   // by table, -1 until asked for
  std::vector<int8_t> has_forbidden_;                 // by row, -1 until asked for
  std::vector<std::unique_ptr<TableTraits>> traits_;  // by table, null until asked for
  std::vector<std::unique_ptr<Sample>> samples_;      // by table, null until asked for
  int64_t work_ = 0;
};

}  // namespace minka
