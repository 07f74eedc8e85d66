// The discrete problem behind every sharding decision: one choice per node, so that
//
//   sum over nodes n of  multiplicity(n) * cost(n)[x_n]
// + sum over edges e of  multiplicity(e) * table(e)[x_a][x_b]          is smallest, and
//
//   at every time t:  sum over usages u with u.interval containing t of  row(u)[x_(u.node)]  <=
//   usage_limit.
//
// Tables, cost rows and usage rows are interned: equal content is stored once, whoever adds it. All
// costs are integers (the caller chooses the unit); a forbidden entry is kForbidden and never part
// of a sum.
//
// A multiplicity m says that a node or edge stands for m equal copies that take the same choice (a
// folded layer). It scales cost alone: the memory of the copies is what their usages say, one
// interval per copy. Cost and lower bound of a folded problem speak of the folded problem, whose
// optimum is at least that of the problem written out.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"

namespace minka {

// A cost that may not be chosen.
inline constexpr int64_t kForbidden = INT64_MAX;

using NodeId = int32_t;
using TableId = int32_t;
using RowId = int32_t;

// Half open: bytes count at begin, ..., end - 1; end <= begin means never.
struct TimeInterval {
  int64_t begin = 0;
  int64_t end = 0;
  friend bool operator==(const TimeInterval&, const TimeInterval&) = default;
};

// Rows are stored once by content; ids count from 0 in order of first appearance. A row stays where
// it is: its span is valid as long as the pool or a copy of it lives.
class RowPool {
 public:
  RowPool() = default;
  RowPool(const RowPool& other);
  RowPool& operator=(const RowPool& other) { return *this = RowPool(other); }
  RowPool(RowPool&&) = default;
  RowPool& operator=(RowPool&&) = default;

  RowId Intern(std::span<const int64_t> row);
  std::span<const int64_t> operator[](RowId id) const { return rows_[id]; }
  int32_t size() const { return static_cast<int32_t>(rows_.size()); }

 private:
  std::vector<std::span<const int64_t>> rows_;
  std::vector<std::shared_ptr<int64_t[]>> blocks_;  // copies share them
  std::span<int64_t> free_;                         // of the last block; a copy has none
  absl::flat_hash_map<uint64_t, RowId> first_of_hash_;
  std::vector<RowId> next_of_hash_;  // by row: the next one with the same hash, or -1
};

// The cost of every pair of choices of two nodes, row major: the cell of (i, j) is cells[i *
// num_columns + j].
struct CostTable {
  int32_t num_rows = 0;
  int32_t num_columns = 0;
  std::span<const int64_t> cells;
  int64_t at(int32_t i, int32_t j) const { return cells[static_cast<size_t>(i) * num_columns + j]; }
};

// Joins two different nodes; the row index is a's choice and the column index b's, the other way
// round if transposed.
struct ProblemEdge {
  NodeId a = 0;
  NodeId b = 0;
  TableId table = 0;
  bool transposed = false;
  int64_t multiplicity = 1;
};

struct NodeUsage {
  TimeInterval interval;
  RowId row = 0;  // bytes of each choice
};

class SolverProblem {
 public:
  // A node with one choice per entry of `costs`.
  NodeId AddNode(std::span<const int64_t> costs, const std::string& name = {});
  // To what the choices of a node cost; what is forbidden stays so.
  void AddCosts(NodeId node, std::span<const int64_t> more);
  void SetMultiplicity(NodeId node, int64_t multiplicity) { multiplicity_[node] = multiplicity; }

  TableId AddTable(int32_t num_rows, int32_t num_columns, std::span<const int64_t> cells) {
    return AddTable(num_rows, num_columns, AddTableCells(cells));
  }
  // In two steps, for a reader that meets the cells before the shape.
  RowId AddTableCells(std::span<const int64_t> cells) { return table_cells_.Intern(cells); }
  std::span<const int64_t> table_cells(RowId cells) const { return table_cells_[cells]; }
  TableId AddTable(int32_t num_rows, int32_t num_columns, RowId cells);
  void AddEdge(const ProblemEdge& edge) { edges_.push_back(edge); }

  // Bytes per choice for AddUsage.
  RowId AddUsageRow(std::span<const int64_t> bytes) { return usage_rows_.Intern(bytes); }
  // Usages of one node may overlap in time; they add up.
  void AddUsage(NodeId node, TimeInterval interval, RowId row);

  // Bytes at every time; without a limit usages are only reported.
  void set_usage_limit(std::optional<int64_t> bytes) { usage_limit_ = bytes; }
  void set_name(std::string name) { name_ = std::move(name); }

  const std::string& name() const { return name_; }
  std::optional<int64_t> usage_limit() const { return usage_limit_; }
  int32_t num_nodes() const { return static_cast<int32_t>(cost_row_.size()); }
  int32_t num_choices(NodeId node) const { return static_cast<int32_t>(costs(node).size()); }
  std::span<const int64_t> costs(NodeId node) const { return cost_rows_[cost_row_[node]]; }
  RowId cost_row(NodeId node) const { return cost_row_[node]; }
  int64_t multiplicity(NodeId node) const { return multiplicity_[node]; }
  // The given name, or "node 17".
  std::string node_name(NodeId node) const;

  std::span<const ProblemEdge> edges() const { return edges_; }
  int32_t num_tables() const { return static_cast<int32_t>(table_shapes_.size()); }
  CostTable table(TableId id) const;
  // The cost of an edge, multiplicity not applied.
  int64_t EdgeCost(const ProblemEdge& edge, int32_t choice_a, int32_t choice_b) const {
    const CostTable t = table(edge.table);
    return edge.transposed ? t.at(choice_b, choice_a) : t.at(choice_a, choice_b);
  }

  std::span<const NodeUsage> usages() const { return usages_; }
  NodeId usage_node(size_t usage) const { return usage_node_[usage]; }
  std::span<const int64_t> usage_row(RowId row) const { return usage_rows_[row]; }
  int32_t num_usage_rows() const { return usage_rows_.size(); }

  // Whether every index, shape and value is sound: nodes have at least one choice, tables fit the
  // nodes they join, no self-edges, costs and bytes are not negative, multiplicities are positive,
  // and the sum of the largest costs stays below 2^58 (so that no later sum overflows). The message
  // names the node, edge or table.
  absl::Status Check() const;

 private:
  struct TableShape {
    int32_t num_rows;
    int32_t num_columns;
    RowId cells;
  };

  std::string name_;
  std::optional<int64_t> usage_limit_;
  RowPool cost_rows_;
  std::vector<RowId> cost_row_;
  std::vector<int64_t> multiplicity_;
  std::unordered_map<NodeId, std::string> names_;
  RowPool table_cells_;
  std::vector<TableShape> table_shapes_;
  std::unordered_multimap<RowId, TableId> tables_by_cells_;
  std::vector<ProblemEdge> edges_;
  RowPool usage_rows_;
  std::vector<NodeUsage> usages_;
  std::vector<NodeId> usage_node_;
};

}  // namespace minka
