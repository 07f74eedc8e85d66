#include "minka/solver/table_algebra.h"

#include <algorithm>

#include "minka/solver/vectorized.h"

namespace minka {

TableId TableAlgebra::AddTable(int32_t num_rows, int32_t num_columns,
                               std::span<const int64_t> cells) {
  const Shape shape = {num_rows, num_columns, rows_.Intern(cells)};
  const auto [it, added] = ids_.emplace(shape, num_tables());
  if (added) shapes_.push_back(shape);
  return it->second;
}

template <typename Compute>
int32_t TableAlgebra::Remember(const Key& key, Compute compute) {
  const auto it = results_.find(key);
  if (it != results_.end()) return it->second;
  const int32_t result = compute();
  results_.emplace(key, result);
  return result;
}

RowId TableAlgebra::ScaleRow(RowId row, int64_t factor) {
  if (factor == 1) return row;
  return Remember({Operation::kScaleRow, row, factor}, [&] {
    std::vector<int64_t> result(rows_[row].begin(), rows_[row].end());
    for (int64_t& cost : result)
      if (cost != kForbidden) cost *= factor;
    return rows_.Intern(result);
  });
}

RowId TableAlgebra::SumRows(RowId a, RowId b) {
  if (a > b) std::swap(a, b);
  return Remember({Operation::kSumRows, a, b}, [&] {
    std::vector<int64_t> result(rows_[a].size());
    for (size_t i = 0; i < result.size(); ++i) result[i] = AddCosts(rows_[a][i], rows_[b][i]);
    return rows_.Intern(result);
  });
}

TableId TableAlgebra::Scale(TableId id, int64_t factor) {
  if (factor == 1) return id;
  return Remember({Operation::kScale, id, factor}, [&] {
    const CostTable t = table(id);
    std::vector<int64_t> cells(t.cells.begin(), t.cells.end());
    for (int64_t& cost : cells)
      if (cost != kForbidden) cost *= factor;
    return AddTable(t.num_rows, t.num_columns, cells);
  });
}

TableId TableAlgebra::Transpose(TableId id) {
  return Remember({Operation::kTranspose, id}, [&] {
    const CostTable t = table(id);
    work_ += static_cast<int64_t>(t.cells.size());
    std::vector<int64_t> cells(t.cells.size());
    for (int32_t i = 0; i < t.num_rows; ++i)
      for (int32_t j = 0; j < t.num_columns; ++j)
        cells[static_cast<size_t>(j) * t.num_rows + i] = t.at(i, j);
    const TableId result = AddTable(t.num_columns, t.num_rows, cells);
    results_.emplace(Key{Operation::kTranspose, result}, id);
    return result;
  });
}

TableId TableAlgebra::Sum(TableId a, TableId b) {
  if (a > b) std::swap(a, b);
  return Remember({Operation::kSum, a, b}, [&] {
    const CostTable t = table(a);
    const CostTable u = table(b);
    work_ += static_cast<int64_t>(t.cells.size());
    std::vector<int64_t> cells(t.cells.size());
    for (size_t c = 0; c < cells.size(); ++c) cells[c] = AddCosts(t.cells[c], u.cells[c]);
    return AddTable(t.num_rows, t.num_columns, cells);
  });
}

RowId TableAlgebra::PickEntries(RowId row, RowId picks) {
  return Remember({Operation::kPickEntries, row, picks}, [&] {
    std::vector<int64_t> result;
    for (const int64_t pick : rows_[picks]) result.push_back(rows_[row][pick]);
    return rows_.Intern(result);
  });
}

TableId TableAlgebra::PickRows(TableId id, RowId picks) {
  return Remember({Operation::kPickRows, id, picks}, [&] {
    const CostTable t = table(id);
    std::vector<int64_t> cells;
    cells.reserve(rows_[picks].size() * t.num_columns);
    for (const int64_t pick : rows_[picks]) {
      const auto first = t.cells.begin() + pick * t.num_columns;
      cells.insert(cells.end(), first, first + t.num_columns);
    }
    work_ += static_cast<int64_t>(cells.size());
    return AddTable(static_cast<int32_t>(rows_[picks].size()), t.num_columns, cells);
  });
}

RowId TableAlgebra::Project(RowId row, TableId id) {
  return Remember({Operation::kProject, row, id}, [&] {
    const CostTable t = table(id);
    work_ += static_cast<int64_t>(t.cells.size());
    std::vector<int64_t> result(t.num_columns, kForbidden);
    for (int32_t i = 0; i < t.num_rows; ++i)
      for (int32_t j = 0; j < t.num_columns; ++j)
        result[j] = std::min(result[j], AddCosts(rows_[row][i], t.at(i, j)));
    return rows_.Intern(result);
  });
}

TableId TableAlgebra::Eliminate(RowId row, TableId left, TableId right) {
  return Remember({Operation::kEliminate, row, left, right}, [&] {
    const CostTable l = table(left);
    const CostTable r = table(right);
    std::vector<int64_t> cells(static_cast<size_t>(l.num_columns) * r.num_columns, kForbidden);
    work_ += static_cast<int64_t>(cells.size()) * l.num_rows;
    for (int32_t k = 0; k < l.num_rows; ++k) {
      for (int32_t i = 0; i < l.num_columns; ++i) {
        const int64_t base = AddCosts(rows_[row][k], l.at(k, i));
        if (base == kForbidden) continue;
        int64_t* const out = cells.data() + static_cast<size_t>(i) * r.num_columns;
        const int64_t* const in = r.cells.data() + static_cast<size_t>(k) * r.num_columns;
        for (int32_t j = 0; j < r.num_columns; ++j) {
          const int64_t sum = in[j] == kForbidden ? kForbidden : base + in[j];
          out[j] = std::min(out[j], sum);
        }
      }
    }
    return AddTable(l.num_columns, r.num_columns, cells);
  });
}

namespace {

std::vector<int32_t> ColumnOfRow(const CostTable& t) {
  std::vector<int32_t> columns;
  for (int32_t i = 0; i < t.num_rows; ++i) {
    int32_t only = -1;
    for (int32_t j = 0; j < t.num_columns; ++j) {
      if (t.at(i, j) == kForbidden) continue;
      if (only >= 0) return {};
      only = j;
    }
    if (only < 0) return {};
    columns.push_back(only);
  }
  return columns;
}

// A table with forbidden cells is separable only if whole rows or columns are; those are removed
// before this matters.
void FindParts(const CostTable& t, TableTraits& traits) {
  const int64_t corner = t.at(0, 0);
  if (std::ranges::find(t.cells, kForbidden) != t.cells.end()) return;
  for (int32_t i = 1; i < t.num_rows; ++i)
    for (int32_t j = 1; j < t.num_columns; ++j)
      if (t.at(i, j) - t.at(0, j) != t.at(i, 0) - corner) return;
  for (int32_t i = 0; i < t.num_rows; ++i) traits.row_part.push_back(t.at(i, 0) - corner);
  for (int32_t j = 0; j < t.num_columns; ++j) traits.column_part.push_back(t.at(0, j));
}

}  // namespace

const TableTraits& TableAlgebra::Traits(TableId id) {
  if (traits_.size() < shapes_.size()) traits_.resize(shapes_.size());
  if (traits_[id]) return *traits_[id];
  const CostTable t = table(id);
  work_ += static_cast<int64_t>(t.cells.size());
  TableTraits traits;
  traits.column_of_row = ColumnOfRow(t);
  FindParts(t, traits);
  for (int32_t i = 0; i < t.num_rows; ++i) {
    const auto cells = t.cells.subspan(static_cast<size_t>(i) * t.num_columns, t.num_columns);
    const bool supported =
        std::ranges::any_of(cells, [](int64_t cost) { return cost != kForbidden; });
    traits.row_has_support.push_back(supported);
    traits.all_rows_supported &= supported;
  }
  traits_[id] = std::make_unique<TableTraits>(std::move(traits));
  return *traits_[id];
}

namespace {

// Above every difference of costs, and small enough to be subtracted from one another.
constexpr int64_t kForbiddenDearer = int64_t{1} << 60;
constexpr int64_t kForbiddenCheaper = int64_t{1} << 61;

// The largest of dearer[j] - cheaper[j].
MINKA_VECTORIZED
int64_t LargestDifference(const int64_t* __restrict dearer, const int64_t* __restrict cheaper,
                          int32_t count) {
  int64_t most = INT64_MIN;
  for (int32_t j = 0; j < count; ++j) {
    const int64_t difference = dearer[j] - cheaper[j];
    most = difference > most ? difference : most;
  }
  return most;
}

}  // namespace

const std::vector<int64_t>& TableAlgebra::RowExcess(TableId id) {
  if (excess_.size() < shapes_.size()) excess_.resize(shapes_.size());
  if (excess_[id]) return *excess_[id];
  const CostTable t = table(id);
  const int32_t n = t.num_rows;
  work_ += static_cast<int64_t>(t.cells.size()) * n / 4;
  std::vector<int64_t> dearer(t.cells.begin(), t.cells.end());
  std::vector<int64_t> cheaper = dearer;
  for (size_t c = 0; c < dearer.size(); ++c) {
    if (t.cells[c] != kForbidden) continue;
    dearer[c] = kForbiddenDearer;
    cheaper[c] = kForbiddenCheaper;
  }
  std::vector<int64_t> excess(static_cast<size_t>(n) * n);
  for (int32_t k = 0; k < n; ++k) {
    for (int32_t d = 0; d < n; ++d) {
      const int64_t most =
          LargestDifference(dearer.data() + static_cast<size_t>(d) * t.num_columns,
                            cheaper.data() + static_cast<size_t>(k) * t.num_columns, t.num_columns);
      int64_t& entry = excess[static_cast<size_t>(k) * n + d];
      entry = most;
      if (most > kForbiddenDearer / 2) entry = kForbidden;
      if (most < -kForbiddenDearer / 2) entry = -kForbidden;
    }
  }
  excess_[id] = std::make_unique<std::vector<int64_t>>(std::move(excess));
  return *excess_[id];
}

RowId TableAlgebra::Undominated(RowId costs, std::span<const TableId> tables,
                                std::span<const RowId> usages) {
  std::vector<int32_t> key = {costs, -1};
  key.insert(key.end(), usages.begin(), usages.end());
  std::sort(key.begin() + 2, key.end());
  key.push_back(-1);
  const auto first_table = static_cast<int64_t>(key.size());
  key.insert(key.end(), tables.begin(), tables.end());
  std::sort(key.begin() + first_table, key.end());
  const auto known = undominated_.find(key);
  if (known != undominated_.end()) return known->second;

  const std::vector<int64_t> own(rows_[costs].begin(), rows_[costs].end());
  const auto count = static_cast<int32_t>(own.size());
  std::vector<const int64_t*> excesses;
  for (const TableId id : tables) excesses.push_back(RowExcess(id).data());
  const auto dominates = [&](int32_t d, int32_t k) {
    // An entry forbidden for k alone counts as -kForbidden: several of them exceed 64 bits.
    __int128 excess = static_cast<__int128>(own[d]) - own[k];
    for (const int64_t* const table : excesses) {
      const int64_t most = table[static_cast<size_t>(k) * count + d];
      if (most == kForbidden) return false;
      excess += most;
    }
    return excess <= 0 &&
           std::ranges::all_of(usages, [&](RowId row) { return rows_[row][d] <= rows_[row][k]; });
  };
  std::vector<bool> kept(count, true);
  for (int32_t k = count - 1; k >= 0; --k)
    for (int32_t d = 0; d < count && kept[k]; ++d)
      if (d != k && kept[d] && dominates(d, k)) kept[k] = false;
  work_ += static_cast<int64_t>(count) * count;
  std::vector<int64_t> positions;
  for (int32_t k = 0; k < count; ++k)
    if (kept[k]) positions.push_back(k);
  const RowId result = rows_.Intern(positions);
  undominated_.emplace(std::move(key), result);
  return result;
}

}  // namespace minka
