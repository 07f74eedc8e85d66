#include "minka/solver/reduce/table_algebra.h"

#include <algorithm>

#include "minka/solver/reduce/transpose.h"
#include "minka/solver/reduce/vectorized.h"

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

bool TableAlgebra::HasForbidden(RowId row) {
  if (has_forbidden_.size() <= static_cast<size_t>(row)) has_forbidden_.resize(rows_.size(), -1);
  if (has_forbidden_[row] < 0)
    has_forbidden_[row] = std::ranges::find(rows_[row], kForbidden) != rows_[row].end() ? 1 : 0;
  return has_forbidden_[row] == 1;
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
  if (transposed_.size() < shapes_.size()) transposed_.resize(shapes_.size(), -1);
  if (transposed_[id] >= 0) return transposed_[id];
  const CostTable t = table(id);
  work_ += static_cast<int64_t>(t.cells.size());
  std::vector<int64_t> cells(t.cells.size());
  minka::Transpose(t.cells.data(), t.num_rows, t.num_columns, cells.data());
  const TableId result = AddTable(t.num_columns, t.num_rows, cells);
  transposed_.resize(shapes_.size(), -1);
  transposed_[id] = result;
  transposed_[result] = id;
  return result;
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

constexpr int32_t kSampledColumns = 8;
constexpr double kHugeCell = 1e30;

// Above every difference of costs, and small enough to be added to one another once.
constexpr int64_t kForbiddenDearer = int64_t{1} << 60;

// The most that one row of a table costs over another in a column that the other allows.
MINKA_VECTORIZED
int64_t LargestExcess(const int64_t* __restrict row, const int64_t* __restrict over,
                      int32_t count) {
  int64_t most = -kForbiddenDearer;
  for (int32_t j = 0; j < count; ++j) {
    const int64_t allowed = row[j] == kForbidden ? kForbiddenDearer : row[j];
    const int64_t base = over[j] == kForbidden ? 0 : over[j];
    const int64_t excess = over[j] == kForbidden ? -kForbiddenDearer : allowed - base;
    most = excess > most ? excess : most;
  }
  return most;
}

// most[d] = the most, over the sampled columns, of cells[d] - subtracted[k], added to excess[d].
MINKA_VECTORIZED
void AddSampledExcess(const double* __restrict cells, const double* __restrict subtracted,
                      int32_t count, int32_t k, double* __restrict excess) {
  for (int32_t d = 0; d < count; ++d) {
    double most = cells[d] - subtracted[k];
#pragma GCC unroll 8
    for (int32_t s = 1; s < kSampledColumns; ++s) {
      const double difference = cells[s * count + d] - subtracted[s * count + k];
      most = difference > most ? difference : most;
    }
    excess[d] += most;
  }
}

}  // namespace

const TableAlgebra::Sample& TableAlgebra::SampleOf(TableId id) {
  if (samples_.size() < shapes_.size()) samples_.resize(shapes_.size());
  if (samples_[id]) return *samples_[id];
  const CostTable t = table(id);
  Sample sample;
  for (int32_t s = 0; s < kSampledColumns; ++s) {
    const int32_t j = s * t.num_columns / kSampledColumns;
    for (int32_t i = 0; i < t.num_rows; ++i) {
      const bool forbidden = t.at(i, j) == kForbidden;
      sample.cells.push_back(forbidden ? kHugeCell : static_cast<double>(t.at(i, j)));
      sample.subtracted.push_back(forbidden ? 2 * kHugeCell : static_cast<double>(t.at(i, j)));
    }
  }
  work_ += static_cast<int64_t>(sample.cells.size());
  samples_[id] = std::make_unique<Sample>(std::move(sample));
  return *samples_[id];
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
  const auto dominates = [&](int32_t d, int32_t k) {
    __int128 excess = static_cast<__int128>(own[d]) - own[k];
    for (const TableId id : tables) {
      const CostTable t = table(id);
      const int64_t* const cells = t.cells.data();
      const int64_t most =
          LargestExcess(cells + static_cast<size_t>(d) * t.num_columns,
                        cells + static_cast<size_t>(k) * t.num_columns, t.num_columns);
      work_ += t.num_columns;
      if (most > kForbiddenDearer / 2) return false;
      excess += most;
    }
    return excess <= 0 &&
           std::ranges::all_of(usages, [&](RowId row) { return rows_[row][d] <= rows_[row][k]; });
  };
  std::vector<bool> kept(count, true);
  // What a few columns say is enough to refuse most pairs. Rounding may refuse one too many, which
  // keeps a choice that could have gone.
  std::vector<double> at_least(count);
  for (int32_t k = count - 1; k >= 0; --k) {
    for (int32_t d = 0; d < count; ++d)
      at_least[d] = static_cast<double>(own[d]) - static_cast<double>(own[k]);
    for (const TableId id : tables) {
      const Sample& sample = SampleOf(id);
      AddSampledExcess(sample.cells.data(), sample.subtracted.data(), count, k, at_least.data());
    }
    for (int32_t d = 0; d < count && kept[k]; ++d)
      if (d != k && kept[d] && at_least[d] <= 0 && dominates(d, k)) kept[k] = false;
  }
  work_ += static_cast<int64_t>(count) * count * (1 + static_cast<int64_t>(tables.size()));
  std::vector<int64_t> positions;
  for (int32_t k = 0; k < count; ++k)
    if (kept[k]) positions.push_back(k);
  const RowId result = rows_.Intern(positions);
  undominated_.emplace(std::move(key), result);
  return result;
}

}  // namespace minka
