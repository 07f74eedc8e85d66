#include "minka/lowering/stack_rows.h"

#include <memory>
#include <utility>

namespace minka {

StepRows WholeRows(const Step& step) {
  StepRows rows;
  for (int i = 0; i < static_cast<int>(step.parameters.size()); ++i) rows.parameters.push_back({i});
  for (int i = 0; i < static_cast<int>(step.results.size()); ++i) rows.results.push_back({i});
  return rows;
}

std::vector<Literal> RowsOf(const Literal& whole) {
  Shape shape = whole.shape;
  shape.dims[0] = 1;
  const auto num_bytes = static_cast<size_t>(shape.num_bytes());
  std::vector<Literal> rows;
  for (int64_t row = 0; row < whole.shape.dims[0]; ++row) {
    rows.push_back({shape, std::make_shared<const std::string>(
                               *whole.bytes, static_cast<size_t>(row) * num_bytes, num_bytes)});
  }
  return rows;
}

Literal Stacked(std::span<const Literal> rows) {
  Shape shape = rows.front().shape;
  shape.dims[0] = static_cast<int64_t>(rows.size());
  std::string bytes;
  bytes.reserve(static_cast<size_t>(shape.num_bytes()));
  for (const Literal& row : rows) bytes += *row.bytes;
  return {std::move(shape), std::make_shared<const std::string>(std::move(bytes))};
}

std::vector<Literal> InRows(const std::vector<Literal>& values, const RowNumbers& rows) {
  std::vector<Literal> in_rows;
  for (size_t i = 0; i < values.size(); ++i) {
    const size_t num_rows = rows[i].size();
    const bool is_split = num_rows > 1 && values[i].bytes;
    const std::vector<Literal> parts =
        is_split ? RowsOf(values[i]) : std::vector<Literal>(num_rows, values[i]);
    in_rows.insert(in_rows.end(), parts.begin(), parts.end());
  }
  return in_rows;
}

std::vector<Literal> PutTogether(const std::vector<Literal>& values, const RowNumbers& rows) {
  std::vector<Literal> together;
  for (const std::vector<int>& numbers : rows) {
    const std::span<const Literal> parts =
        std::span(values).subspan(static_cast<size_t>(numbers.front()), numbers.size());
    together.push_back(parts.size() > 1 ? Stacked(parts) : parts.front());
  }
  return together;
}

}  // namespace minka
